"""The gateway: sockets, sessions, turns, audio in and out. Knows the engine by its door only."""
