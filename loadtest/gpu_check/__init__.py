"""One script that checks and measures a CUDA machine: `python -m loadtest.gpu_check`."""
