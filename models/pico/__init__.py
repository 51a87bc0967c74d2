"""The embedded English speech model `pico`: units, text front, weights, model."""
