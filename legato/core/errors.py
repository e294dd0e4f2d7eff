"""What can go wrong, named. `api/errors.py` maps each class to a status and a body."""

MAX_REASON_CHARS = 500


def brief(reason: object) -> str:
    """A text about what a stranger wrote, for a message: cut when it is long, control characters escaped."""
    text = str(reason)
    return printable(text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}…")


def printable(text: str) -> str:
    """The text on one line, with whatever would move a terminal's cursor or change its colours escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted(number: int, noun: str) -> str:
    """1 request, 2 requests"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class LegatoError(Exception):
    """Base of every error that legato raises on purpose; its text is fit for a user."""


class ConfigError(LegatoError):
    """A flag, an environment variable or a combination of them does not fit."""


class ModelError(LegatoError):
    """A model is missing, unreadable, or of a kind that cannot be served."""


class LoadFailedError(ModelError):
    """One of several models could not be loaded, or its engine has ended: it is tried again by and by."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestError(LegatoError):
    """A request is at fault, and only that request: names the field and the remedy.

    param  the field of the body, as the client wrote it; None when no single field is at fault
    code   machine-readable reason, e.g. "context_length_exceeded"
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModelError(RequestError):
    """The request names a model that this server does not serve."""


class UnknownRequestError(RequestError):
    """The request speaks of another that is unknown or has ended."""


class OverloadedError(LegatoError):
    """There is too much to do: come back in `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SlowFirstTokenError(OverloadedError):
    """The first token would come later than it may, because of those that came before.

    first_token_at  when it would come, by time.perf_counter()
    """

    def __init__(self, message: str, *, retry_after_s: float, first_token_at: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.first_token_at = first_token_at


class NotReadyError(LegatoError):
    """No engine can take the request now: still loading, draining, or gone for good (no retry_after_s)."""

    def __init__(self, message: str, *, retry_after_s: float | None = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


IS_ENDING = "the server is shutting down: it finishes what runs and takes nothing new"


class ClosedError(NotReadyError):
    """The engine was ended on purpose, for good: the server is shutting down, or close() was called."""


class NonFiniteLogitsError(LegatoError):
    """The model gave NaN or infinity for one request: it has no next token, others are untouched."""


class QueueTimeoutError(NotReadyError):
    """The time that a request was given ended before its first token: nothing was generated."""

    def __init__(
        self, message: str = "the time for this request ended before its first token; try again later"
    ) -> None:
        super().__init__(message)


class SlowReaderError(LegatoError):
    """The client has read so little of its answer that no more of it is kept."""


class PoisonedRequestError(LegatoError):
    """Engines have died of this one request, the last time with no other beside it."""


class GrammarFailedError(LegatoError):
    """An answer could not be held to its grammar to the end, so it was ended."""


class EngineDiedError(LegatoError):
    """The engine process ended while the request was in it."""
