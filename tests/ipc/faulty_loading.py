"""An engine process that breaks down while it loads its model, with the exception LEGATO_TEST_FAULT."""

import builtins
import os
import sys
from typing import Any

from legato.engine import __main__ as engine
from legato.engine import assembly


def break_down(*_: Any) -> None:
    raise getattr(builtins, os.environ["LEGATO_TEST_FAULT"])("a planted fault")


assembly.load_engine = break_down  # type: ignore[assignment]

if __name__ == "__main__":
    sys.exit(engine.main())
