"""Sound that comes in: files, voices to speak with, and the features that models take of it."""
