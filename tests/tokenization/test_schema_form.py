"""Formats of dates as patterns: to the day, and wherever a schema may stand."""

import re
from datetime import date, timedelta

import pytest

from legato.tokenization.schema_form import PATTERNS, for_llguidance

DAY = {"allOf": [{"pattern": PATTERNS["date"]}]}


@pytest.mark.parametrize("year", [1, 4, 99, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9999])
def test_every_day_of_a_year_matches_and_no_other_does(year: int) -> None:
    first = date(year, 1, 1)
    days = {(first + timedelta(days=number)).isoformat() for number in range(366 if is_leap(year) else 365)}
    written = [f"{year:04}-{month:02}-{day:02}" for month in range(14) for day in range(33)]
    assert {text for text in written if re.search(PATTERNS["date"], text)} == days


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def test_there_is_no_year_0() -> None:
    assert not re.search(PATTERNS["date"], "0000-01-01")
    assert not re.search(PATTERNS["date"], "0000-02-29")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("23:59:59Z", True),
        ("00:00:00.123+09:30", True),
        ("24:00:00Z", False),
        ("23:59:60Z", False),
        ("12:00:00", False),
        ("12:00:00+24:00", False),
    ],
)
def test_times_have_an_offset_and_no_leap_seconds(text: str, fits: bool) -> None:
    assert bool(re.search(PATTERNS["time"], text)) is fits
    assert bool(re.search(PATTERNS["date-time"], f"2024-02-29T{text}")) is fits
    assert not re.search(PATTERNS["date-time"], f"2023-02-29T{text}")


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"format": "date"}, DAY),
        ({"properties": {"format": {"format": "date"}}}, {"properties": {"format": DAY}}),
        ({"items": {"format": "date"}}, {"items": DAY}),
        ({"prefixItems": [{"format": "date"}, True]}, {"prefixItems": [DAY, True]}),
        ({"anyOf": [{"format": "date"}]}, {"anyOf": [DAY]}),
        ({"$defs": {"d": {"format": "date"}}}, {"$defs": {"d": DAY}}),
        ({"additionalProperties": {"format": "date"}}, {"additionalProperties": DAY}),
        ({"format": "date", "pattern": "^2"}, {"pattern": "^2", **DAY}),
        ({"format": "date", "allOf": [{"pattern": "2"}]}, {"allOf": [{"pattern": "2"}, DAY["allOf"][0]]}),
        ({"uniqueItems": False, "type": "array"}, {"type": "array"}),
    ],
)
def test_schemas_are_found_wherever_they_stand(schema: dict[str, object], wanted: dict[str, object]) -> None:
    assert for_llguidance(schema) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"format": "date"}},
        {"enum": [{"format": "date"}]},
        {"default": {"uniqueItems": False}},
        {"properties": {"uniqueItems": False}},
        {"format": "email"},
        {"format": 3, "allOf": 4, "items": 5, "anyOf": 6, "properties": 7},
        {"uniqueItems": True},
        True,
    ],
)
def test_what_is_no_format_of_a_date_stays_as_it_is(schema: object) -> None:
    assert for_llguidance(schema) == schema
