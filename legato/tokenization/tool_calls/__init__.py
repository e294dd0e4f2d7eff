"""Tools that a model may call: what callers say of them, and how models write calls."""
