"""Which transfers in loops can hide behind a product, by what depends on what.

A loop body is a barrier: compilers move no work from one iteration into another. So a transfer can hide behind a
product of its own iteration that gives it nothing to send, and that neither it nor another transfer there feeds.
"""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.liveness import equations, opened, subjaxprs
from shardproof.properties.engines.simulate.location import location
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.programs.program import Program

LOOPS = ("scan", "while")
PRODUCT, TRANSFER = "dot_general", "ppermute"


def exposed(program: Program, on: MeshCase) -> list[str]:
    """The permutes that loops repeat, and that no product of their iteration can hide: where in the source, and why."""
    mesh = abstract_mesh(on)
    traced = jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))
    return [text for body in bodies(traced) for text in exposed_in(body)]


def bodies(jaxpr: Any) -> Iterator[Any]:
    """The bodies of all loops."""
    for equation in equations(jaxpr):
        if equation.primitive.name in LOOPS:
            yield from subjaxprs(equation)


def exposed_in(body: Any) -> list[str]:
    """The same of one body. What is inside of another equation counts as that equation, and in loops of its own."""
    behind: dict[Any, frozenset[int]] = {}
    before: list[frozenset[int]] = []
    kinds: list[set[str]] = []
    found = opened(body)[0].eqns
    for i, equation in enumerate(found):
        kinds.append({e.primitive.name for e in (equation, *(e for j in subjaxprs(equation) for e in equations(j)))})
        read = [v for v in equation.invars if not isinstance(v, core.Literal)]
        before.append(frozenset[int]().union(*(behind.get(v, frozenset()) for v in read)))
        behind.update(dict.fromkeys(equation.outvars, before[i] | {i}))
    transfers = {i for i, names in enumerate(kinds) if TRANSFER in names}
    products = {i for i, names in enumerate(kinds) if PRODUCT in names}
    free = {i for i in products if not before[i] & transfers}
    why = "each product of its loop waits for a transfer, or is sent" if products else "its loop multiplies nothing"
    return [f"{location(found[i])}: {why}" for i in sorted(transfers - products) if not free - before[i]]
