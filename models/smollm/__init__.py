"""`smollm2-135m`: a small instruction-tuned text model, a Llama with a single text column."""
