"""Where the time of a request goes in the engine, under a clock of whole seconds: every cause, no gap."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from legato.core.timing import Course, Part, Stretch
from legato.engine.core import Core
from legato.ipc.messages import AddRequest
from tests.engine.scripted import ScriptedExecutor, make_message, scripted_core


@dataclass
class Engine:
    """A core whose steps take a second each; `courses` is what it has told of each request."""

    core: Core
    now: float = 100.0
    courses: dict[str, Course] = field(default_factory=dict)

    def add(self, *messages: AddRequest) -> None:
        for message in messages:
            self.core.add(message)
            self.courses[message.request_id] = Course(self.now)

    def step(self) -> None:
        self.now += 1.0
        for output in self.core.step():
            assert output.course is not None
            self.hear(output.request_id, output.course)

    def hear(self, request_id: str, stretch: Stretch) -> None:
        assert stretch.start == self.courses[request_id].until
        assert sum(part.seconds for part in stretch.parts) == stretch.end - stretch.start
        self.courses[request_id].extend(stretch)

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def causes(self, request_id: str) -> list[tuple[str, float]]:
        return [(part.cause, part.seconds) for part in self.courses[request_id].parts]

    def part(self, request_id: str, cause: str) -> Part:
        [part] = [part for part in self.courses[request_id].parts if part.cause == cause]
        return part


class Builder:
    """Implements Grammars: builds each when it is told to."""

    def __init__(self, built: "Future[None]") -> None:
        self._built = built

    def prepare(self, grammar: str) -> "Future[None]":
        return self._built


def make_engine(**settings: object) -> Engine:
    engine = Engine(core=None)  # type: ignore[arg-type]
    engine.core = scripted_core(ScriptedExecutor(), clock=lambda: engine.now, **settings)  # type: ignore[arg-type]
    return engine


def test_request_alone_is_computed_all_the_time() -> None:
    engine = make_engine()
    engine.add(make_message("a", prompt_len=20, max_tokens=4))
    engine.run()
    assert engine.courses["a"].parts == [
        Part("prefill", 2.0, steps=2, tokens=20),
        Part("decode", 3.0, steps=3, tokens=3),
    ]


def test_prompts_of_others_in_a_step_are_told_to_those_that_decode() -> None:
    engine = make_engine()
    engine.add(make_message("a", max_tokens=4))
    engine.step()
    engine.add(make_message("b", prompt_len=10, first_id=50, max_tokens=1))
    engine.run()
    assert engine.part("a", "decode") == Part(
        "decode", 3.0, steps=3, tokens=3, others=1, other_tokens=10, mixed_steps=1, mixed_s=1.0
    )
    assert engine.courses["b"].parts == [Part("prefill", 1.0, steps=1, tokens=10, others=1, other_tokens=1)]


def test_who_waits_for_a_row_is_told_so_and_how_many_were_before() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add(*(make_message(each, first_id=10 * n, max_tokens=3) for n, each in enumerate("abc", start=1)))
    engine.run()
    assert engine.causes("c") == [("wait_row", 6.0), ("prefill", 1.0), ("decode", 2.0)]
    assert engine.part("c", "wait_row").others == 2


def test_who_comes_in_the_midst_of_a_step_waits_for_its_end() -> None:
    engine = make_engine(lookahead=1)
    engine.add(make_message("a", max_tokens=8))
    engine.step()
    engine.step()
    engine.now += 0.25
    engine.add(make_message("b", first_id=50, max_tokens=2))
    engine.run()
    assert engine.causes("b") == [("wait_step", 1.0), ("prefill", 1.0), ("decode", 1.0)]


def test_long_prompt_waits_for_budget_while_others_take_the_steps() -> None:
    engine = make_engine()
    engine.add(
        *(make_message(each, prompt_len=40, first_id=10 + n, max_tokens=1) for n, each in enumerate("abc"))
    )
    engine.run()
    assert engine.part("b", "prefill") == Part(
        "prefill", 5.0, steps=5, tokens=40, others=1, other_tokens=40, mixed_steps=5, mixed_s=5.0
    )
    assert engine.courses["c"].parts == [
        Part("wait_budget", 5.0, others=2),
        Part("prefill", 3.0, steps=3, tokens=40),
    ]


def test_prefix_that_others_have_computed_is_told_as_skipped() -> None:
    engine = make_engine()
    engine.add(make_message("a", prompt_len=9, max_tokens=1))
    engine.run()
    engine.add(make_message("b", prompt_len=9, max_tokens=1))
    engine.run()
    assert engine.courses["b"].parts == [Part("prefill", 1.0, steps=1, tokens=1, skipped=8)]


@pytest.mark.parametrize(("lookahead", "prefill_s"), [(0, 1.0), (1, 2.0)], ids=["plain", "overlap"])
def test_preempted_request_waits_and_is_computed_again(lookahead: int, prefill_s: float) -> None:
    engine = make_engine(num_pages=6, lookahead=lookahead)
    engine.add(
        *(make_message(each, prompt_len=8, first_id=10 * n, max_tokens=9) for n, each in enumerate("ab", 1))
    )
    engine.run()
    assert engine.causes("a") == [("prefill", prefill_s), ("decode", 8.0)]
    assert engine.causes("b") == [
        ("prefill", prefill_s),
        ("decode", 4.0),
        ("preempted", 4.0),
        ("recompute", prefill_s),
        ("decode", 3.0),
    ]


def test_who_waits_for_pages_is_told_so() -> None:
    engine = make_engine(num_pages=4)
    engine.add(make_message("a", prompt_len=12, max_tokens=3), make_message("b", prompt_len=8, first_id=50))
    engine.run()
    assert engine.causes("b") == [("wait_page", 4.0), ("prefill", 1.0), ("decode", 4.0)]


def test_request_that_goes_on_from_another_engine_is_recomputed() -> None:
    engine = make_engine()
    message = make_message("a", max_tokens=4)
    engine.add(AddRequest(**{**_fields(message), "is_resumed": True, "output_ids": [9, 9]}))
    engine.run()
    assert [cause for cause, _ in engine.causes("a")] == ["recompute", "decode"]


def test_who_waits_for_its_grammar_is_told_so() -> None:
    built: Future[None] = Future()
    engine = make_engine(grammars=Builder(built))
    engine.add(make_message("a", max_tokens=2, grammar="any"))
    engine.step()
    engine.now += 0.5
    assert engine.core.stats("question").courses["a"].parts == (Part("wait_grammar", 1.5),)
    built.set_result(None)
    engine.run()
    assert engine.causes("a") == [("wait_grammar", 2.5), ("prefill", 0.0), ("decode", 1.0)]


def test_abort_and_question_tell_what_was_not_told_yet() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add(make_message("a", max_tokens=9), make_message("b", first_id=50))
    engine.step()
    engine.step()
    engine.now += 0.5
    told = engine.core.stats("question").courses
    assert told["b"] == Stretch(100.0, 102.5, told["b"].parts)
    assert sum(part.seconds for part in told["b"].parts) == 2.5
    aborted = engine.core.abort("b")
    assert aborted.course == told["b"]
    assert engine.core.abort("b").course is None
    engine.run()
    assert "b" not in engine.core.stats("question").courses


def _fields(message: AddRequest) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}
