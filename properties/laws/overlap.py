"""The law of overlap: implementations that claim to hide their communication compute while they send."""

import math
from fractions import Fraction
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.communication.counted import sizes_of
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import check_results, ready, values_and_gradients
from shardproof.properties.laws.communication import has_own_gradient
from shardproof.properties.laws.law import Law, without_chain
from shardproof.properties.performance.operations import Operation, flops_in, operations_in, peak_in, within
from shardproof.properties.performance.routes import Undetermined
from shardproof.properties.performance.timeline import (
    Balanced,
    Timeline,
    loads_in,
    shortest_side,
    timeline,
)
from shardproof.properties.programs.expectation import Overlap, value
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken, NotRun, Of

MACHINE = "on a machine whose busiest link needs as long as p-1 of p products"


def check_overlap(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The exposed part of the forward pass, and of it and its gradient together, is at most the one stated.

    Both are scheduled, as traced, on a machine whose busiest link needs as long for the forward pass as its products
    do. Returns how many of the two were checked.
    """
    stated = implementation.overlap
    assert stated is not None
    sizes = sizes_of(case)
    values = ready("value", implementation, case, engine)
    check_results(case, values.seen)
    try:
        ahead = operations_in(values.prepared.jaxpr, case.mesh)
        if any(one.flops for one, _ in within(ahead)) and not flops_in(ahead):
            return 1  # products of empty blocks, beside which nothing can be hidden
        machine = Balanced.of(ahead, case.mesh, case.axes)
        _check(case, stated, sizes, ahead, machine)
        most = None if stated.memory is None else value(stated.memory, **sizes)
        if most is not None and (held := peak_in(values.prepared.jaxpr)) > most:
            alive = f"{_bytes(Fraction(held))} alive at one time"
            raise Broken("overlap", f"{alive}: expected at most {_bytes(most)} ({stated})")
        if not has_own_gradient(case):
            return 1
        try:
            both = operations_in(values_and_gradients(implementation, case, engine), case.mesh)
        except NotImplementedError:  # a function without a gradient has none that could wait
            return 1
        machine = machine if machine.bytes else Balanced.of(both, case.mesh, case.axes)
        _check(case, stated, sizes, both, machine, backward=True)
    except Undetermined as error:
        raise NotRun(f"overlap is not known: {error}") from error
    return 2


def _check(
    case: Case,
    stated: Overlap,
    sizes: dict[str, Any],
    operations: tuple[Operation, ...],
    machine: Balanced,
    *,
    backward: bool = False,
) -> None:
    """Checks what is exposed, and which links are used."""
    found = timeline(operations, machine)
    most = value(stated.exposed, **sizes)
    of: Of = "gradient" if backward else "result"
    whose = " of the function and its gradient" if backward else ""
    if found.share > most:
        part = "all" if found.share == 1 else _named(Fraction(found.share))
        exposed = f"{part} of the communication{whose} is exposed, {MACHINE}"
        raise Broken("overlap", f"{exposed}: expected at most {_named(most)} ({stated}); {_longest(found)}", of=of)
    if stated.directions > 1 and shortest_side(operations) > 1:  # what has a side of one may not be divided
        loads = loads_in(operations)
        for axis in {axis for axis, _ in loads} & set(case.axes):
            least, busiest = sorted(loads.get((axis, way), Fraction(0)) for way in (1, -1))
            if case.mesh.shape[axis] > 2 and 2 * least < busiest:
                sent = f"{_bytes(least)} one way round {axis} and {_bytes(busiest)} the other{whose}"
                raise Broken("overlap", f"{sent}: expected both ways to be used ({stated})", of=of)


def _longest(found: Timeline) -> str:
    """The longest wait: what waits, and for what."""
    places: dict[tuple[str, str, str, str], Fraction] = {}
    for wait in found.waits:
        then = (wait.then.name, wait.then.where) if wait.then is not None else ("", "")
        key = (wait.transfer.name, wait.transfer.where, *then)
        places[key] = places.get(key, Fraction(0)) + Fraction(wait.time)
    name, where, then_name, then_where = max(places, key=lambda key: places[key])
    waits = f"the {then_name} at {then_where} waits" if then_name else "what is left to do waits"
    return f"most of it {name} at {where}: {waits} for it, and nothing else is ready to be computed"


def _named(share: Fraction) -> str:
    return str(share) if share.denominator < 100 else f"{float(share):.3f}"


def _bytes(size: Fraction) -> str:
    return f"{math.ceil(size):,} bytes"


OVERLAP = Law(
    "overlap",
    "What is sent while nothing is computed is no more than is claimed, of the gradient as well.",
    check_overlap,
    without_chain,
    lambda implementation, engine: implementation.overlap is not None,
    engines=("simulate",),  # it is about what was traced: nothing is run
    derives=True,
)
