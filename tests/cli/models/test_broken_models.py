"""Models that are broken: one line names the file and what is wrong, the exit code is 1, nothing is left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from legato.cli.main import main
from tests.tiny_model import MIXTRAL, write_tiny_model

WEIGHTS = "model.safetensors"
EMBEDDINGS, NORM = "model.embed_tokens.weight", "model.norm.weight"
EXPERTS = "model.layers.1.block_sparse_moe."


def cut(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return spoil


def change_tensor(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = safetensors.numpy.load_file(folder / WEIGHTS)
        tensors[name] = change(tensors[name])
        safetensors.numpy.save_file(tensors, folder / WEIGHTS)

    return spoil


def change_config(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_bytes())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return spoil


def mixtral(spoil: Callable[[Path], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        spoil(write_tiny_model(folder, **MIXTRAL))

    return write


def leave_out_tensor(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = safetensors.numpy.load_file(folder / WEIGHTS)
        del tensors[name]
        safetensors.numpy.save_file(tensors, folder / WEIGHTS)

    return spoil


def with_nan(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flat[-1] = np.nan
    return values


def leave_out_shard(folder: Path) -> None:
    index = {"weight_map": dict.fromkeys((EMBEDDINGS, NORM), "model-00002-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def as_bin(spoil: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tensors = {
            name: torch.tensor(each) for name, each in safetensors.numpy.load_file(folder / WEIGHTS).items()
        }
        (folder / WEIGHTS).unlink()
        torch.save(spoil(tensors), folder / "pytorch_model.bin")

    return write


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "config cut off": (cut("config.json"), "config.json", "is not JSON"),
    "config empty": (cut("config.json", 0), "config.json", "is not JSON"),
    "unknown architecture": (change_config(architectures=["X"]), "config.json", "'X' is not supported"),
    "no heads": (change_config(num_attention_heads=0), "config.json", "num_attention_heads is 0"),
    "quantised unreadably": (
        change_config(quantization_config={"quant_method": "fp8"}), "config.json", "is 'fp8'",
    ),
    "larger vocabulary": (change_config(vocab_size=9999), WEIGHTS, f"'{EMBEDDINGS}' has shape"),
    "smaller vocabulary": (change_config(vocab_size=100), "", "the model's vocabulary ends at 99"),
    "more layers": (
        change_config(num_hidden_layers=5), "", "is missing: config.json is of another model",
    ),
    "wrong width": (change_config(intermediate_size=128), WEIGHTS, "has shape"),
    "weights cut off in their header": (cut(WEIGHTS, 0.001), WEIGHTS, "in its header; download it again"),
    "weights cut off in their numbers": (cut(WEIGHTS), WEIGHTS, "was a download cut off?"),
    "weights empty": (cut(WEIGHTS, 0), WEIGHTS, "is empty; download it again"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "", "nor pytorch_model.bin, nor the index"),
    "shard missing": (leave_out_shard, "model-00002-of-00002.safetensors", "cannot read"),
    "wrong shape": (change_tensor(NORM, lambda each: each[:-1]), WEIGHTS, f"'{NORM}' has shape"),
    "wrong type": (
        change_tensor(NORM, lambda each: each.astype(np.int64)), WEIGHTS, f"'{NORM}' is I64",
    ),
    "nan": (change_tensor(EMBEDDINGS, with_nan), WEIGHTS, f"'{EMBEDDINGS}' holds numbers that are"),
    "nan in halves": (
        change_tensor(EMBEDDINGS, lambda each: with_nan(each.astype(np.float16))), WEIGHTS, "not finite",
    ),
    "minus infinity": (
        change_tensor(NORM, lambda each: np.full_like(each, -np.inf, np.float16)), WEIGHTS, "not finite",
    ),
    "expert missing": (
        mixtral(leave_out_tensor(f"{EXPERTS}experts.3.w2.weight")), "",
        f"tensor '{EXPERTS}experts.3.w2.weight' is missing",
    ),
    "wrong number of experts": (
        mixtral(change_config(num_local_experts=5)), WEIGHTS, "gate.weight' has shape [4, 64]",
    ),
    "nan in an expert": (
        mixtral(change_tensor(f"{EXPERTS}experts.0.w1.weight", with_nan)), WEIGHTS,
        f"'{EXPERTS}experts.0.w1.weight' holds numbers that are",
    ),
    "tokenizer cut off": (cut("tokenizer.json"), "tokenizer.json", "tokenizer.json"),
    "pickle of something else": (
        as_bin(lambda tensors: {"model": tensors}), "pytorch_model.bin", "no tensors under names",
    ),
    "pickle of a module": (
        as_bin(lambda tensors: torch.nn.Linear(2, 2)), "pytorch_model.bin", "asks for torch.nn.modules",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_model_is_told_of_in_one_line(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: str,
) -> None:
    spoil, name, complaint = BROKEN[fault]
    home, folder = tmp_path / "home", tmp_path / "tiny"
    monkeypatch.setenv("LEGATO_HOME", str(home))
    shutil.copytree(tiny_model, folder)
    spoil(folder)
    before = sorted(tmp_path.rglob("*"))

    code = main(["models", "check", str(folder), "--max-model-len", "16", "--backend", "reference"])

    told = capsys.readouterr()
    assert code == 1
    assert told.out == ""
    *steps, line = told.err.splitlines()
    assert all(step.startswith("checking tiny: ") for step in steps)
    assert line.startswith("legato: error: ")
    assert str(folder / name) in line
    assert complaint in line
    assert sorted(tmp_path.rglob("*")) == before


def test_server_of_a_broken_model_ends_with_the_same_line(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_model, folder)
    change_tensor(EMBEDDINGS, with_nan)(folder)
    command = [sys.executable, "-m", "legato", "serve", str(folder), "--port", "0"]
    environment = os.environ | {"LEGATO_HOME": str(tmp_path / "home")}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ended.returncode == 1
    assert ended.stdout == ""
    last = ended.stderr.splitlines()[-1]
    where = f"{folder / WEIGHTS}: tensor '{EMBEDDINGS}'"
    assert last == f"legato: error: {where} holds numbers that are not finite"
    assert not (tmp_path / "home").exists()
