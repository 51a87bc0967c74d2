"""What a listener heard, from what came when. Values in, figures out; no I/O, no clock."""
