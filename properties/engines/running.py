"""Runs of a case: programs prepared once per structure, and their results and those of oracles as blocks.

Under a chain of transformations an oracle computes one input of the batch after the other; results that the chain drops
are zeros. For composed calls oracles are composed too, and their derivatives by the chain rule.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from traceback import walk_tb
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad

from shardproof.oracles.dtypes import is_float, round_to, wide
from shardproof.properties.cases.case import Case, Placement, stacked_axes
from shardproof.properties.contracts import is_listed
from shardproof.properties.engines import Engine, Prepared, SimulateEngine, XlaEngine
from shardproof.properties.engines.engine import Compiled, InTwo, trace
from shardproof.properties.engines.simulate import Simulated, raised_in
from shardproof.properties.engines.simulate.exchange import divide
from shardproof.properties.engines.simulate.interpreter import select_results
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program, Seen, WrongResult, derivatives, forward, readable_errors
from shardproof.properties.programs.transformations import composed_operands, next_operands
from shardproof.properties.programs.violation import NotDifferentiable, SuiteError

MAX_READY = 32
"""The number of structures that stay compiled: Hypothesis tries one again and again while it shrinks."""

MODES = {"gradient": (True, True), "reverse gradient": (False, True), "forward gradient": (True, False)}
"""The kinds of derivatives: with forward mode or not, and with reverse mode or not."""

NO_FORWARD_MODE = "a custom_vjp has no forward mode"

T = TypeVar("T")

_ready: OrderedDict[tuple[object, ...], "Ready"] = OrderedDict()


@dataclass(frozen=True)
class Ready:
    """A structure's prepared program, and what its trace returned."""

    prepared: Prepared
    seen: Seen
    placements: tuple[Placement, ...] = ()


def traced(program: Program, case: Case) -> Any:
    """The jaxpr of a program under an abstract mesh; raises what the function refuses, before anything runs."""
    with readable_errors():  # also the function's own rules of derivatives
        return trace(program, case.mesh)


