"""What a model computes, as a short list of operations on checked shapes."""
