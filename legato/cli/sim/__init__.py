"""`legato sim`."""