def ready(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The program of a case's structure: `value`, `placed`, or one of `MODES`, prepared once.

    Raises:
        NotDifferentiable: if JAX has no derivative of the function in this mode.
        WrongResult: if the function returns another tree, or in a derivative other shapes, than the contract says.
    """
    structure = case.structure if kind == "placed" else _without_out(case)
    key = (kind, implementation, structure, engine.name)
    if key in _ready:
        _ready.move_to_end(key)
        return _ready[key]
    made = _ready[key] = _make(kind, implementation, case, engine)
    jaxpr = made.prepared.jaxpr
    if engine.name == XlaEngine.name and jaxpr is not None:  # the interpreter takes the same trace
        of_interpreter = (kind, implementation, structure, SimulateEngine.name)
        _ready[of_interpreter] = dataclasses.replace(made, prepared=Simulated(jaxpr))
    while len(_ready) > MAX_READY:
        _ready.popitem(last=False)
    return made


def derived(implementation: Implementation, case: Case, engine: Engine) -> tuple[str, Ready]:
    """The derivative's kind and program, in both modes if JAX has both; raises NotImplementedError if it has none.

    A custom_vjp has no forward mode, a while_loop no reverse mode.
    """
    return in_some_mode(lambda kind: (kind, ready(kind, implementation, case, engine)))


def in_some_mode(function: Callable[[str], T]) -> T:
    """The result for the first of `MODES` that is supported; raises the first NotImplementedError if none is."""
    refused: list[NotImplementedError] = []
    for kind in MODES:
        try:
            return function(kind)
        except NotImplementedError as error:
            refused.append(error)
    raise refused[0]


def reverse_mode(implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The program `(operands, tangents, cotangents) -> gradients`; raises NotImplementedError without reverse mode.

    There are no tangents where there is no forward mode.
    """
    made = _with_gradients(implementation, case, engine)
    others = len(made.prepared.jaxpr.out_avals) - len(case.contract.call.moving(case))
    return dataclasses.replace(made, prepared=made.prepared.since(others))


def values_and_gradients(implementation: Implementation, case: Case, engine: Engine) -> Any:
    """The closed jaxpr of values and gradients; raises NotImplementedError without reverse mode."""
    made = _with_gradients(implementation, case, engine)
    jaxpr, values, gradients = made.prepared.jaxpr, len(made.placements), len(case.contract.call.moving(case))
    tangents = len(jaxpr.out_avals) - values - gradients
    return select_results(jaxpr, [True] * values + [False] * tangents + [True] * gradients)


def _with_gradients(implementation: Implementation, case: Case, engine: Engine) -> Ready:
    both = ("gradient", implementation, _without_out(case), engine.name) in _ready
    return ready("gradient" if both else "reverse gradient", implementation, case, engine)


def _without_out(case: Case) -> Case:
    return dataclasses.replace(case.structure, out=None)


def forget() -> None:
    """Drops all prepared programs, since JAX's rules have changed."""
    _ready.clear()


def _make(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    seen = Seen()
    if kind == "value":
        with differentiating():  # a link of its chain may differentiate
            return Ready(engine.prepare(forward(case, implementation, seen), case.mesh), seen)
    if kind == "placed":
        return Ready(engine.prepare(forward(case, implementation, seen, out="placed"), case.mesh), seen)
    forward_mode, reverse_mode = MODES[kind]
    values = _ready.get(("value", implementation, _without_out(case), engine.name))
    if values is not None and values.prepared.jaxpr is not None:
        seen = values.seen
    else:
        with differentiating():  # as for values
            traced(forward(case, implementation, seen), case)
    check_results(case, seen)
    program, placements = derivatives(case, implementation, seen, forward_mode=forward_mode, reverse_mode=reverse_mode)
    with differentiating():
        with readable_errors():  # the function's own rules of derivatives
            prepared = engine.prepare(program, case.mesh)
        # the jvp of a custom_vjp traces to a primitive that nothing can run
        jaxpr = traced(program, case) if prepared.jaxpr is None else prepared.jaxpr
        if forward_mode and any(equation.primitive.name == "custom_lin" for equation in equations(jaxpr)):
            raise NotDifferentiable(NO_FORWARD_MODE)
        if forward_mode and reverse_mode and isinstance(prepared, Compiled):
            prepared = InTwo(prepared, 2 * len(placements))
        return Ready(prepared, seen, tuple(placements))


@contextmanager
def whole_tracebacks() -> Iterator[None]:
    """Leaves JAX's own frames in tracebacks, which distinguish its exceptions from those of a function."""
    before = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009 (mypy does not know of it)
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


@contextmanager
def differentiating() -> Iterator[None]:
    """Raises NotDifferentiable in place of what JAX raises for a derivative that it does not have.

    That is: no rule, the transpose of a while_loop, forward mode of a mapped custom_vjp, and no rule that separates
    values from derivatives, as for a custom_vmap.
    """
    try:
        with whole_tracebacks():
            yield
    except ValueError as error:
        frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        if frames[-1] is ad.primitive_transposes[lax.while_p].__code__:
            raise NotDifferentiable("a while_loop has no reverse mode") from error
        if str(error).startswith("Linearization failed") and raised_in(error).startswith("jax."):
            raise NotDifferentiable(str(error).partition(". ")[0]) from error
        raise
    except TypeError as error:
        *_, (last, _) = walk_tb(error.__traceback__)
        if last.f_code.co_name == "raise_custom_vjp_error_on_jvp" and raised_in(error).startswith("jax."):
            raise NotDifferentiable(NO_FORWARD_MODE) from error
        raise
    except NotImplementedError as error:
        if raised_in(error) == ad.JVPTrace.__module__:
            raise NotDifferentiable(str(error)) from error
        raise


def check_results(case: Case, seen: Seen) -> None:
    """Raises WrongResult unless the results' blocks have the shapes and dtypes of the oracle's."""
    zeros = [
        np.zeros((*case.mesh.sizes, *case.batch_of(i), *o.block), o.numpy_dtype) for i, o in enumerate(case.operands)
    ]
    lead = len(case.mesh.sizes)
    for i, expected in enumerate(oracle_blocks(case, zeros)):
        shape, dtype = expected.shape[lead:], np.dtype(seen.dtypes[i])
        what = case.contract.call.leaf(case, i)
        if seen.shapes[i] != shape:
            raise WrongResult(f"{what} has blocks of shape {seen.shapes[i]}: expected {shape}")
        if dtype != expected.dtype:
            raise WrongResult(f"{what} has dtype {dtype}: expected {expected.dtype}")


def all_blocks(case: Case, stacked: np.ndarray) -> np.ndarray:
    """A stacked result as blocks of the whole mesh; over axes that it is not stacked over, all are equal."""
    missing = tuple(i for i, name in enumerate(case.mesh.axis_names) if name not in stacked_axes(case))
    spread = np.expand_dims(stacked, missing)
    return np.broadcast_to(spread, (*case.mesh.sizes, *spread.shape[len(case.mesh.sizes) :]))


def placed_blocks(case: Case, array: np.ndarray, placement: Placement) -> np.ndarray:
    """A global array with the layout of its type, as blocks `[*mesh.sizes, *block]`."""
    held = divide(array, case.mesh, placement.partition())
    rank = len(case.mesh.sizes)
    block = held.shape[rank + len(placement.stacked) :]
    return np.broadcast_to(held.reshape(*held.shape[:rank], *block), (*case.mesh.sizes, *block))


Arrays = Sequence[np.ndarray]

Place = int | None
"""The operand whose dimensions an array has, or None if they are those of a result."""


def reference_blocks(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results `[*mesh.sizes, *batch, *block]` in wide floats, before they are rounded."""
    return value_over_batch(case, widened_operands(case, operands))


def widened_operands(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The arrays of all operands, those that have a gradient in a dtype that loses nothing that matters."""
    moving = case.contract.call.moving(case)
    return [widened(o) if i in moving else o for i, o in enumerate(operands)]


def widened(array: np.ndarray) -> np.ndarray:
    """Floats in a dtype that loses nothing that matters; integers as they are, to wrap."""
    return array.astype(wide(array.dtype), copy=False) if is_float(array.dtype) else array


def oracle_blocks(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results `[*mesh.sizes, *batch, *block]`, given the operands' blocks, in their dtype."""
    exact = reference_blocks(case, operands)
    dtypes = case.contract.oracle.result_dtypes(case, [operand.dtype for operand in operands])
    return [round_to(e, dtype) for e, dtype in zip(exact, dtypes, strict=False)]  # a product has one result


def value_over_batch(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results, given blocks of the operands."""
    value = case.contract.oracle.value
    return _over_batch(case, operands, lambda blocks, _: value(case, _calls(case, blocks)[-1]))


def unrelated_over_batch(case: Case, operands: Arrays, results: Arrays) -> list[str]:
    """The errors of results that need only satisfy a relation, on each input of the batch; given all blocks."""
    holds, found = case.contract.oracle.holds, list[str]()
    assert holds is not None

    def relate(blocks: Arrays, of_results: Arrays) -> Arrays:
        found.append(holds(case, blocks, of_results))
        return []

    _over_batch(case, operands, relate, results)
    return list(filter(None, found))


def nearby_blocks(case: Case, operands: Arrays, leaf: int) -> np.ndarray:
    """One of the oracle's results as far off as its own doubles may be, as `reference_blocks` has them."""
    near = case.contract.oracle.nearby
    assert near is not None
    wide = widened_operands(case, operands)
    return _over_batch(case, wide, lambda blocks, _: near(case, _calls(case, blocks)[-1]))[leaf]


def pushed_over_batch(case: Case, operands: Arrays, tangents: Arrays) -> list[np.ndarray]:
    """The results' tangents, given blocks of the operands and of the tangents of the differentiable ones."""
    return _over_batch(case, operands, partial(_pushed, case), tangents, case.contract.call.moving(case))


def pulled_over_batch(case: Case, operands: Arrays, cotangents: Arrays) -> list[np.ndarray]:
    """The cotangents of the differentiable operands, given blocks of the operands and of the results' cotangents.

    Those of an operand that a part of the batch shares are summed.
    """
    return _over_batch(case, operands, partial(_pulled, case), cotangents, results=case.contract.call.moving(case))


def _calls(case: Case, blocks: Arrays) -> list[Arrays]:
    """The operands of every call; each call takes results of the one before it."""
    calls = [blocks]
    while len(calls) < case.calls:
        calls.append(next_operands(composed_operands(case), calls[-1], case.contract.oracle.value(case, calls[-1])))
    return calls


def _pushed(case: Case, blocks: Arrays, tangents: Arrays) -> Arrays:
    """The tangents of the results of the last call, by the chain rule."""
    moving, composed = case.contract.call.moving(case), composed_operands(case)
    among = {moving.index(place): number for place, number in composed.items()}
    first, *rest = _calls(case, blocks)
    pushed = case.contract.oracle.pushforward(case, first, tangents)
    for operands in rest:
        pushed = case.contract.oracle.pushforward(case, operands, next_operands(among, tangents, pushed))
    return pushed


def _pulled(case: Case, blocks: Arrays, cotangents: Arrays) -> Arrays:
    """The cotangents of the operands of the first call; those of operands that all calls share are summed."""
    moving, composed = case.contract.call.moving(case), composed_operands(case)
    first, *rest = _calls(case, blocks)
    every: list[Arrays] = []
    for operands in reversed(rest):
        pulled = dict(zip(moving, case.contract.oracle.pullback(case, operands, cotangents), strict=True))
        cotangents = [np.zeros_like(ct) for ct in cotangents]
        for place, number in composed.items():
            cotangents[number] = pulled[place]
        every.append([np.zeros_like(ct) if place in composed else ct for place, ct in pulled.items()])
    every.append(case.contract.oracle.pullback(case, first, cotangents))
    with np.errstate(invalid="ignore", over="ignore"):
        return [reduce(np.add, one) for one in zip(*every, strict=True)]


def _over_batch(
    case: Case,
    operands: Arrays,
    function: Callable[[Arrays, Arrays], Arrays],
    others: Arrays = (),
    places: Sequence[Place] | None = None,
    results: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """An oracle's function of blocks of operands, and more blocks, on each input of the batch.

    Arguments:
        places: the operands whose dimensions the `others` have; None if they have those of results.
        results: the operands whose dimensions the function's results have; None if they have those of results.

    Raises SuiteError if it fails, except for a derivative of a user's reference that JAX does not have.
    """
    lead, count = len(case.mesh.sizes), len(operands)
    all_places: Sequence[Place] = [*range(count), *(places or [None] * len(others))]
    every: list[list[np.ndarray] | None] = []
    try:
        for at in np.ndindex(*case.batch):
            blocks = []
            for array, place in zip([*operands, *others], all_places, strict=True):
                shared = () if place is None else case.shared_dimensions(place)
                chosen = tuple(i for d, i in enumerate(at) if d not in shared)
                blocks.append(np.asarray(array[(slice(None),) * lead + chosen]))
            with differentiating():
                every.append(list(function(blocks[:count], blocks[count:])) if case.keeps(at) else None)
    except NotDifferentiable:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        given = "reference" if case.contract.oracle.holds is None else "predicate"
        own = "the oracle fails, an error of this suite" if is_listed(case.contract) else f"the {given} fails"
        raise SuiteError(f"{own}: {type(error).__name__}: {first}, on {case}") from error
    if not case.batch:
        assert every[0] is not None
        return every[0]
    whole = []
    for i, one in enumerate(next(found for found in every if found is not None)):
        stack = np.stack([np.zeros_like(one) if found is None else found[i] for found in every], axis=lead)
        over_batch = stack.reshape(*one.shape[:lead], *case.batch, *one.shape[lead:])
        shared = () if results is None else case.shared_dimensions(results[i])
        with np.errstate(invalid="ignore", over="ignore"):
            whole.append(over_batch.sum(axis=tuple(lead + d for d in shared)) if shared else over_batch)
    return whole
