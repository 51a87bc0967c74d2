"""`make bench`: what this machine does with this server, as a table and as JSON."""
