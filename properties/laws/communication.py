"""The laws of communication: what is sent is what is said to be, no less than must be, and hidden as is claimed."""

import math
from contextlib import nullcontext, suppress
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import NARROW, is_float
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import generate
from shardproof.properties.communication.counted import (
    KNOWN,
    NOTHING,
    Counted,
    Unknown,
    bytes_moved,
    count,
    describe_cost,
    describe_stated,
    full_bytes,
    needed_bound,
    nothing_must_move,
    sizes_of,
    stated_values,
)
from shardproof.properties.contracts.numbers import COUNTED, operands
from shardproof.properties.engines import Engine
from shardproof.properties.engines.engine import (
    check_results,
    differentiating,
    ready,
    reverse_mode,
    values_and_gradients,
)
from shardproof.properties.engines.simulate.jaxprs import open_jaxpr, subjaxprs
from shardproof.properties.laws.law import Law, Verdict, without_chain
from shardproof.properties.performance.operations import Operation, flops_in, operations_in, peak_in, within
from shardproof.properties.performance.routes import Undetermined
from shardproof.properties.performance.timeline import (
    Balanced,
    Timeline,
    loads_in,
    shortest_side,
    timeline,
)
from shardproof.properties.programs.expectation import Overlap, Stated, Terms, value
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import readable_errors
from shardproof.properties.programs.violation import Broken, NothingToCompare, NotRun, Of

WIDER = {"bfloat16": 2, "float8_e4m3fn": 4, "float8_e5m2": 4, "int4": 2, "uint4": 2}
"""The factor of bytes that a compiler may send which has no collectives of a type (XLA:CPU: see `hlo`)."""

GRADIENT = "gradient: "
"""The beginning of a finding about reverse mode."""

WAITING = "must wait for one another"


def communication_of(implementation: Implementation, case: Case, engine: Engine, *, backward: bool = False) -> Counted:
    """The communication of an implementation in a case: forward, or for its gradient alone.

    Raises:
        NotImplementedError: for a gradient, if the implementation has none in reverse mode.
        Unknown: if it cannot be counted.
        WrongResult: if the result has another tree, shape or dtype than it should.
    """
    with differentiating(), readable_errors() if backward else nullcontext():  # the rules of derivatives as well
        made = reverse_mode(implementation, case, engine) if backward else ready("value", implementation, case, engine)
        check_results(case, made.seen)
        given = operands(case, COUNTED)
        rest = made.prepared.jaxpr.in_avals[len(given) :]  # tangents, and cotangents
        arrays = [*given, *(generate(COUNTED, a.shape, np.dtype(a.dtype), terms=case.mesh.size) for a in rest)]
        return count(made.prepared, arrays)


