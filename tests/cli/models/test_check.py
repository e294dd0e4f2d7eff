"""`legato models check`: the report, its exit code, and what cannot be checked."""

import re
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.cli.models.check import TEXT, lines_of
from legato.cli.models.fidelity import Fidelity, TextErrors, WeightErrors
from tests.tiny_model import MIXTRAL, write_tiny_model


def check(model: Path, *flags: str) -> int:
    return main(["models", "check", str(model), "--max-model-len", "64", *flags])


@pytest.mark.parametrize(
    ("flags", "mode", "format"),
    [
        ([], "auto", "bf16"),
        (["--dtype", "bfloat16"], "bfloat16", "bf16"),
        (["--dtype", "bfloat16", "--kv-cache-dtype", "int8"], "bfloat16-kv-int8", "bf16"),
        (["--quantization", "int8"], "int8", "q8"),
        (["--quantization", "int4"], "int4", "q4"),
    ],
)
def test_report_names_formats_and_errors(
    tiny_model: Path, flags: list[str], mode: str, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tiny_model, *flags) == 0
    told = capsys.readouterr()
    first, hashes, parameters, memory, _, head, *rows = told.out.splitlines()
    assert re.fullmatch(rf"{tiny_model.name}: cpu-\w+-{mode} against cpu-\w+-float32", first)
    assert head.split() == ["WEIGHT", "KEPT", "AS", "MEAN", "ERROR", "MAX", "ERROR"]
    down_proj = next(row.split() for row in rows if row.startswith("down_proj"))
    assert down_proj[1] == format
    assert 0 < float(down_proj[2]) <= float(down_proj[3]) < 0.1
    assert "next tokens over a text of 64:" in rows
    assert hashes.split(maxsplit=1) == ["hashes", "none published that legato knows"]
    assert re.fullmatch(r"  parameters         0\.\d million", parameters)
    assert re.fullmatch(r"  memory             0\.\d MB of weights, [\d.]+ kB a token", memory)
    *rows, _, question, words = rows
    assert question == "first words after: What is the capital of France?"
    assert words.startswith("  ")
    assert [re.sub(r"[-\d.]+", "N", row) for row in rows[-4:]] == [
        "  mean KL            N nats",
        "  max KL             N nats",
        "  perplexity         N, and N exact: ratio N",
        "  same first choice  N% of positions",
    ]
    parts = ["hashes", "weights", "packing", "text"]
    assert told.err == "".join(f"checking {tiny_model.name}: {part}\n" for part in parts)


def test_experts_are_one_kind_and_their_router_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(write_tiny_model(tmp_path / "tiny", **MIXTRAL), "--quantization", "int4") == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    kept = {row[0]: row[1] for row in rows if len(row) == 4}
    assert kept["router"] == "bf16"
    assert {kept[kind] for kind in ("gate_proj", "up_proj", "down_proj")} == {"q4"}


def test_columns_of_the_report_are_as_wide_as_they_need_to_be() -> None:
    weights = [
        WeightErrors("embed_positions", ("bf16", "q4", "q8"), 0.1, 0.2),
        WeightErrors("q", ("q4",), 0, 0),
    ]
    text = TextErrors(64, 0.1, 0.2, 2.0, 2.0, 1.0)
    found = Fidelity("int4", "float32", 10, 10, 10, weights, text, "a", "b")
    _, first, second = lines_of("tiny", found, is_verified=False)[5:8]
    assert first.split() == ["embed_positions", "bf16+q4+q8", "0.10000", "0.20000"]
    assert second.index("q4") == first.index("bf16")


def test_float32_is_exact(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tiny_model, "--dtype", "float32", "--max-kl", "0.000001") == 0
    assert "ratio 1.0000" in capsys.readouterr().out


def test_reference_checks_too(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tiny_model, "--backend", "reference", "--quantization", "int8", "--max-model-len", "20") == 0
    assert "reference-int8 against reference-float32" in capsys.readouterr().out


def test_error_above_the_limit_fails(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tiny_model, "--quantization", "int4", "--max-kl", "0") == 1
    assert re.search(r"the mean KL, [\d.]+ nats, is above --max-kl 0", capsys.readouterr().err)


@pytest.mark.parametrize("limit", ["-1", "nan"])
def test_limit_that_is_none_is_refused(
    tiny_model: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tiny_model, "--max-kl", limit) == 2
    assert f"--max-kl {limit}: must be 0 or more" in capsys.readouterr().err


def test_text_of_ones_own(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "own.txt"
    text.write_text("abcdefg")
    assert check(tiny_model, "--text", str(text)) == 0
    assert "next tokens over a text of 7:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "no text in UTF-8"),
        (b"a", "must be 2 tokens long at least, for the next one: it is 1"),
    ],
)
def test_text_that_cannot_be_used_is_named(
    tiny_model: Path, tmp_path: Path, content: bytes | None, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "own.txt"
    if content is not None:
        text.write_bytes(content)
    assert check(tiny_model, "--text", str(text)) == 2
    assert fault in capsys.readouterr().err


def test_model_without_a_tokenizer_names_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(write_tiny_model(tmp_path / "bare", has_tokenizer=False)) == 1
    assert "has no tokenizer for the text: name one with --tokenizer" in capsys.readouterr().err


def test_settings_that_contradict_each_other_are_refused(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tiny_model, "--quantization", "int8", "--dtype", "float32") == 2
    assert "--dtype float32 would decode them" in capsys.readouterr().err


def test_text_that_is_shipped_has_some_two_thousand_tokens() -> None:
    text = TEXT.read_text(encoding="utf-8")
    assert text.isascii()
    assert 8_000 < len(text) < 10_000
