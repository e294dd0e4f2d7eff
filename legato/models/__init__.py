"""Model families: a config becomes a program."""
