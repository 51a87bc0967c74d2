"""What the `parley` command does in a terminal: say, talk, look at the machine, show."""
