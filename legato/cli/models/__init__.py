"""`legato models`: what there is by name, and what a number format costs a model."""
