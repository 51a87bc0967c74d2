"""OpusLM: speech and text in nine columns of one id space, on OLMo 2 or a Llama; ESPnet's DAC."""
