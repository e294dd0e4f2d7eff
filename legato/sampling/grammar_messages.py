"""What the engine and its grammar worker tell each other; every question about a row has a ticket."""

from legato.ipc.messages import Message

# engine -> worker


class Prepare(Message, frozen=True):
    """Build this grammar, so that those who begin with it need not wait."""

    grammar: str


class Begin(Message, frozen=True):
    """The row has another owner, whose output so far is output_ids; which tokens may follow them?"""

    ticket: int
    row: int
    grammar: str
    output_ids: list[int]


class Advance(Message, frozen=True):
    """The row's owner has got one more token; which may follow it?"""

    ticket: int
    row: int
    token_id: int


ToWorker = Prepare | Begin | Advance

# worker -> engine


class Prepared(Message, frozen=True):
    """The grammar is built, or cannot be, as whoever begins with it is told."""

    grammar: str


class Mask(Message, frozen=True):
    """The tokens that may come next, a bit each, the first in the lowest; of whole 32-bit words."""

    ticket: int
    bits: bytes


class NoMask(Message, frozen=True):
    """No token may come next, for this reason."""

    ticket: int
    reason: str


FromWorker = Prepared | Mask | NoMask