def check_communication(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """Counts and bytes of both passes are as stated, and no less than the lower bound."""
    try:
        counted = communication_of(implementation, case, engine)
    except Unknown as error:
        raise NotRun(f"communication is not known: {error}") from error
    if not counted.rewritten and computes_outside(ready("value", implementation, case, engine).prepared.jaxpr):
        raise NotRun("what is sent outside of `shard_map`, which is up to the compiler")
    _check_bound(case, counted)
    has_bound = case.contract.name in KNOWN or case.contract.least is not None
    bounded = needed_bound(case) != NOTHING or (has_bound and nothing_must_move(case))
    against = "lower bound" if bounded else "nothing"
    if implementation.communication is not None:
        against = "claim" if implementation.built_in else f"expectation {implementation.communication}"
    sent = {"bytes": full_bytes(case), "cost": str(counted.cost), "case": str(case), "against": against}
    if against == "nothing":
        raise NothingToCompare(sent)
    _check_claim(implementation, case, counted)
    checked = 1 + _check_gradient(implementation, case, engine)
    findings, least = [], case.contract.least
    redundant = counted.cost.bytes.total() > 0 and least is not None and least(case) == 0  # no device lacks anything
    if implementation.whole and counted.rewritten and redundant:
        compiler, added = f"XLA of jaxlib {version('jaxlib')} ({jax.default_backend()})", counted.cost.counts
        findings = [f"{compiler} adds {', '.join(added)}, of which nothing is needed"]
    return Verdict("held", checked=checked, findings=findings, sent=sent)


def computes_outside(jaxpr: Any) -> bool:
    """True if anything is computed from global arrays outside of `shard_map`, where the compiler chooses layouts."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        if equation.primitive.name != "shard_map":
            inner = [*subjaxprs(equation)]
            if any(map(computes_outside, inner)) if inner else any(v.aval.shape for v in equation.invars):
                return True
    return False


def _check_gradient(implementation: Implementation, case: Case, engine: Engine) -> bool:
    """Checks what the gradient sends, if that can be; True if it was."""
    terms = stated_terms(implementation, backward=True)
    if terms is not None and has_own_gradient(case, whole=implementation.whole):
        with suppress(NotImplementedError, Unknown):  # a function without a gradient has none to count
            counted = communication_of(implementation, case, engine, backward=True)
            _check_claim(implementation, case, counted, backward=True)
            return True
    return False


def has_own_gradient(case: Case, *, whole: bool = False) -> bool:
    """True if the gradient's communication is the implementation's own.

    An empty one sends nothing (and JAX 0.12 cannot lower some that depend on no argument). That of a value replicated
    along the axis tuple is a sum over devices: the sum is JAX's, and no claim has it, unless the contract says that the
    operand is replicated, or the function is one of global arrays (`whole`), which makes replicas in a `shard_map` of
    its own. Operands that have no gradient may be of any dtype, and replicated.
    """
    contract = case.contract
    return contract.has_derivative(case) and all(
        is_float(o.numpy_dtype)
        and 0 not in o.block
        and (whole or set(case.axes) <= o.placement.axes or contract.call.is_replicated(case, place))
        for place, o in ((place, case.operands[place]) for place in contract.call.moving(case))
    )


def _check_bound(case: Case, counted: Counted) -> None:
    bound = needed_bound(case)
    passed = bytes_moved(counted.participants)
    if bound == NOTHING or passed is None:
        return
    cost = counted.cost
    if passed < bound.bytes:
        least = f"{float(bound.bytes):g} byte{'s' * (bound.bytes != 1)} must pass every device (lower bound)"
        sent = f", by which {float(passed):g} pass a device" if cost.bytes.total() else ""
        raise Broken("communication", f"{describe_cost(cost)}{sent}: {least}")
    steps = bound.steps
    if {*cost.counts} == {"permute"} and cost.counts["permute"] < steps:
        raise Broken("communication", f"{describe_cost(cost)}: expected at least {steps} (lower bound)")


def stated_terms(implementation: Implementation, *, backward: bool) -> Terms | None:
    """The expectation of a pass."""
    stated = implementation.communication
    return None if stated is None else stated.backward if backward else stated.forward


def _check_claim(implementation: Implementation, case: Case, counted: Counted, *, backward: bool = False) -> None:
    """Checks that no more is sent than is stated, of each kind; and no less, unless nothing must move.

    What can go both ways at the same time does not wait: steps may be fewer than are stated.
    """
    expectation, terms = implementation.communication, stated_terms(implementation, backward=backward)
    if expectation is None or terms is None:
        return
    stated, cost = stated_values(terms, case), counted.cost
    # Where a jitted function's result is sharded over explicit and automatic axes, JAX (0.10 and 0.12) pins it to the
    # explicit ones alone, and the compiler changes its layout after `shard_map`: with an all-gather, or with permutes.
    # Results leave stacked; gradients leave as their operands are laid out.
    types = {case.mesh.types[name] for operand in case.operands for name in operand.placement.axes}
    right = (counted.rewritten and len(types) > 1) or _is_exact(case, counted, stated)
    right = right or (nothing_must_move(case) and not expectation.exactly and _is_less(case, counted, stated))
    slow = stated.steps is not None and counted.rounds is not None and counted.rounds > stated.steps
    if right and not slow:
        return
    waiting = f", {counted.rounds} of which {WAITING}" if slow and right else ""
    where = " in the compiled program" if counted.rewritten else ""
    names = terms.names()
    expected = describe_stated(stated, expectation, names, sizes_of(case, names))
    raise Broken(
        "communication",
        f"{GRADIENT * backward}{describe_cost(cost)}{waiting}{where}: expected {expected}",
        of="gradient" if backward else "result",
    )


def _is_less(case: Case, counted: Counted, stated: Stated) -> bool:
    """True if nothing is sent, or no more than is stated."""
    cost, wide = counted.cost, widest(case, counted)
    return cost.bytes.total() == 0 or (
        all(cost.counts[kind] <= count for kind, count in stated.counts.items())
        and all(cost.bytes[kind] <= size * wide for kind, size in stated.sizes.items())
        and (stated.bytes is None or cost.bytes.total() <= stated.bytes * wide)
    )


def _is_exact(case: Case, counted: Counted, stated: Stated) -> bool:
    """True if as much is sent as is stated, of each kind; empty blocks may be sent any number of times."""
    cost, half = counted.cost, has_half_bytes(case)
    for kind in {*stated.counts, *stated.sizes}:
        count, size = stated.counts.get(kind), stated.sizes.get(kind)
        if size == cost.bytes[kind] == 0:
            continue
        whole = (count is None or count.denominator == 1) and (size is None or size.denominator == 1 or half)
        number = cost.counts[kind] if count is None else int(count)
        if not whole or not _agrees(case, counted, kind, number, cost.bytes[kind] if size is None else int(size)):
            return False
    if stated.bytes is None:
        return True
    return (stated.bytes.denominator == 1 or half) and _agrees(case, counted, None, 0, int(stated.bytes))


def _agrees(case: Case, counted: Counted, kind: str | None, count: int, size: int) -> bool:
    """True if a kind's count and bytes (of all kinds: None) are right.

    The interpreter runs what was traced, so both are equal; only an empty block need not be sent at all,
    and of int4, two to a byte, each collective may fill up its last byte, which no formula in bytes can say.
    A compiler rewrites the program, and each allowance here is for something XLA was seen to do: what
    moves nothing (one participant, as one of several roles may have, empty, every block to itself) may be left out; the
    leaves of a tree may be combined into one collective or not; a type without collectives may be sent as a wider one.
    """
    cost, separate, sent = counted.cost, counted.separate, counted.sent
    own = cost.bytes.total() if kind is None else cost.bytes[kind]
    wide = sent.bytes.total() if kind is None else sent.bytes[kind]
    numbers = (count, count) if kind is None else (cost.counts[kind], separate.counts[kind])
    filled = separate.counts.total() if has_half_bytes(case) else 0
    empty = all(0 in operand.block for operand in case.operands)
    if empty:  # which may be sent as often as one likes
        return own <= size + filled
    if counted.rewritten and (case.roles or case.contract.name not in KNOWN or needed_bound(case) == NOTHING):
        return min(numbers) <= count and own <= (size + filled) * widest(case, counted)
    right_bytes = abs(own - size) <= filled or size <= wide <= (size + filled) * widest(case, counted)
    right_count = count in numbers or (counted.rewritten and case.tree and (count > 0) == (numbers[0] > 0))
    return right_bytes and right_count


def has_half_bytes(case: Case) -> bool:
    """True if elements are packed two to a byte."""
    return any(operand.dtype in NARROW for operand in case.operands)


def widest(case: Case, counted: Counted) -> int:
    """The factor by which the bytes of a compiled program may exceed those that were traced."""
    return max(WIDER.get(operand.dtype, 1) for operand in case.operands) if counted.rewritten else 1


def _applies(implementation: Implementation, engine: str) -> bool:
    """True if there is something to compare with, and on the interpreter anyway: the summary says what is sent."""
    if implementation.communication is not None:
        return True
    if engine == "simulate":  # which does not see what a compiler sends for a function of global arrays
        return not implementation.whole
    return implementation.whole or implementation.contract.least is not None or implementation.contract.name in KNOWN


COMMUNICATION = Law(
    "communication",
    "Collectives and bytes are those that are stated, in no more steps, and never below the lower bound.",
    check_communication,
    without_chain,
    _applies,
    derives=True,
    # what the compiler sends is known only where there are devices enough for it
    optional=lambda implementation: implementation.communication is None or implementation.whole,
)


MACHINE = "on a machine whose busiest link needs as long as p-1 of p products"


def check_overlap(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """The exposed part of the forward pass, and of it and its gradient together, is at most the one stated.

    Both are scheduled, as traced, on a machine whose busiest link needs as long for the forward pass as its products
    do.
    """
    stated = implementation.overlap
    assert stated is not None
    sizes = sizes_of(case)
    values = ready("value", implementation, case, engine)
    check_results(case, values.seen)
    try:
        ahead = operations_in(values.prepared.jaxpr, case.mesh)
        if any(one.flops for one, _ in within(ahead)) and not flops_in(ahead):
            return Verdict("held", checked=1)  # products of empty blocks, beside which nothing can be hidden
        machine = Balanced.of(ahead, case.mesh, case.axes)
        _check_exposed(case, stated, sizes, ahead, machine)
        most = None if stated.memory is None else value(stated.memory, **sizes)
        if most is not None and (held := peak_in(values.prepared.jaxpr)) > most:
            alive = f"{_bytes(Fraction(held))} alive at one time"
            raise Broken("overlap", f"{alive}: expected at most {_bytes(most)} ({stated})")
        if not has_own_gradient(case):
            return Verdict("held", checked=1)
        try:
            both = operations_in(values_and_gradients(implementation, case, engine), case.mesh)
        except NotImplementedError:  # a function without a gradient has none that could wait
            return Verdict("held", checked=1)
        machine = machine if machine.bytes else Balanced.of(both, case.mesh, case.axes)
        _check_exposed(case, stated, sizes, both, machine, backward=True)
    except Undetermined as error:
        raise NotRun(f"overlap is not known: {error}") from error
    return Verdict("held", checked=2)


def _check_exposed(
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
        part = "all" if found.share == 1 else _share(Fraction(found.share))
        exposed = f"{part} of the communication{whose} is exposed, {MACHINE}"
        raise Broken("overlap", f"{exposed}: expected at most {_share(most)} ({stated}); {_longest_wait(found)}", of=of)
    if stated.directions > 1 and shortest_side(operations) > 1:  # what has a side of one may not be divided
        loads = loads_in(operations)
        for axis in {axis for axis, _ in loads} & set(case.axes):
            least, busiest = sorted(loads.get((axis, way), Fraction(0)) for way in (1, -1))
            if case.mesh.shape[axis] > 2 and 2 * least < busiest:
                sent = f"{_bytes(least)} one way round {axis} and {_bytes(busiest)} the other{whose}"
                raise Broken("overlap", f"{sent}: expected both ways to be used ({stated})", of=of)


def _longest_wait(found: Timeline) -> str:
    """The longest wait: what waits, and for what."""
    places: dict[tuple[str, str, str, str], Fraction] = {}
    for wait in found.waits:
        then = (wait.then.name, wait.then.where) if wait.then is not None else ("", "")
        key = (wait.transfer.name, wait.transfer.where, *then)
        places[key] = places.get(key, Fraction(0)) + Fraction(wait.time)
    name, where, then_name, then_where = max(places, key=lambda key: places[key])
    waits = f"the {then_name} at {then_where} waits" if then_name else "what is left to do waits"
    return f"most of it {name} at {where}: {waits} for it, and nothing else is ready to be computed"


def _share(share: Fraction) -> str:
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
