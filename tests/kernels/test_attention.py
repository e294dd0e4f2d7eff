"""Attention over pages agrees with numpy, and a token's bits depend on its own request's tokens alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.backends.reference import rotate, rotation_table
from legato.models.rope import plain_rope
from legato.program.ops import RopeConfig
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import int32, random_rows, relative_error

if TYPE_CHECKING:
    from legato.kernels._native import Device

PROMPT_LEN = 600  # three spans of 256 positions, the last of them cut
FORMATS = ["f32", "bf16", "i8"]


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
        kv_format: str = "bf16",
        rotation: tuple[np.ndarray, np.ndarray] | None = None,
        window: int = 0,
        cap: float = 0.0,
    ) -> None:
        num_tokens, half_dim = len(qkv), heads.head_dim // 2
        cos = np.ones((num_tokens, half_dim), np.float32)  # turns nothing
        cos, sin = rotation or (cos, np.zeros_like(cos))
        num_pages = 4 * -(-num_tokens // page_size)
        kv = device.kv_store(1, num_pages, page_size, heads.num_kv_heads, heads.head_dim, kv_format)
        self.tape = device.tape(kv, 4 * num_tokens, 4 * num_tokens)
        x = self.tape.embedding(device.pack("f32", qkv))
        attended = self.tape.attention(x, cos, sin, 0, heads.num_heads, heads.head_dim**-0.5, window, cap)
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


def kept(x: np.ndarray, kv_format: str) -> np.ndarray:
    """What becomes of keys or values [num_tokens, num_kv_heads, 1, head_dim] in a store of that format."""
    if kv_format == "bf16":
        bits = x.view(np.uint32)
        rounded: np.ndarray = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
        return rounded
    if kv_format == "i8":
        largest = np.abs(x).max(axis=-1, keepdims=True)
        whole: np.ndarray = np.rint(x * (np.float32(127) / largest)) * (largest / np.float32(127))
        return whole
    return x


def numpy_attention(
    qkv: np.ndarray, heads: Heads, kv_format: str = "f32", window: int = 0, cap: float = 0.0
) -> np.ndarray:
    """Every token's attention up to itself, in float64 on the keys and values that the store holds."""
    shape = (len(qkv), heads.num_kv_heads, -1, heads.head_dim)
    q_width, kv_width = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    q, k, v = (each.reshape(shape) for each in np.split(qkv, [q_width, q_width + kv_width], axis=1))
    q, k, v = (each.astype(np.float64) for each in (q, kept(k, kv_format), kept(v, kv_format)))
    scores = q.transpose(1, 2, 0, 3) @ k.transpose(1, 2, 3, 0) * heads.head_dim**-0.5
    if cap:
        scores = cap * np.tanh(scores / cap)
    if window:
        scores[..., np.tril(np.ones((len(qkv), len(qkv)), bool), -window)] = -np.inf
    scores[..., np.triu(np.ones((len(qkv), len(qkv)), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out: np.ndarray = (weights @ v[:, :, 0].transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3)
    return out.reshape(len(qkv), -1)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize(
    "heads",
    [Heads(9, 3, 64), Heads(2, 2, 8), Heads(5, 1, 24), Heads(14, 2, 72), Heads(8, 1, 256)],
    ids=lambda heads: f"{heads.num_heads}/{heads.num_kv_heads}x{heads.head_dim}",
)
def test_attention_agrees_with_numpy(device: "Device", heads: Heads, kv_format: str) -> None:
    qkv = random_rows(PROMPT_LEN, heads.qkv_width)
    tape = AttentionTape(device, qkv, heads, kv_format=kv_format)
    (found,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))
    assert relative_error(found, numpy_attention(qkv, heads, kv_format)) < 1e-5


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize(("window", "cap"), [(1, 0.0), (40, 2.0), (256, 0.0), (300, 0.5), (0, 2.0)])
def test_windows_and_caps_agree_with_numpy(device: "Device", window: int, cap: float, kv_format: str) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    tape = AttentionTape(device, qkv, kv_format=kv_format, window=window, cap=cap)
    (found,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))
    assert relative_error(found, numpy_attention(qkv, SMALL, kv_format, window, cap)) < 1e-5


@pytest.mark.parametrize("num_threads", [1, 9])
@pytest.mark.parametrize("window", [1, 40, 256, 300])
def test_bits_in_a_window_do_not_depend_on_chunks_pages_and_threads(
    device: "Device", window: int, num_threads: int
) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    tape = AttentionTape(device, qkv, page_size=PROMPT_LEN, window=window, cap=2.0)
    (wanted,) = tape.forward(Chunk(0, PROMPT_LEN, [0]))

    cut = AttentionTape(open_or_fail(num_threads, device.isa), qkv, page_size=6, window=window, cap=2.0)
    ends = [63, 64, 65, 255, 257, 512, *range(590, PROMPT_LEN + 1)]
    found = [cut.forward(Chunk(*part, cut.pages))[0] for part in pairwise([0, *ends])]

    assert np.concatenate(found).tobytes() == wanted.tobytes()


def test_what_a_head_has_beyond_its_pairs_stays(device: "Device") -> None:
    heads = Heads(2, 1, 24)
    qkv = random_rows(40, heads.qkv_width)
    cos, sin = rotation_table(RopeConfig(24, (1.0, 0.3, 0.1), 40, magnitude=1.5), 40)
    turned = np.concatenate([rotate(qkv[:, :72], cos, sin, 24), qkv[:, 72:]], axis=1)
    assert np.array_equal(turned[:, 6:24], qkv[:, 6:24])

    tape = AttentionTape(device, qkv, heads, kv_format="f32", rotation=(cos, sin))

    (found,) = tape.forward(Chunk(0, 40, tape.pages))
    assert relative_error(found, numpy_attention(turned, heads)) < 1e-5


@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_queries_and_keys_are_turned_by_their_positions(device: "Device", head_dim: int) -> None:
    heads = Heads(2, 1, head_dim)
    qkv = random_rows(40, heads.qkv_width)
    cos, sin = rotation_table(plain_rope(head_dim, 10_000.0, 40), 40)
    turned = np.concatenate(
        [rotate(qkv[:, : 3 * head_dim], cos, sin, head_dim), qkv[:, 3 * head_dim :]], axis=1
    )

    tape = AttentionTape(device, qkv, heads, kv_format="f32", rotation=(cos, sin))

    (found,) = tape.forward(Chunk(0, 40, tape.pages))
    assert relative_error(found, numpy_attention(turned, heads)) < 1e-5


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("page_size", [1, 16, 64, 100])
def test_bits_do_not_depend_on_pages(device: "Device", page_size: int, kv_format: str) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    plain = AttentionTape(device, qkv, page_size=PROMPT_LEN, kv_format=kv_format)
    (wanted,) = plain.forward(Chunk(0, PROMPT_LEN, [0]))

    paged = AttentionTape(device, qkv, page_size=page_size, kv_format=kv_format)

    shuffled = np.random.default_rng(1).permutation(paged.pages).tolist()
    (found,) = paged.forward(Chunk(0, PROMPT_LEN, shuffled))
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "cuts", [[1], [63, 64, 65], [255, 257, 400], [512, 513], range(1, PROMPT_LEN)], ids=str
)
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


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("num_threads", [1, 3, 9])
def test_bits_do_not_depend_on_how_many_threads_share_a_row(
    device: "Device", num_threads: int, kv_format: str
) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    tape = AttentionTape(device, qkv, kv_format=kv_format)
    (wanted,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))

    shared = AttentionTape(open_or_fail(num_threads, device.isa), qkv, kv_format=kv_format)
    shared.forward(Chunk(0, PROMPT_LEN - 1, tape.pages))
    (found,) = shared.forward(Chunk(PROMPT_LEN - 1, PROMPT_LEN, tape.pages))

    assert found[0].tobytes() == wanted[-1].tobytes()


