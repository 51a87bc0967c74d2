"""Speech language models: tensors in, tensors out. See `models.base` for the contract."""
