"""What `python -m loadtest` is asked for and what it shows; one file a command."""
