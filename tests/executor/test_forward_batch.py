"""A plan as arrays."""

import numpy as np

from legato.core.sampling_params import SamplingParams
from legato.executor.forward_batch import BatchBuilder
from legato.sampling.row_sampler import SampleRow
from legato.sampling.scoring import ScoredChunk
from tests.executor.plans import make_chunk, make_plan, make_row_start


def test_prefill_chunk_and_decodes_in_one_batch() -> None:
    builder = BatchBuilder(num_rows=4, max_pages=5)
    builder.build(
        make_plan(
            make_chunk("a", 0, range(3), pages=(7,), prompt=[1, 2, 3]),
            make_chunk("b", 2, range(6), pages=(8, 9), prompt=[1, 2, 3, 4, 5, 6]),
        )
    )
    batch = builder.build(
        make_plan(
            make_chunk("b", 2, range(6, 7)),
            make_chunk("a", 0, range(3, 4), pages=(4,), page_start=1),
            make_chunk("c", 1, range(2, 5), pages=(5, 6), samples=False, prompt=[9, 9, 9, 9, 9, 9]),
            step=17,
        )
    )
    assert batch.step == 17
    assert batch.row_starts == ((1, make_row_start([9, 9, 9, 9, 9, 9])),)
    assert batch.token_rows.tolist() == [2, 0, 1, 1, 1]
    assert batch.positions.tolist() == [6, 3, 2, 3, 4]
    assert batch.query_starts.tolist() == [0, 1, 2, 5]
    assert batch.kv_lens.tolist() == [7, 4, 5]
    assert batch.page_table.tolist() == [[8, 9, 0, 0, 0], [7, 4, 0, 0, 0], [5, 6, 0, 0, 0]]
    assert batch.sampling.rows == (
        SampleRow("b", 2, 7, make_row_start([1, 2, 3, 4, 5, 6])),
        SampleRow("a", 0, 4, make_row_start([1, 2, 3])),
    )
    assert batch.sample_rows.tolist() == [0, 1]
    arrays = [getattr(batch, name) for name in batch.__slots__]
    assert {array.dtype for array in arrays if isinstance(array, np.ndarray)} == {np.dtype(np.int32)}


def test_sampled_row_is_the_last_of_its_chunk() -> None:
    batch = BatchBuilder(num_rows=2, max_pages=1).build(
        make_plan(
            make_chunk("a", 0, range(3), samples=False, prompt=[1] * 9),
            make_chunk("b", 1, range(4), prompt=[1] * 4),
        )
    )
    assert batch.sample_rows.tolist() == [6]


def test_step_inside_a_prompt_samples_nothing() -> None:
    batch = BatchBuilder(num_rows=1, max_pages=1).build(
        make_plan(make_chunk("a", 0, range(3), samples=False, prompt=[1] * 9))
    )
    assert batch.sampling.rows == ()
    assert batch.sample_rows.shape == (0,)
    assert batch.sample_rows.dtype == np.int32


def test_page_table_of_a_batch_does_not_move_with_the_next_one() -> None:
    builder = BatchBuilder(num_rows=1, max_pages=3)
    first = builder.build(make_plan(make_chunk("a", 0, range(2), pages=(5,), prompt=[1, 2])))
    second = builder.build(make_plan(make_chunk("a", 0, range(2, 3), pages=(6, 7), page_start=1)))
    assert first.page_table.tolist() == [[5, 0, 0]]
    assert second.page_table.tolist() == [[5, 6, 7]]


def test_row_is_entered_anew_by_the_next_request() -> None:
    builder = BatchBuilder(num_rows=1, max_pages=3)
    builder.build(make_plan(make_chunk("a", 0, range(2), pages=(5, 6, 7), prompt=[1, 2])))
    batch = builder.build(make_plan(make_chunk("b", 0, range(1), pages=(2,), prompt=[1])))
    assert batch.page_table[0, 0] == 2
    assert batch.kv_lens.tolist() == [1]


def test_settings_of_who_samples_are_ready_before_any_logits() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, min_tokens=2, presence_penalty=1)
    batch = BatchBuilder(num_rows=2, max_pages=1).build(
        make_plan(
            make_chunk("greedy", 0, range(2), prompt=[1, 2]),
            make_chunk("drawn", 1, range(3), prompt=[1, 2, 3], params=params),
        )
    )
    settings = batch.sampling.settings
    assert settings.temperatures.tolist() == [0, 0.5]
    assert settings.top_ks.tolist() == [0, 3]
    assert settings.penalties.tolist() == [[1, 0, 0], [1, 0, 1]]
    assert batch.sampling.penalized == (1,)


def test_rows_that_score_prompts_follow_those_that_sample() -> None:
    builder = BatchBuilder(num_rows=3, max_pages=2)
    scoring = SamplingParams(prompt_logprobs=4)
    first = builder.build(
        make_plan(
            make_chunk(
                "a", 0, range(3), samples=False, prompt=list(range(10, 18)), params=scoring, scored=range(3)
            ),
            make_chunk("b", 1, range(4), prompt=[1, 2, 3, 4]),
        )
    )
    assert first.sample_rows.tolist() == [6, 0, 1, 2]
    assert first.scoring.chunks == (ScoredChunk("a", (11, 12, 13), 4),)
    last = builder.build(
        make_plan(
            make_chunk("b", 1, range(4, 5)),
            make_chunk("a", 0, range(3, 8), scored=range(4, 7)),  # 3 was scored before a preemption
            make_chunk(
                "c",
                2,
                range(2),
                samples=False,
                prompt=[5, 6],
                params=scoring,
                scored=range(1),
                completes=True,
            ),
        )
    )
    assert last.sample_rows.tolist() == [0, 5, 2, 3, 4, 6]
    assert last.sample_rows.dtype == np.int32
    assert [row.request_id for row in last.sampling.rows] == ["b", "a"]
    assert last.scoring.chunks == (ScoredChunk("a", (15, 16, 17), 4), ScoredChunk("c", (6,), 4))
    assert last.scoring.token_ids.tolist() == [15, 16, 17, 6]
    assert last.scoring.num_logprobs.tolist() == [4, 4, 4, 4]
    assert (first.completed, last.completed) == ((), ("c",))
