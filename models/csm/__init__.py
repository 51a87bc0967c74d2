"""CSM: a Llama over frames, a small one over the codes of a frame, and Mimi."""
