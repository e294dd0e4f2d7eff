"""What of a prompt others had too: whole spans from its beginning, of its own salt."""

from legato.ipc.prediction.recent_prompts import SPAN, RecentPrompts

PROMPT = list(range(1000, 1000 + 4 * SPAN))


def test_unknown_prompt_has_nothing_in_common() -> None:
    assert RecentPrompts(10_000).known_len(PROMPT, "") == 0


def test_shared_beginning_is_known_in_whole_spans() -> None:
    recent = RecentPrompts(10_000)
    recent.add(PROMPT, "")
    assert recent.known_len([*PROMPT[: 2 * SPAN + 5], 7, 8, 9], "") == 2 * SPAN
    assert recent.known_len([7, *PROMPT[1:]], "") == 0


def test_last_token_is_always_computed() -> None:
    recent = RecentPrompts(10_000)
    recent.add(PROMPT, "")
    assert recent.known_len(PROMPT, "") == len(PROMPT) - SPAN
    assert recent.known_len([*PROMPT, 7], "") == len(PROMPT)


def test_prompt_of_another_salt_is_not_known() -> None:
    recent = RecentPrompts(10_000)
    recent.add(PROMPT, "a")
    assert recent.known_len([*PROMPT, 7], "b") == 0


def test_what_the_store_has_no_room_for_is_forgotten_the_oldest_first() -> None:
    recent = RecentPrompts(2 * len(PROMPT))
    for first in (1, 2, 3):
        recent.add([first, *PROMPT[1:]], "")
    assert [recent.known_len([first, *PROMPT[1:], 7], "") for first in (1, 2, 3)] == [
        0,
        len(PROMPT),
        len(PROMPT),
    ]
