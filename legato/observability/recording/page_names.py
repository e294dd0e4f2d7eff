"""Names for what pages contain: equal for equal beginnings of a prompt, and saying nothing else of it."""

import secrets
from array import array
from collections.abc import Sequence
from hashlib import blake2b

NAME_BYTES = 8  # two of a million pages get one name by chance in one of forty million recordings


class PageNames:
    """Names the full pages of token lists by a keyed hash of all that leads up to each page's end.

    The prefix cache compares whole pages after equal pages, so a page's name can stand in for its tokens. The
    key is drawn here and never leaves: without it a guess at a prompt cannot be compared with a name.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._key = secrets.token_bytes(32)

    def chain(self, salt: str) -> "PageChain":
        """The empty beginning of all token lists with this salt."""
        chain = blake2b(key=self._key, digest_size=NAME_BYTES)
        salt_bytes = salt.encode()
        chain.update(len(salt_bytes).to_bytes(8, "little") + salt_bytes)
        return PageChain(chain, self._page_size)


class PageChain:
    """The names of one token list's pages, page after page."""

    def __init__(self, chain: blake2b, page_size: int) -> None:
        self._chain = chain
        self._page_size = page_size

    def fork(self) -> "PageChain":
        """The same beginning, to be continued otherwise."""
        return PageChain(self._chain.copy(), self._page_size)

    def extend(self, token_ids: Sequence[int]) -> list[int]:
        """The names of the full pages of the list's next tokens; what is left over is to be given again."""
        size = self._page_size
        ends = range(size, len(token_ids) + 1, size)
        return [self._next(token_ids[end - size : end]) for end in ends]

    def _next(self, page: Sequence[int]) -> int:
        self._chain.update(array("q", page).tobytes())
        return int.from_bytes(self._chain.digest(), "little")
