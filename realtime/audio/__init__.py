"""PCM, Opus packets, sample rates and audio files. Blocks: worker threads only."""
