"""The table of what implementations send in one fixed example, compared with the lower bound."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.counted import Unknown, bytes_moved, needed_bound
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws.communication import communication_of, stated_by
from shardproof.properties.programs.examples import COLUMNS as WIDTH
from shardproof.properties.programs.examples import PARAMETERS, ROWS, example
from shardproof.properties.programs.implementations import Implementation

PARTICIPANTS = (8, 5)
"""A power of two, and a number that is none."""

CAPTION = (
    f"What one device sends for float32 blocks of {ROWS} x {WIDTH} (p times as many rows where they are cut): "
    "operands as the interpreter counts them. The lower bound is of what must pass each device, which a "
    "built-in collective reaches however large its operand is; `steps` are known of permutes only."
)


def rows(implementations: Iterable[Implementation]) -> list[dict[str, Any]]:
    """Two rows per implementation, as JSON-able data; none for one that does not support the example."""
    known = [one for one in implementations if one.contract.name in PARAMETERS]
    return [row for one in known for p in PARTICIPANTS if (row := _row(one, p)) is not None]


def _row(implementation: Implementation, p: int) -> dict[str, Any] | None:
    case = example(implementation.contract.name, MeshCase(("tp",), (p,)), "tp")
    if implementation.serves is not None and not implementation.serves(case) and p == 8:  # two axes, perhaps
        case = example(implementation.contract.name, MeshCase(("dp", "tp"), (2, 4)), ("dp", "tp"))
    try:
        found = communication_of(implementation, case, SimulateEngine())
    except (NotImplementedError, Unknown):  # it does not support the example, or what it sends is unknown
        return None
    bound = needed_bound(case)
    cost, passed = found.cost, bytes_moved(found.participants)
    stated = stated_by(implementation, case, backward=False)
    # without a statement, the number of collectives in a row is known where permutes are all there is
    permutes = None if set(dict(cost.counts)) - {"permute"} else cost.count("permute")
    steps = permutes if stated is None or stated.steps is None else stated.steps
    return {
        "implementation": str(implementation),
        "p": p,
        "counts": dict(cost.counts),
        "bytes": cost.total_bytes,
        "lower_bound": {"steps": bound.steps, "bytes": float(bound.bytes)},
        "optimal": ["steps"] * (steps == bound.steps) + ["bytes"] * (passed == Fraction(bound.bytes)),
    }
