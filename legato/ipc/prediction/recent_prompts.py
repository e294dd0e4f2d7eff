"""What the prefix cache is likely to hold, as told by what was computed lately."""

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

SPAN = 64  # tokens; what is shared beyond whole spans is not seen


class RecentPrompts:
    """Digests of the beginnings of recent token lists, as many as the K/V store has room for.

    capacity_len  tokens in the K/V store
    The key of the digests is drawn here: nobody can make two prompts that look alike.
    """

    def __init__(self, capacity_len: int) -> None:
        self._max_spans = capacity_len // SPAN
        self._spans: OrderedDict[bytes, None] = OrderedDict()  # the last used one last
        self._key = secrets.token_bytes(16)

    def known_len(self, token_ids: Sequence[int], salt: str) -> int:
        """Tokens at the beginning that others had too; at least the last one is never among them."""
        num_spans = 0
        for digest in self._digests(token_ids[:-1], salt):
            if digest not in self._spans:
                break
            num_spans += 1
        return num_spans * SPAN

    def add(self, token_ids: Sequence[int], salt: str) -> None:
        for digest in self._digests(token_ids, salt):
            self._spans[digest] = None
            self._spans.move_to_end(digest)
        while len(self._spans) > self._max_spans:
            self._spans.popitem(last=False)

    def _digests(self, token_ids: Sequence[int], salt: str) -> list[bytes]:
        """One of each whole span, with all that stands before it."""
        running = blake2b(salt.encode(errors="surrogatepass"), digest_size=8, key=self._key)
        digests = []
        data = memoryview(array("I", token_ids))
        for start in range(0, len(data) - SPAN + 1, SPAN):
            running.update(data[start : start + SPAN])
            digests.append(running.copy().digest())
        return digests
