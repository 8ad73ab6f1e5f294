"""The words everything else is written in: problems, tensors by name, randomness, exchanges."""
