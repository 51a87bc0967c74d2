"""Guided decoding: pairs in the engine, and two requests merged outside of it."""
