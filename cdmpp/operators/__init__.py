"""Framework operators: calls that a runtime such as PyTorch serves with kernels of its own. No TVM here."""
