"""Chatterbox: a voice and text, then speech tokens guided in pairs, and flow matching."""
