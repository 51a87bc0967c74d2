"""Clients of both lanes, as `parley`, the tests and the load generator use them. Wire form only."""
