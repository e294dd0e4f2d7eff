"""What the time of a call went to: kept while it runs and for a while after, told by id or in the answer."""
