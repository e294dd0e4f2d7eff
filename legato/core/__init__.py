"""The nouns: requests, plans, settings, errors. Standard library only."""