@pytest.mark.parametrize("kv_format", FORMATS)
def test_what_a_page_held_before_changes_nothing(device: "Device", kv_format: str) -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    clean = AttentionTape(device, np.vstack([qkv, qkv]), kv_format=kv_format)
    (wanted,) = clean.forward(Chunk(0, 70, clean.pages))

    used = AttentionTape(device, np.vstack([qkv, np.full_like(qkv, np.nan)]), kv_format=kv_format)
    used.forward(Chunk(PROMPT_LEN, 2 * PROMPT_LEN, used.pages))

    (found,) = used.forward(Chunk(0, 70, used.pages[40:]))  # which hold NaN
    assert found.tobytes() == wanted.tobytes()


def test_one_key_far_above_the_others_takes_all(device: "Device") -> None:
    qkv = random_rows(PROMPT_LEN, SMALL.qkv_width)
    q_width, kv_width = SMALL.num_heads * SMALL.head_dim, SMALL.num_kv_heads * SMALL.head_dim
    qkv[-1, :q_width] = 1e4  # scores of up to 1e9: e to the power of that is no number
    qkv[100, q_width : q_width + kv_width] = 1e4
    tape = AttentionTape(device, qkv, kv_format="f32")

    tape.forward(Chunk(0, PROMPT_LEN - 1, tape.pages))
    (found,) = tape.forward(Chunk(PROMPT_LEN - 1, PROMPT_LEN, tape.pages))

    value = qkv[100, q_width + kv_width :].reshape(SMALL.num_kv_heads, 1, -1)
    group = SMALL.num_heads // SMALL.num_kv_heads
    assert found.reshape(SMALL.num_kv_heads, group, -1).tolist() == value.repeat(group, axis=1).tolist()


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_number_that_is_not_finite_shows_in_every_later_token(device: "Device", kv_format: str) -> None:
    qkv = random_rows(100, SMALL.qkv_width)
    qkv[70, -1] = np.nan
    tape = AttentionTape(device, qkv, kv_format=kv_format)
    (found,) = tape.forward(Chunk(0, 100, tape.pages))
    assert np.isnan(found).any(axis=1).tolist() == [row >= 70 for row in range(100)]


