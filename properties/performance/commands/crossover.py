"""Which form is best for every size of a side of a product: printed, with the times of all forms."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.chips import Chip, chip
from shardproof.properties.performance.choosing import PLAIN, Choice, choose
from shardproof.properties.performance.tables import form_of, table
from shardproof.properties.programs.examples import SHARDED
from shardproof.properties.report.arguments import parse_axes, parse_dtype, parse_mesh

SIDES = ("m", "k", "n")
SMALLEST, LARGEST = 64, 65536

Choices = dict[int, Choice]
"""What is best, by the size of a side."""


def best(choices: Choices) -> list[tuple[int, int, str]]:
    """From which size to which a form is the best, one after the other."""
    runs = itertools.groupby(choices, key=lambda size: choices[size].timed.name)
    return [(sizes[0], sizes[-1], name) for name, sizes in ((name, [*run]) for name, run in runs)]


def crossover(
    contract: str, sides: Sequence[int], side: str, machine: Chip, mesh: MeshCase, axes: tuple[str, ...], **more: Any
) -> Choices:
    """What is best for every power of two, times the number of participants, of one side; the others are given."""
    if contract not in SHARDED:
        raise RequestError(f"contract={contract!r}: expected a product: {', '.join(SHARDED)}")
    p, choices = mesh.axis_size(axes), {}
    size = p * 2 ** max(0, math.ceil(math.log2(SMALLEST / p)))
    while size <= LARGEST:
        m, k, n = (size if name == side else given for name, given in zip(SIDES, sides, strict=True))
        shapes = ((m, k), (k, n), (n, k))[: len(SHARDED[contract])]  # a transformer block has n hidden features
        choices[size] = choose(contract, shapes, machine, mesh=mesh, axis_name=axes, **more)
        size *= 2
    return choices


def print_crossover(
    contract: str, *, mesh: str, axis: str, machine: str, dtype: str, gradient: bool, sides: str, vary: str
) -> None:
    """Prints which form of a product is the fastest for which size of a side, and times over the unsharded product."""
    parts = sides.split(",")
    if len(parts) != len(SIDES) or not all(part.isdecimal() and int(part) for part in parts):
        raise RequestError(f"--sides={sides}: expected rows, contracted size and columns, as in 512,2048,8192")
    sizes, of, stated, on = [*map(int, parts)], parse_dtype(dtype), chip(machine), parse_mesh(mesh)
    found = crossover(contract, sizes, vary, stated, on, parse_axes(axis, on), dtype=of, gradient=gradient)
    print(f"{contract}{' and its gradient' * gradient} on {stated.name}, by {vary}:")
    for first, last, name in best(found):
        run = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        print(f"  {run}: {name}" + (", the plain form" if name in PLAIN else ""))
    rows = {
        size: {form_of(row.implementation): choice.ratio(row) for row in choice.rows} for size, choice in found.items()
    }
    forms = [*dict.fromkeys(form for row in rows.values() for form in row)]
    lines = [
        (
            f"{size:,}",
            *(f"{float(row[form]):.2f}" if form in row else "-" for form in forms),
            f"{float(found[size].floor):.2f}",
        )
        for size, row in rows.items()
    ]
    Console(width=120).print(table("", (vary, *forms, "floor"), lines, left=0))
