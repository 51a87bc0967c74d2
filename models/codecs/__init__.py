"""Detokenizers that more than one family uses: each once, codes to PCM, batched over streams."""
