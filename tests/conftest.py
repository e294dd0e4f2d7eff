"""What holds for every test: numpy's BLAS gets one thread, as in the engine process, before anyone imports numpy."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
