"""Which tokens run next; knows counts and page ids, never tensors or sockets."""
