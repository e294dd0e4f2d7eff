"""From the deltas of a generator to what a client gets."""
