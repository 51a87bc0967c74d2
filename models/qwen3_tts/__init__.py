"""Qwen3-TTS, 12 Hz: a Qwen3 over frames and text at once, a small one over codes, its codec."""
