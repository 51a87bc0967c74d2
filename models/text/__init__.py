"""English text on its way to speech: checks, normalisation, pauses, scripts. Pure functions."""
