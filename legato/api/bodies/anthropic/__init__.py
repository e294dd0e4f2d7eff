"""What a client of the Messages API sends."""
