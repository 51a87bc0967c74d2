"""Load generator, scheduler simulator and reports. A client: knows only the wire format."""
