"""Orpheus: a Llama that writes speech codes, seven ids a frame, and SNAC."""
