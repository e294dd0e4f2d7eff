"""A program reads like the mathematics that wrote it."""

from legato.program.builder import Builder
from legato.program.ops import Add, Embedding, Linear, RmsNorm, Rows, Select, Split, Value, Weight

TABLE = Weight("table", (100, 8))
UP = Weight("up", (6, 8))
DOWN = Weight("down", (2, 8))


def test_operations_stand_in_the_order_they_were_written_and_values_are_numbered() -> None:
    p = Builder()
    x = p.embedding(TABLE)
    y = p.add(x, p.rms_norm(x, Weight("norm", (8,)), eps=1e-5))
    program = p.output(p.linear(p.select(y), UP))

    x0, norm1, sum2 = (Value(i, Rows.TOKENS, 8) for i in range(3))
    row3, logits4 = Value(3, Rows.SAMPLES, 8), Value(4, Rows.SAMPLES, 6)
    assert program.ops == (
        Embedding(x0, TABLE),
        RmsNorm(norm1, x0, Weight("norm", (8,)), 1e-5),
        Add(sum2, x0, norm1),
        Select(row3, sum2),
        Linear(logits4, row3, (UP,)),
    )
    assert program.logits == logits4


def test_linear_of_several_weights_is_as_wide_as_all_of_them() -> None:
    p = Builder()

    assert p.linear(p.embedding(TABLE), UP, DOWN).width == 8


def test_split_gives_the_parts_in_order() -> None:
    p = Builder()
    x = p.embedding(TABLE)

    a, b = p.split(x, 6, 2)

    assert (a.width, b.width) == (6, 2)
    assert p.output(b).ops[-1] == Split((a, b), x)


def test_a_value_shows_its_name_and_shape() -> None:
    assert str(Value(3, Rows.TOKENS, 8)) == "%3[tokens, 8]"
