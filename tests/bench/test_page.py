"""Tables, and sections that replace themselves and nothing else."""

from pathlib import Path

from legato.bench.page import markdown_table, write_section


def test_table_is_aligned_markdown() -> None:
    table = markdown_table([("work", "s"), ("W1", "10.5"), ("a long one", "1")], num_left=1)
    assert table.splitlines() == [
        "| work       |    s |",
        "| :--------- | ---: |",
        "| W1         | 10.5 |",
        "| a long one |    1 |",
    ]


def test_sections_come_one_after_the_other(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_section(page, "One", "first\n")
    write_section(page, "Two", "second\n\n")
    assert page.read_text() == "# Performance\n\n## One\n\nfirst\n\n## Two\n\nsecond\n"


def test_section_replaces_the_one_with_its_title_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n\nIntro.\n\n## One\n\nold\n\n### Part\n\nold\n\n## One more\n\nby hand \\1\n")
    write_section(page, "One", r"new \1")
    assert page.read_text() == "# Mine\n\nIntro.\n\n## One\n\nnew \\1\n\n## One more\n\nby hand \\1\n"
