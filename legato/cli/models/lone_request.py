"""One request computed chunk by chunk on a compiled program, with no engine around it."""

from collections.abc import Iterator, Sequence

import numpy as np

from legato.backends.backend import CompiledProgram, ForwardInputs

CHUNK_LEN = 128  # tokens whose logits are in memory at once
PAGE_SIZE = 16


def pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)


def chunk_logits(program: CompiledProgram, token_ids: Sequence[int], start: int = 0) -> Iterator[np.ndarray]:
    """Logits of the tokens from `start` on: [up to CHUNK_LEN, vocab_size] float32, chunk after chunk.

    The keys and values of those before it are in the store, from its first page on.
    """
    page_table = np.arange(pages_for(len(token_ids)), dtype=np.int32)[None]
    for begin in range(start, len(token_ids), CHUNK_LEN):
        chunk = np.array(token_ids[begin : begin + CHUNK_LEN], np.int32)
        end = begin + len(chunk)
        inputs = ForwardInputs(
            token_ids=chunk,
            positions=np.arange(begin, end, dtype=np.int32),
            query_starts=np.array([0, len(chunk)], np.int32),
            kv_lens=np.array([end], np.int32),
            page_table=page_table,
            sample_rows=np.arange(len(chunk), dtype=np.int32),
        )
        yield program.forward(inputs)


def continue_greedily(
    program: CompiledProgram, prompt_ids: Sequence[int], max_len: int, eos_ids: frozenset[int]
) -> list[int]:
    """The most likely tokens after a prompt, until one of `eos_ids` or `max_len` tokens in all."""
    token_ids, start = list(prompt_ids), 0
    while len(token_ids) < max_len:
        *_, logits = chunk_logits(program, token_ids, start)
        start = len(token_ids)
        token_ids.append(int(logits[-1].argmax()))
        if token_ids[-1] in eos_ids:
            break
    return token_ids[len(prompt_ids) :]
