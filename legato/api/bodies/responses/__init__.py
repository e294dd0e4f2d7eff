"""What a client of the Responses API sends."""
