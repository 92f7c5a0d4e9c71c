"""Operations that are right with layouts on all supported versions of JAX stay right."""

from collections.abc import Iterator

import pytest

from shardproof.properties.conformance.programs import programs
from shardproof.properties.conformance.workers import Workers

RIGHT = (
    *("neg", "abs", "add", "mul", "max", "lt", "select_n", "convert_element_type", "iota", "transpose", "expand_dims"),
    *(
        "squeeze",
        "broadcast_in_dim",
        "stack",
        "rev",
        "concatenate",
        "split",
        "reduce_sum",
        "reduce_max",
        "argmax",
    ),
    *("cumsum", "sort", "matmul", "one_hot", "tile", "moveaxis", "reduce_window_sum"),
)
"""Operations of which no defect is known."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """A process that runs programs."""
    made = Workers(1)
    yield made
    made.close()


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_operations_with_layouts(axes: str, workers: Workers) -> None:
    """Values, shapes and layouts are right, or the layout is refused."""
    drawn = [one for i, name in enumerate(RIGHT) for one in programs([name], axes, 1, 3, i)]
    found = [(one.operations, verdict) for one, verdict in workers.run(drawn) if verdict.kind in ("wrong", "fails")]
    assert not found
