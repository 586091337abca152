"""Machine code of CUDA kernels: read as SASS, executed and timed on paper."""
