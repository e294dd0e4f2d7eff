"""`legato doctor`: what there is, for whoever wonders why something does not work or is slow."""
