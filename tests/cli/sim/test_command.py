"""`legato sim`: counts what it ran; a failure is shrunk, kept in a file, and fails again from there."""

from pathlib import Path

import pytest

from legato.cli.main import main
from legato.engine.core import Core


def test_counts_scenarios_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--num-seeds", "3", "--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("3 scenarios, ")
    assert main(["sim", "--num-seeds", "1", "--steps", "200", "--events", "4"]) == 0
    assert int(capsys.readouterr().out.split()[2]) >= 200


def test_failure_is_kept_and_fails_again_until_it_is_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failure.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Core, "abort", lambda core, request_id: None)
        assert main(["sim", "--output", str(file)]) == 1
        error = capsys.readouterr().err
        assert "nobody waits for it" in error
        assert f"again by: legato sim --scenario {file}" in error
        assert main(["sim", "--scenario", str(file)]) == 1
    capsys.readouterr()
    assert main(["sim", "--scenario", str(file)]) == 0


def test_unreadable_scenario_is_told_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.json"
    file.write_text('{"setup": 1}')
    assert main(["sim", "--scenario", str(file)]) == 2
    assert f"--scenario {file}" in capsys.readouterr().err
