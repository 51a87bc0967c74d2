"""Text on its way to speech: checks, markup, pauses, words of a language. Pure functions."""
