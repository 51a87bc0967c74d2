"""Layers shared by every family: each is written once, here."""
