"""Which form of a product is the best for every size of one of its sides, by timelines on a stated machine."""

import math
from dataclasses import dataclass
from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.chips import Chip
from shardproof.properties.performance.choosing import PLAIN, Choice, choose
from shardproof.properties.performance.shaped import Shapes
from shardproof.properties.programs.examples import SHARDED

SIDES = ("m", "k", "n")
SMALLEST, LARGEST = 64, 65536


@dataclass(frozen=True)
class Crossover:
    """What is best for every size of one side.

    Arguments:
        contract: of which operation.
        side: which side grows: rows `m`, contracted `k`, columns `n`.
        choices: by its size.
    """

    contract: str
    side: str
    choices: dict[int, Choice]

    @property
    def names(self) -> list[str]:
        """The forms, the plain one first, the others in the order of the project."""
        known = {row.implementation.name: row.implementation for c in self.choices.values() for row in c.rows}
        return sorted(known, key=lambda name: name not in PLAIN)

    @property
    def best(self) -> list[tuple[int, int, str]]:
        """From which size to which a form is the best, one after the other."""
        found: list[tuple[int, int, str]] = []
        for size, choice in self.choices.items():
            name = choice.timed.name
            if found and found[-1][2] == name:
                found[-1] = (found[-1][0], size, name)
            else:
                found.append((size, size, name))
        return found

    def text(self) -> str:
        """Which form is best for which sizes."""
        lines = [f"{self.contract} on {next(iter(self.choices.values())).machine.name}, by {self.side}:"]
        for first, last, name in self.best:
            sizes = f"{first:,}" if first == last else f"{first:,} to {last:,}"
            lines.append(f"  {sizes}: {name}" + (", the plain form" if name in PLAIN else ""))
        return "\n".join(lines)


def crossover(
    contract: str,
    sides: tuple[int, int, int],
    side: str,
    machine: Chip,
    mesh: MeshCase,
    axes: tuple[str, ...],
    **more: Any,
) -> Crossover:
    """What is best for every power of two, times the number of participants, of one side; the others are given.

    Raises:
        RequestError: for a contract that is no product, or sides that do not divide.
    """
    if contract not in SHARDED:
        raise RequestError(f"contract={contract!r}: expected a product: {', '.join(SHARDED)}")
    p, choices = mesh.axis_size(axes), {}
    size = p * 2 ** max(0, math.ceil(math.log2(SMALLEST / p)))
    while size <= LARGEST:
        m, k, n = (size if name == side else given for name, given in zip(SIDES, sides, strict=True))
        choices[size] = choose(contract, shapes_of(contract, m, k, n), machine, mesh=mesh, axis_name=axes, **more)
        size *= 2
    return Crossover(contract, side, choices)


def shapes_of(contract: str, m: int, k: int, n: int) -> Shapes:
    """The shapes of a product of m rows, k contracted and n columns; a transformer block has n hidden features."""
    return ((m, k), (k, n), (n, k)) if contract == "transformer_block" else ((m, k), (k, n))
