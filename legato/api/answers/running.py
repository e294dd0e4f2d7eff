"""The calls under way, by the names under which a client can end them."""

from collections.abc import Callable, Iterable

from legato.core.errors import UnknownRequestError

Abort = Callable[[], None]


class RunningCalls:
    """Several names may stand for a call, and several calls behind a name that clients use again."""

    def __init__(self) -> None:
        self._aborts: dict[str, list[Abort]] = {}

    def add(self, names: Iterable[str], abort: Abort) -> Callable[[], None]:
        """Let `abort` end a call under each of `names`; the result takes it out again, once or more often."""
        own = frozenset(names)
        for name in own:
            self._aborts.setdefault(name, []).append(abort)

        def remove() -> None:
            for name in own:
                others = [each for each in self._aborts.pop(name, ()) if each is not abort]
                if others:
                    self._aborts[name] = others

        return remove

    def abort(self, name: str) -> None:
        """End the calls of that name. Raises UnknownRequestError when none runs."""
        aborts = tuple(self._aborts.get(name, ()))
        if not aborts:
            raise UnknownRequestError(f"no request {name[:128]!r} runs here; it is unknown or has ended")
        for abort in aborts:
            abort()
