"""The families of models that are served, a page each."""
