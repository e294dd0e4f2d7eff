"""`legato bench kernels`: the native library against this machine's ceilings, numpy and torch."""
