"""The only Python door to the compiled kernels."""
