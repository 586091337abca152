"""Networks as ``torch.compile`` runs them: kernels fused by Inductor, products by the libraries. Needs no TVM."""
