"""The table of what implementations send in one fixed example: counted, and held against the lower bound."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles.communication import Cost
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.counted import Bound, Unknown, bytes_moved, needed_bound
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws.communication import communication_of, stated_by
from shardproof.properties.programs.examples import COLUMNS as WIDTH
from shardproof.properties.programs.examples import PARAMETERS, ROWS, example
from shardproof.properties.programs.implementations import Implementation

MEMBERS = (8, 5)
"""A power of two, and a number that is none."""

CAPTION = (
    f"What one device sends for float32 blocks of {ROWS} x {WIDTH} (p times as many rows where they are cut): "
    "operands as the interpreter counts them. The lower bound is of what must pass each device, which a "
    "built-in collective reaches however large its operand is; `steps` can be told of permutes only."
)


@dataclass(frozen=True)
class Row:
    """One implementation with one number of participants."""

    implementation: str
    p: int
    cost: Cost
    bound: Bound
    optimal: tuple[str, ...]


def rows(implementations: Iterable[Implementation]) -> list[Row]:
    """Two rows per implementation; none for one that does not serve the example, or of another contract."""
    known = [one for one in implementations if one.contract.name in PARAMETERS]
    return [row for one in known for p in MEMBERS if (row := _row(one, p)) is not None]


def _row(implementation: Implementation, p: int) -> Row | None:
    case = example(implementation.contract.name, MeshCase(("tp",), (p,)), "tp")
    if implementation.serves is not None and not implementation.serves(case) and p == 8:  # two axes, perhaps
        case = example(implementation.contract.name, MeshCase(("dp", "tp"), (2, 4)), ("dp", "tp"))
    try:
        found = communication_of(implementation, case, SimulateEngine())
    except (NotImplementedError, Unknown):  # it does not support the example, or what it sends cannot be told
        return None
    bound = needed_bound(case)
    cost, passed = found.cost, bytes_moved(found.participants)
    stated = stated_by(implementation, case, backward=False)
    # how many collectives follow one another if nothing else is said can be told where permutes are all there is
    told = None if set(dict(cost.counts)) - {"permute"} else cost.count("permute")
    steps = told if stated is None or stated.steps is None else stated.steps
    optimal = ("steps",) * (steps == bound.steps) + ("bytes",) * (passed == Fraction(bound.bytes))
    return Row(str(implementation), p, cost, bound, optimal)


def json_rows(found: Iterable[Row]) -> list[dict[str, object]]:
    """The table as JSON-able data."""
    return [
        {
            "implementation": row.implementation,
            "p": row.p,
            "counts": dict(row.cost.counts),
            "bytes": row.cost.total_bytes,
            "lower_bound": {"steps": row.bound.steps, "bytes": float(row.bound.bytes)},
            "optimal": list(row.optimal),
        }
        for row in found
    ]
