"""What is measured of dispatches of a mixture of experts: tables have all of them, and ratios are those of figures."""

from typing import Any

import pytest

from shardproof.properties.benchmark import moe_clock, moe_growth
from shardproof.properties.benchmark.moe import COLUMNS, DISPATCHES, PER_SENDER, Figures, Layer, names_of, rows

SMALL = Layer(2, tokens=4, features=8)


def cells(table: Any) -> list[list[str]]:
    """The rows of a table."""
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


@pytest.mark.lengthy
def test_every_dispatch_has_a_row() -> None:
    """With its bytes against those that must be sent, and its peaks against the bytes of a device's tokens."""
    found = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows(SMALL)}
    assert list(found) == list(DISPATCHES)
    assert SMALL.tokens_bytes == 4 * 4 * 8
    for name in ("ring", "ragged", PER_SENDER):
        forward, gradient = (Figures.of(SMALL, name, gradient=each) for each in (False, True))
        row = found[name]
        assert row["sent / ideal"] == f"{float(forward.sent / SMALL.ideal(skewed=False)):.2f}"
        assert row["peak / tokens"] == f"{forward.peak / 128:.1f}"
        assert row["gradient peak / tokens"] == f"{gradient.peak / 128:.1f}"
        assert forward.peak < gradient.peak
        assert forward.sent < gradient.sent


@pytest.mark.lengthy
@pytest.mark.parametrize("gradient", [False, True])
def test_growth_has_all_devices(gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measure on every number of devices; what would hold too much is left blank."""
    names = names_of(Layer(factor=None))
    measured = cells(moe_growth.growth(None, (2, 4), gradient=gradient))
    assert [row[0] for row in measured] == names + ["ideal"] * (not gradient)
    assert all(all(row) for row in measured if row[0] != "ideal")
    monkeypatch.setattr(moe_growth, "MOST_BYTES", 0)
    blank = cells(moe_growth.growth(None, (2,), gradient=gradient))
    assert not any(cell for row in blank for cell in row[1:] if row[0] != "ideal")


def test_drawn_cases_are_counted() -> None:
    """Of every dispatch that there is an implementation of, some in a second."""
    found = cells(moe_clock.cases({"value": 1}))
    assert [name for name, _ in found] == [name for name in DISPATCHES if name != PER_SENDER]
    assert all(float(number) > 0 for _, number in found)
