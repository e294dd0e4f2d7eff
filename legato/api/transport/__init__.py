"""What every request passes, whatever its route: id, key, size, JSON."""
