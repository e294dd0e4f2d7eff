"""The page of fields has the tables of the code: what is refused, adjusted, or a note."""

import json
import re
from collections.abc import Mapping
from typing import Any

from legato.api.bodies.foreign_fields import ADJUSTED, NOTES, UNSUPPORTED
from tests.docs.references import ROOT, table_rows


def rows_under(heading: str) -> list[list[str]]:
    text = (ROOT / "docs/fields.md").read_text(encoding="utf-8")
    [section] = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return table_rows(section)[2:]


def names_of(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]


def shown(values: Mapping[str, tuple[Any, ...]], name: str) -> str:
    """0.0 is told by 0."""
    return ", ".join(f"`{json.dumps(value)}`" for value in values[name] if not isinstance(value, float))


def test_refused_fields_stand_there_with_the_values_that_pass() -> None:
    rows = rows_under("Refused")
    assert {row[0].strip("`"): row[2] for row in rows} == {
        name: shown(UNSUPPORTED, name) for name in UNSUPPORTED
    }


def test_adjusted_fields_and_notes_stand_there() -> None:
    assert set(names_of(rows_under("Taken with another value"))) == {*ADJUSTED, "max_tokens"}
    assert set(names_of(rows_under("Notes"))) == NOTES
