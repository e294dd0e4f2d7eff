"""One format for every line of the log, in both processes: text, or a JSON object."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from legato.core.errors import printable


def set_up_logging(level: str, process: str = "legato", log_format: str = "text") -> None:
    """Log to standard error from `level` on; lines name the process they come from.

    log_format  "text" or "json"
    """
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(JsonLines(process))
    else:
        handler.setFormatter(TextLines(f"%(asctime)s %(levelname)-7s {process}: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it tells every request of a download


def log_format_in_use() -> str:
    """The log_format that this process was set up with, for one that it starts."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(each.formatter, JsonLines) for each in handlers) else "text"


class TextLines(logging.Formatter):
    """Text, in which nothing that a client or a model's file wrote can pass for a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = "\n    ".join(map(printable, record.message.split("\n")))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join("    " + printable(line) for line in super().formatException(ei).split("\n"))


class JsonLines(logging.Formatter):
    """A JSON object a line: time, level, process, message; where there are, request_id, trace_id, exception.

    A line is about a request when it is logged with `extra={"request_id": …}`, and its trace_id likewise.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "message": record.getMessage(),
        }
        for name in ("request_id", "trace_id"):
            if getattr(record, name, None) is not None:
                line[name] = getattr(record, name)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
