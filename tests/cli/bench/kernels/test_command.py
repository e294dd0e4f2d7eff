"""`legato bench kernels` on a small model: every figure is there, finite and positive."""

import json
import math
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.kernels.library import NoKernels


def test_every_operation_is_measured_and_written_down(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, data = tmp_path / "page.md", tmp_path / "data.json"
    command = [
        "bench",
        "kernels",
        "--model",
        str(tiny_model),
        "--quick",
        "--threads",
        "1",
        "--formats",
        "q4,f32",
    ]
    assert main([*command, "--output", str(page), "--json", str(data)]) == 0
    told = capsys.readouterr().out
    assert told.strip() in page.read_text()
    written = json.loads(data.read_text())
    ceilings = written["ceilings"]
    timings = written["timings"]
    figures = [ceilings["read_rate"], *ceilings["op_rates"].values()]
    figures += [seconds for timing in timings for seconds in timing["seconds"]]
    figures += [timing["share"] for timing in timings]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert {timing["contestant"] for timing in timings} >= {"", "legato f32", "legato q4", "numpy f32"}
    assert {timing["name"] for timing in timings if timing["contestant"] == "legato q4"} == {
        "q_proj + k_proj + v_proj", "o_proj", "gate_proj + up_proj", "down_proj", "head",
        "legato q4",
    }  # fmt: skip
    assert {timing["name"].partition(",")[0] for timing in timings if not timing["contestant"]} == {
        "rms_norm", "silu", "RoPE", "attention", "sampler",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--formats", "f32,q3"], "--formats f32,q3: expected some of f32,bf16,q4,q5,q6,q8,i8"),
        (["--formats", ","], "--formats ,: expected some of"),
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--reps", "0"], "--reps 0: must be at least 1"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kernels", *flags]) == 2
    assert error in capsys.readouterr().err


def test_without_kernels_there_is_nothing_to_measure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("legato.kernels.library.open_device", lambda _: NoKernels("there is no compiler"))
    assert main(["bench", "kernels", "--model", str(tiny_model)]) == 1
    assert "there is nothing to measure: there is no compiler" in capsys.readouterr().err
