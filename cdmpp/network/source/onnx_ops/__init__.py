"""ONNX operators as calls of PyTorch, as who writes them in PyTorch would: one file for each kind of operator."""
