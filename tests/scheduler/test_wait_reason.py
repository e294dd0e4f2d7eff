"""Why those who wait do: one verdict a step."""

from typing import Any

import pytest

from legato.core.plan import WaitReason
from legato.scheduler.admission import Admission
from legato.scheduler.step_draft import StepDraft
from tests.scheduler.driver import make_request, make_scheduler

NOBODY: dict[str, Any] = {"is_trial": False, "num_waiting": 0, "num_free_rows": 4, "is_round": False}


@pytest.mark.parametrize(
    ("changes", "tokens_left", "heavy_left", "reason"),
    [
        ({}, 8, 8, WaitReason.STEP),
        ({"num_waiting": 1, "is_trial": True, "num_free_rows": 0}, 0, 8, WaitReason.SUSPECT),
        ({"num_waiting": 1, "num_free_rows": 0}, 0, 8, WaitReason.BUDGET),
        ({"num_waiting": 1, "num_free_rows": 0, "is_round": True}, 8, 8, WaitReason.ROUND),
        ({"num_waiting": 1, "num_free_rows": 0}, 8, 8, WaitReason.ROW),
        ({"num_waiting": 1}, 8, 0, WaitReason.SHARE),
        ({"num_waiting": 1}, 8, 8, WaitReason.PAGE),
    ],
)
def test_first_reason_that_holds_is_told(
    changes: dict[str, Any], tokens_left: int, heavy_left: int, reason: WaitReason
) -> None:
    scheduler = make_scheduler()
    draft = StepDraft(0, 8, 8)
    draft.tokens_left, draft.heavy_left, draft.light = tokens_left, heavy_left, frozenset({"light"})
    assert Admission(scheduler.config, scheduler.kv).wait_reason(draft, **NOBODY | changes) is reason


def test_plan_carries_it() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_request("a"))
    assert scheduler.plan().waits_for is WaitReason.STEP
    scheduler.add(make_request("b"))
    assert scheduler.plan().waits_for is WaitReason.ROW
