"""CosyVoice 2: a Qwen2 that writes speech tokens, and flow matching with HiFT behind it."""
