"""Tensor data: files to float32 arrays under canonical names."""
