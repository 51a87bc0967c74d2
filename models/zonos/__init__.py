"""Zonos: phonemes and settings before nine delayed codebooks, guided in pairs, and DAC."""
