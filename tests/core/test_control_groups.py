"""Which control groups bound a process, read from files as Linux writes them."""

from pathlib import Path

from legato.core.control_groups import own_groups


def groups(tmp_path: Path, text: str | None, controller: str = "memory") -> set[str]:
    (tmp_path / "self").mkdir()
    if text is not None:
        (tmp_path / "self" / "cgroup").write_text(text)
    return {str(path.relative_to("/g")) for path in own_groups(controller, tmp_path, Path("/g"))}


def test_version_2_has_the_own_group_and_all_above(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a/b\n") == {".", "memory", "a", "a/b"}


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    text = "9:memory:/a/b\n5:cpu,cpuacct:/c:d\n0::/\n"
    assert groups(tmp_path, text) == {".", "memory", "memory/a", "memory/a/b"}


def test_controllers_may_share_a_tree_and_a_name_may_hold_a_colon(tmp_path: Path) -> None:
    assert groups(tmp_path, "5:cpu,cpuacct:/c:d\n", "cpu") == {".", "cpu", "cpu/c:d"}


def test_place_above_the_root_of_a_container_is_never_left(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/../x\nno group at all\n") == {".", "memory", "x"}


def test_without_such_a_file_the_roots_are_left(tmp_path: Path) -> None:
    assert groups(tmp_path, None) == {".", "memory"}
