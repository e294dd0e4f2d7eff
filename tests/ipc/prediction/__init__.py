"""What is predicted of first tokens."""