def test_keys_and_values_of_zeros_stay_zeros_in_int8(device: "Device") -> None:
    qkv = np.zeros((20, SMALL.qkv_width), np.float32)
    tape = AttentionTape(device, qkv, kv_format="i8")
    (found,) = tape.forward(Chunk(0, 20, tape.pages))
    assert not found.any()


@pytest.mark.parametrize(("kv_format", "bound"), [("bf16", 3e-3), ("i8", 1e-2)])
def test_narrow_formats_cost_little_accuracy(device: "Device", kv_format: str, bound: float) -> None:
    heads = Heads(9, 3, 64)
    qkv = random_rows(PROMPT_LEN, heads.qkv_width)
    tape = AttentionTape(device, qkv, heads, kv_format=kv_format)
    (found,) = tape.forward(Chunk(0, PROMPT_LEN, tape.pages))
    assert relative_error(found, numpy_attention(qkv, heads)) < bound


def test_a_store_of_another_format_is_refused(device: "Device") -> None:
    with pytest.raises(ValueError, match='format: "q8"; a K/V store keeps f32, bf16 or i8'):
        device.kv_store(1, 1, 16, 1, 64, "q8")


@pytest.mark.parametrize("head_dim", [7, 2048])
def test_a_head_that_tiles_cannot_hold_is_refused(device: "Device", head_dim: int) -> None:
    with pytest.raises(ValueError, match=f"head_dim: {head_dim}, must be even and at most 1024"):
        device.kv_store(1, 1, 16, 1, head_dim, "bf16")
