"""What both processes read of a model: where its files are, its settings, its GGUF header. No arrays."""
