"""Which API a path belongs to: its clients read errors in the shape of that API."""

from enum import Enum

from starlette.types import Scope

LESSON_PATHS = frozenset({"/basic_generate", "/generate", "/generate_stream", "/generate_vllm"})
ANTHROPIC_PREFIX = "/v1/messages"


class Dialect(Enum):
    """OPENAI is also what paths of nobody answer in."""

    OPENAI = "openai"
    LESSON = "lesson"
    ANTHROPIC = "anthropic"


def dialect_of(scope: Scope) -> Dialect:
    path = served_path(scope)
    if path in LESSON_PATHS:
        return Dialect.LESSON
    if path == ANTHROPIC_PREFIX or path.startswith(ANTHROPIC_PREFIX + "/"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


def served_path(scope: Scope) -> str:
    """The path as the router will see it, without the prefix of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
