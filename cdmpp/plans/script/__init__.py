"""Script: a program of PyTorch, or a configuration of torchtitan, that runs a planned training step."""
