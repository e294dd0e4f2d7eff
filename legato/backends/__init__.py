"""What runs a program: one file or folder per way of computing it."""
