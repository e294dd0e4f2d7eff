"""Several models in one server: each has an engine of its own while it is in memory; not all need be."""
