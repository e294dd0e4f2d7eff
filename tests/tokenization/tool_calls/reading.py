"""Reads an answer as a server does, cut into pieces, and joins what comes out as a client does."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from legato.tokenization.tool_calls.call_reader import CallReader

NAMES = ("f", "get_weather")


class Read(NamedTuple):
    """What was said, what was called as (name, arguments), and whether the calls are whole."""

    text: str
    calls: list[tuple[str, str]]
    has_calls: bool


def read(kind: type[CallReader], answer: str, cuts: Sequence[int] = ()) -> Read:
    """`cuts` are the places where the answer is cut into pieces."""
    ids = (f"id{number}" for number in itertools.count())
    reader = kind(NAMES, lambda: next(ids))
    ends = [0, *sorted(cuts), len(answer)]
    pieces = [reader.push(answer[start:end]) for start, end in itertools.pairwise(ends)]
    pieces.append(reader.finish())
    calls: list[list[str]] = []
    for delta in itertools.chain.from_iterable(piece.tool_calls for piece in pieces):
        if delta.position == len(calls):
            assert (delta.id, bool(delta.name)) == (f"id{len(calls)}", True)
            calls.append([delta.name or "", ""])
        else:
            assert (delta.position, delta.id, delta.name) == (len(calls) - 1, None, None)
        calls[-1][1] += delta.arguments
    text = "".join(piece.text for piece in pieces)
    return Read(text, [(name, arguments) for name, arguments in calls], reader.has_calls)


def read_whole(kind: type[CallReader], answer: str) -> Read:
    """What every way of cutting the answer must give; checked for pieces of one and of three characters."""
    whole = read(kind, answer)
    assert read(kind, answer, range(1, len(answer))) == whole
    assert read(kind, answer, range(3, len(answer), 3)) == whole
    return whole
