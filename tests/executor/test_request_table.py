"""Rows: the lowest first, none twice."""

import pytest

from legato.executor.request_table import RequestTable


def test_lowest_free_row_comes_first() -> None:
    table = RequestTable(4)
    assert [table.allocate() for _ in range(4)] == [0, 1, 2, 3]
    for row in (2, 0, 3):
        table.free(row)
    assert table.available_size == 3
    assert [table.allocate(), table.allocate()] == [0, 2]
    table.free(1)
    assert [table.allocate(), table.allocate()] == [1, 3]
    assert table.available_size == 0


def test_no_row_beyond_the_size_is_given() -> None:
    table = RequestTable(1)
    table.allocate()
    with pytest.raises(AssertionError, match="all 1 rows are taken"):
        table.allocate()


@pytest.mark.parametrize("row", [1, 0, -1, 2, 99])
def test_row_that_is_not_taken_cannot_be_given_back(row: int) -> None:
    table = RequestTable(2)
    table.free(table.allocate())
    with pytest.raises(AssertionError, match=f"row {row} is not taken"):
        table.free(row)
    assert table.available_size == 2
