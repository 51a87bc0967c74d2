"""Attention backends: the paged KV pool of the backbone, and the depth model's small cache."""
