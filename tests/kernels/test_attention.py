"""Attention over pages agrees with numpy, and a token's bits depend on its own request's tokens alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.backends.reference import rotate, rotation_table
from legato.program.ops import RopeConfig
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import int32, random_rows, relative_error

if TYPE_CHECKING:
    from legato.kernels._native import Device

PROMPT_LEN = 150  # three spans of 64 positions, the last of them cut


@dataclass(frozen=True)
class Heads:
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


SMALL = Heads(6, 2, 16)


@dataclass(frozen=True)
class Chunk:
    """Rows [start, end) of the tokens' q, k and v, computed in one step by the request on `pages`."""

    start: int
    end: int
    pages: Sequence[int]


class AttentionTape:
    """Attention alone: a step's tokens are rows of `qkv` [num_tokens, qkv_width], at the same positions."""

    def __init__(
        self,
        device: "Device",
        qkv: np.ndarray,
        heads: Heads = SMALL,
        *,
        page_size: int = 16,
        is_bf16: bool = True,
        rotation: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        num_tokens, half_dim = len(qkv), heads.head_dim // 2
        cos = np.ones((num_tokens, half_dim), np.float32)  # turns nothing
        cos, sin = rotation or (cos, np.zeros_like(cos))
        num_pages = 4 * -(-num_tokens // page_size)
        kv = device.kv_store(1, num_pages, page_size, heads.num_kv_heads, heads.head_dim, "bf16" if is_bf16 else "f32")
        self.tape = device.tape(kv, 4 * num_tokens, 4 * num_tokens)
        x = self.tape.embedding(device.pack("f32", qkv))
        attended = self.tape.attention(x, cos, sin, 0, heads.num_heads, heads.head_dim**-0.5)
        self.tape.finish(self.tape.select(attended))
        self.pages = range(num_pages // 4)

    def forward(self, *chunks: Chunk) -> list[np.ndarray]:
        """One step; for each chunk [its length, num_heads * head_dim]."""
        rows = np.concatenate([np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks])
        starts = np.cumsum([0, *(chunk.end - chunk.start for chunk in chunks)], dtype=np.int32)
        page_table = np.zeros((len(chunks), max(len(chunk.pages) for chunk in chunks)), np.int32)
        for row, chunk in zip(page_table, chunks, strict=True):
            row[: len(chunk.pages)] = chunk.pages
        kv_lens = int32(*(chunk.end for chunk in chunks))
        all_rows = np.arange(len(rows), dtype=np.int32)
        out = self.tape.forward(rows, rows, starts, kv_lens, page_table, all_rows)
        return np.split(out.copy(), starts[1:-1])


def round_to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    return rounded


def numpy_attention(qkv: np.ndarray, heads: Heads, is_bf16: bool) -> np.ndarray:
    """Every token's attention to all up to itself, in float64 on the keys and values that the store holds."""
    shape = (len(qkv), heads.num_kv_heads, -1, heads.head_dim)
    q_width, kv_width = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    q, k, v = np.split(qkv, [q_width, q_width + kv_width], axis=1)
    if is_bf16:
        k, v = round_to_bf16(k), round_to_bf16(v)
    q, k, v = (each.reshape(shape).astype(np.float64) for each in (q, k, v))
    scores = np.einsum("ihgd,jhxd->hgij", q, k) * heads.head_dim**-0.5
    scores[..., np.triu(np.ones((len(qkv), len(qkv)), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out: np.ndarray = np.einsum("hgij,jhxd->ihgd", weights, v)
    return out.reshape(len(qkv), -1)


@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize(
    "heads",
    [Heads(9, 3, 64), Heads(2, 2, 8), Heads(5, 1, 24), Heads(14, 2, 72), Heads(8, 1, 256)],
    ids=lambda heads: f"{heads.num_heads}/{heads.num_kv_heads}x{heads.head_dim}",
)
def test_attention_agrees_with_numpy(device: "Device", heads: Heads, is_bf16: bool) -> None:
    qkv = random_rows(PROMPT_LEN, heads.qkv_width)
    tape = AttentionTape(device, qkv, heads, is_bf16=is_bf16)
    (found,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))
    assert relative_error(found, numpy_attention(qkv, heads, is_bf16)) < 1e-5


@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_queries_and_keys_are_turned_by_their_positions(device: "Device", head_dim: int) -> None:
    heads = Heads(2, 1, head_dim)
    qkv = random_rows(40, heads.qkv_width)
    cos, sin = rotation_table(RopeConfig(head_dim, 10_000.0, 40), 40)
    turned = np.concatenate([rotate(qkv[:, : 3 * head_dim], cos, sin), qkv[:, 3 * head_dim :]], axis=1)

    tape = AttentionTape(device, qkv, heads, is_bf16=False, rotation=(cos, sin))

    (found,) = tape.forward(Chunk(0, 40, tape.pages))
    assert relative_error(found, numpy_attention(turned, heads, is_bf16=False)) < 1e-5


@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize("page_size", [1, 16, 64, 100])
def test_bits_do_not_depend_on_pages(device: "Device", page_size: int, is_bf16: bool) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    plain = AttentionTape(device, qkv, page_size=PROMPT_LEN, is_bf16=is_bf16)
    (wanted,) = plain.forward(Chunk(0, PROMPT_LEN, [0]))

    paged = AttentionTape(device, qkv, page_size=page_size, is_bf16=is_bf16)

    shuffled = np.random.default_rng(1).permutation(paged.pages).tolist()
    (found,) = paged.forward(Chunk(0, PROMPT_LEN, shuffled))
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("cuts", [[1], [63, 64, 65], [20, 40, 149], range(1, PROMPT_LEN)], ids=str)
def test_bits_do_not_depend_on_chunks(device: "Device", cuts: Sequence[int]) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    tape = AttentionTape(device, qkv)
    (wanted,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))

    chunked = AttentionTape(device, qkv)
    ends = [*cuts, PROMPT_LEN]
    found = [
        chunked.forward(Chunk(*ends_of, tape.pages))[0] for ends_of in zip([0, *cuts], ends, strict=True)
    ]

    assert np.concatenate(found).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_bits_do_not_depend_on_other_requests_and_threads(device: "Device", num_threads: int) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    tape = AttentionTape(device, qkv)
    (wanted,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))

    other = AttentionTape(open_or_fail(num_threads, device.isa), qkv)
    chunks = [
        Chunk(0, end, [page + i * len(other.pages) for page in other.pages])
        for i, end in enumerate([1, 70, PROMPT_LEN, 99])
    ]
    found = other.forward(*chunks)

    assert [each.tobytes() for each in found] == [wanted[: len(each)].tobytes() for each in found]


def test_what_a_page_held_before_changes_nothing(device: "Device") -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    clean = AttentionTape(device, np.vstack([qkv, qkv]))
    (wanted,) = clean.forward(Chunk(0, 70, clean.pages))

    used = AttentionTape(device, np.vstack([qkv, np.full_like(qkv, np.nan)]))
    used.forward(Chunk(PROMPT_LEN, 2 * PROMPT_LEN, used.pages))

    (found,) = used.forward(Chunk(0, 70, used.pages[5:]))  # on pages 5 to 9, which hold NaN
    assert found.tobytes() == wanted.tobytes()


def test_one_key_far_above_the_others_takes_all(device: "Device") -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    q_width, kv_width = SMALL.num_heads * SMALL.head_dim, SMALL.num_kv_heads * SMALL.head_dim
    qkv[-1, :q_width] = 1e4  # scores of up to 1e9: e to the power of that is no number
    qkv[100, q_width : q_width + kv_width] = 1e4
    tape = AttentionTape(device, qkv, is_bf16=False)

    tape.forward(Chunk(0, PROMPT_LEN - 1, tape.pages))
    (found,) = tape.forward(Chunk(PROMPT_LEN - 1, PROMPT_LEN, tape.pages))

    value = qkv[100, q_width + kv_width :].reshape(SMALL.num_kv_heads, 1, -1)
    group = SMALL.num_heads // SMALL.num_kv_heads
    assert found.reshape(SMALL.num_kv_heads, group, -1).tolist() == value.repeat(group, axis=1).tolist()


def test_a_number_that_is_not_finite_shows_in_every_later_token(device: "Device") -> None:
    qkv = random_rows(100, SMALL.qkv_width)
    qkv[70, -1] = np.nan
    tape = AttentionTape(device, qkv)
    (found,) = tape.forward(Chunk(0, 100, tape.pages))
    assert np.isnan(found).any(axis=1).tolist() == [row >= 70 for row in range(100)]
