"""What `legato serve` is made of: its socket and its HTTP server."""
