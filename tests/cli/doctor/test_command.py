"""What `legato doctor` tells: of this installation, this machine, and the variables that are set."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from legato import __version__
from legato.cli.doctor import installation, machine
from legato.cli.main import main
from legato.core.config import DEFAULT_MODEL
from legato.kernels.library import NoKernels, instruction_sets
from legato.kernels.threads import UsableCores, num_usable_cores

NO_KERNELS = NoKernels("there is no compiler. Install one")


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LEGATO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the command prints: what a line is about -> the rest of it."""
    assert main(["doctor"]) == 0
    lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    return {about: text.strip() for about, text in lines}


def test_tells_of_installation_machine_and_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys)
    assert found["legato"].startswith(__version__)
    assert sys.executable in found["python"]
    assert found["numpy"] == metadata.version("numpy")
    assert found["cores"].startswith(f"{num_usable_cores()} may compute: affinity allows")
    assert "GiB may be used" in found["memory"]
    assert found["processor"]
    assert found["cache folder"] == str(tmp_path / "legato")
    assert found["packed weights"] == f"0 files, 0 MiB, in {tmp_path / 'legato' / 'packed'}; may be deleted"
    assert found[f"model {DEFAULT_MODEL}"] == f"not here; this brings it: legato models pull {DEFAULT_MODEL}"
    assert found["variables"] == "no LEGATO_* variable is set"


def test_does_without_the_packages_that_may_be_missing() -> None:
    code = (
        "import sys\n"
        "from legato.cli.main import main\n"
        "code = main(['doctor'])\n"
        "print({'numpy', 'fastapi', 'pydantic', 'msgspec', 'tokenizers'} & set(sys.modules), code)"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.splitlines()[-1] == "set() 0"


# packages


def test_package_that_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["legato-absent-package>=2", "ruff>=0.11; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    found = told(capsys)
    assert found["legato-absent-package"].endswith("-m pip install 'legato-absent-package>=2'")
    assert "ruff" not in found


def test_checkout_that_is_not_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", fail)
    assert "pip install -e ." in told(capsys)["packages"]


# kernels


def test_the_best_instruction_set_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    best, *_ = possible = instruction_sets()
    found = told(capsys)
    assert found["kernels"] == "built"
    assert (
        found["instruction sets"]
        == f"{', '.join(possible)}; {best} computes, the best that this machine can run"
    )
    assert found["backend"] == "cpu: the C++ kernels"


def test_the_variable_is_named_as_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_ISA", "scalar")
    monkeypatch.setenv("LEGATO_BACKEND", "reference")
    found = told(capsys)
    assert found["instruction sets"].endswith("; scalar computes, as LEGATO_ISA says")
    assert found["backend"].endswith(", as LEGATO_BACKEND says")


def test_an_instruction_set_that_there_is_not_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_ISA", "avx9")
    assert told(capsys)["instruction sets"].startswith("LEGATO_ISA=avx9: there is no instruction set")


@pytest.mark.parametrize(
    ("backend", "told_backend"),
    [
        ("auto", "reference: numpy, many times slower than the kernels"),
        ("cpu", "none: LEGATO_BACKEND=cpu, and there are no kernels"),
    ],
)
def test_without_kernels_the_remedy_is_told(
    backend: str, told_backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installation, "find_extension", lambda: NO_KERNELS)
    monkeypatch.setattr(installation, "instruction_sets", tuple)
    monkeypatch.setenv("LEGATO_BACKEND", backend)
    found = told(capsys)
    assert found["kernels"] == NO_KERNELS.reason
    assert found["instruction sets"] == "none without kernels"
    assert found["backend"] == told_backend


# the machine


def test_limits_of_control_groups_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: UsableCores(4, 2, 1.5))
    monkeypatch.setattr(machine, "usable_memory_bytes", lambda: 3 * 2**29)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 2**32)
    monkeypatch.setattr(machine, "machine_memory_bytes", lambda: 2**33)
    found = told(capsys)
    assert found["cores"].startswith("1 may compute: affinity allows 4 of ")
    assert found["cores"].endswith("on 2 physical cores; control groups grant the time of 1.5")
    assert found["memory"] == "1.5 GiB of 8.0 GiB may be used: the control group's limit"
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 3 * 2**29)
    assert told(capsys)["memory"] == "1.5 GiB of 8.0 GiB may be used: what is free now"


def test_processor_has_its_models_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert machine.processor()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9000\n")
    assert machine.processor() == "Abacus 9000"


# variables


def test_secrets_are_masked_and_what_nothing_reads_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in [
        ("LEGATO_API_KEY", "one-secret"),
        ("LEGATO_API_KEYS", "another-secret"),
        ("LEGATO_VLLM_URL", "ftp://user:third-secret@host"),
        ("LEGATO_BATCHING", "static"),
        ("LEGATO_PAGE_SIZE", ""),
    ]:
        monkeypatch.setenv(name, value)
    found = told(capsys)
    assert not re.search("(one|another|third)-secret", str(found))
    assert found["LEGATO_API_KEY"] == found["LEGATO_API_KEYS"] == "***"
    assert found["LEGATO_BATCHING"] == "static"
    assert found["LEGATO_PAGE_SIZE"].startswith("set to nothing")
    assert "LEGATO_API_KEYS is not known" in found["warning"]
    assert found["fault"] == "LEGATO_VLLM_URL=ftp://***@host: expected a URL like http://127.0.0.1:8001"


def test_a_setting_that_does_not_fit_is_no_failure_of_the_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_BACKEND", "gpu")
    found = told(capsys)
    assert found["backend"] == "none: LEGATO_BACKEND=gpu: choose one of auto, cpu, reference"
    assert found["fault"] == "LEGATO_BACKEND=gpu: choose one of auto, cpu, reference"
