"""How long a request that came now would wait for its first token."""
