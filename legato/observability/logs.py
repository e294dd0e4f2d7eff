"""One format for every line of the log, in both processes."""

import logging


def set_up_logging(level: str, process: str = "legato") -> None:
    """Log to standard error from `level` on; lines name the process they come from."""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s %(levelname)-7s {process}: %(message)s", force=True
    )
