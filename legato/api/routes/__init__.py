"""Routes: from a body to a call of the generator, and from its deltas to an answer."""
