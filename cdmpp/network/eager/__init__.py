"""Networks as PyTorch runs them by itself. Needs no TVM."""
