"""Step-Audio 2 mini: a Qwen2 that hears, writes and speaks in one line of ids, and token2wav."""
