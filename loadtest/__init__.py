"""The benchmark, and a server process for tests. A client: knows only the wire format."""
