"""Text in, text out: the generator that every route and the Python API stand on."""
