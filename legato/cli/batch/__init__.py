"""What `legato batch` is made of: lines in, rows out, and many requests in flight in between."""
