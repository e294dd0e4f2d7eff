"""Numpy's BLAS gets one thread, as in the engine process; set before any test imports numpy."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
