"""Sources of what one rank computes: predicted kernels, a table of measured layers, a trace."""
