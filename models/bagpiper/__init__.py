"""Bagpiper: a Qwen3 that thinks in text, then speaks in eight delayed columns, and X-Codec."""
