"""An engine process that breaks down in each step that computes a token of LEGATO_TEST_POISON.

LEGATO_TEST_FAULT says how: crash (as a fault in a kernel), raise, exhaust (no memory) or hang.
"""

import os
import signal
import sys
import time

from legato.engine import __main__ as engine
from legato.executor.forward_batch import ForwardBatch
from legato.executor.model_runner import ModelRunner

POISON = int(os.environ["LEGATO_TEST_POISON"])
run = ModelRunner.run


def break_down() -> None:
    match os.environ["LEGATO_TEST_FAULT"]:
        case "crash":
            signal.raise_signal(signal.SIGSEGV)  # to this thread: none gets further
        case "raise":
            raise ZeroDivisionError("a planted fault")
        case "exhaust":
            raise MemoryError
        case "hang":
            time.sleep(600)


def faulty_run(self: ModelRunner, batch: ForwardBatch):  # type: ignore[no-untyped-def]
    if any(POISON in start.token_ids for _, start in batch.row_starts):
        break_down()
    return run(self, batch)


ModelRunner.run = faulty_run  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(engine.main())
