"""Running a case: programs made ready once per structure, and their results as blocks, beside those of oracles.

Under a chain of transformations an oracle is asked of one input of the batch after the other, and what is not kept is
zeros. Of calls that feed one another oracles are composed: derivatives by the chain rule.
"""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad

from shardproof.oracles.dtypes import is_float, rounded, wide
from shardproof.properties.cases.case import Case, Placement, stacked_axes
from shardproof.properties.contracts import listed
from shardproof.properties.engines import Engine, Prepared, SimulateEngine, XlaEngine
from shardproof.properties.engines.engine import Compiled, InTwo, abstract_mesh
from shardproof.properties.engines.simulate import Simulated, raised_in
from shardproof.properties.engines.simulate.exchange import divide
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.engines.simulate.prepare import select_results
from shardproof.properties.programs.derivatives import derivatives
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program, Seen, WrongResult, answering, forward
from shardproof.properties.programs.transformations import fed_operands, refilled
from shardproof.properties.programs.violation import NotDifferentiable, SuiteError

KEPT = 32
"""How many structures stay compiled: Hypothesis tries one again and again while it shrinks."""

MODES = {"gradient": (True, True), "reverse gradient": (False, True), "forward gradient": (True, False)}
"""What is made ready of a derivative: whether forward mode, and whether reverse mode."""

NO_FORWARD_MODE = "a custom_vjp has no forward mode"

_ready: OrderedDict[tuple[object, ...], "Ready"] = OrderedDict()


@dataclass(frozen=True)
class Ready:
    """A structure made ready: what runs it, and what was seen of it."""

    prepared: Prepared
    seen: Seen
    placements: tuple[Placement, ...] = ()


def traced(program: Program, case: Case) -> Any:
    """The jaxpr of a program under an abstract mesh: what it must refuse is refused here, before anything runs."""
    mesh = abstract_mesh(case.mesh)
    with answering():  # the rules of derivatives as well
        return jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))


def ready(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The structure of `case` made ready as `kind`: `value`, `placed`, or one of `MODES`.

    Raises:
        NotDifferentiable: if JAX has no derivative of the function in a mode that is asked for.
        WrongResult: if what the function returns has another tree, or in a derivative other shapes, than it should.
    """
    structure = case.structure if kind == "placed" else _without_out(case)
    key = (kind, implementation, structure, engine.name)
    if key in _ready:
        _ready.move_to_end(key)
        return _ready[key]
    made = _make(kind, implementation, case, engine)
    _keep(key, made)
    jaxpr = made.prepared.jaxpr
    if engine.name == XlaEngine.name and jaxpr is not None:  # of which the interpreter need not trace its own
        as_well = (kind, implementation, structure, SimulateEngine.name)
        _keep(as_well, dataclasses.replace(made, prepared=Simulated(jaxpr)))
    return made


def derived(implementation: Implementation, case: Case, engine: Engine) -> tuple[str, Ready]:
    """The derivative in both modes, or in the one that there is, and which; raises NotImplementedError for none.

    A custom_vjp has no forward mode, a while_loop no reverse mode.
    """
    first: NotImplementedError | None = None
    for kind in MODES:
        try:
            return kind, ready(kind, implementation, case, engine)
        except NotImplementedError as error:
            first = first or error
    assert first is not None
    raise first


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


def _keep(key: tuple[object, ...], made: Ready) -> None:
    _ready[key] = made
    if len(_ready) > KEPT:
        _ready.popitem(last=False)


def _without_out(case: Case) -> Case:
    return dataclasses.replace(case.structure, out=None)


def forget() -> None:
    """Makes every structure ready anew: JAX's rules are others than they were."""
    _ready.clear()


def _make(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    seen = Seen()
    if kind == "value":
        with differentiating():  # where a link of its chain does
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
        with answering():  # the rules of derivatives
            prepared = engine.prepare(program, case.mesh)
        # jvp of a custom_vjp is traced all the same, to a primitive that nothing can run
        jaxpr = traced(program, case) if prepared.jaxpr is None else prepared.jaxpr
        if forward_mode and any(equation.primitive.name == "custom_lin" for equation in equations(jaxpr)):
            raise NotDifferentiable(NO_FORWARD_MODE)
        if forward_mode and reverse_mode and isinstance(prepared, Compiled):
            prepared = InTwo(prepared, 2 * len(placements))
        return Ready(prepared, seen, tuple(placements))


@contextmanager
def whole_tracebacks() -> Iterator[None]:
    """JAX leaves its own frames in tracebacks: they tell its exceptions from those of a function."""
    before = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009 (mypy does not know of it)
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


@contextmanager
def differentiating() -> Iterator[None]:
    """Tells what JAX has no derivative of from any other exception: by where, or with which words, it was raised.

    That is what it has no rule for, the transpose of a while_loop, forward mode of a custom_vjp where it is mapped, and
    what has no rule that keeps values apart from derivatives, as a custom_vmap.

    Raises:
        NotDifferentiable: in place of what JAX raises.
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
    """Raises WrongResult unless results have the shapes and dtypes of the oracle's."""
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
    """A stacked result as blocks of the whole mesh; over axes that it is not stacked over it is one value."""
    missing = tuple(i for i, name in enumerate(case.mesh.axis_names) if name not in stacked_axes(case))
    spread = np.expand_dims(stacked, missing)
    return np.broadcast_to(spread, (*case.mesh.sizes, *spread.shape[len(case.mesh.sizes) :]))


def placed_blocks(case: Case, array: np.ndarray, placement: Placement) -> np.ndarray:
    """A global array that leaves by type, as blocks `[*mesh.sizes, *block]`."""
    held = divide(array, case.mesh, placement.partition())
    rank = len(case.mesh.sizes)
    block = held.shape[rank + len(placement.stacked) :]
    return np.broadcast_to(held.reshape(*held.shape[:rank], *block), (*case.mesh.sizes, *block))


Arrays = Sequence[np.ndarray]

Place = int | None
"""The operand whose dimensions an array has, or None of one that has those of a result."""


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
    return [rounded(e, dtype) for e, dtype in zip(exact, dtypes, strict=False)]  # a product has one result


def value_over_batch(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results, given blocks of the operands."""
    return _over_batch(
        case, operands, range(len(operands)), lambda blocks: case.contract.oracle.value(case, _calls(case, blocks)[-1])
    )


def unrelated_over_batch(case: Case, operands: Arrays, results: Arrays) -> list[str]:
    """What is wrong with results that are right only up to a relation, on each input of the batch; given all blocks."""
    count, holds, found = len(operands), case.contract.oracle.holds, list[str]()
    assert holds is not None

    def relate(blocks: list[np.ndarray]) -> Arrays:
        found.append(holds(case, blocks[:count], blocks[count:]))
        return []

    _over_batch(case, [*operands, *results], [*range(count), *(None for _ in results)], relate)
    return list(filter(None, found))


def nearby_blocks(case: Case, operands: Arrays, leaf: int) -> np.ndarray:
    """One of the oracle's results as far off as its own doubles may be, as `reference_blocks` has them."""
    near, wide = case.contract.oracle.nearby, widened_operands(case, operands)
    assert near is not None
    return _over_batch(case, wide, range(len(wide)), lambda blocks: near(case, _calls(case, blocks)[-1]))[leaf]


def pushed_over_batch(case: Case, operands: Arrays, tangents: Arrays) -> list[np.ndarray]:
    """The results' tangents, given blocks of the operands and of the tangents of those that move."""
    count, moving = len(operands), case.contract.call.moving(case)
    return _over_batch(
        case,
        [*operands, *tangents],
        [*range(count), *moving],
        lambda blocks: _pushed(case, blocks[:count], blocks[count:]),
    )


def pulled_over_batch(case: Case, operands: Arrays, cotangents: Arrays) -> list[np.ndarray]:
    """The cotangents of the operands that move, given blocks of the operands and of the results' cotangents.

    Of an operand that a part of the batch shares they are added up.
    """
    count, moving = len(operands), case.contract.call.moving(case)
    return _over_batch(
        case,
        [*operands, *cotangents],
        [*range(count), *(None for _ in cotangents)],
        lambda blocks: _pulled(case, blocks[:count], blocks[count:]),
        moving,
    )


def _calls(case: Case, blocks: Arrays) -> list[Arrays]:
    """The operands of every call, each but the first fed by the one before it."""
    calls = [blocks]
    while len(calls) < case.calls:
        calls.append(refilled(fed_operands(case), calls[-1], case.contract.oracle.value(case, calls[-1])))
    return calls


def _pushed(case: Case, blocks: Arrays, tangents: Arrays) -> Arrays:
    """The tangents of the results of the last call: those of one are tangents of the operands that it feeds."""
    if case.calls == 1:
        return case.contract.oracle.pushforward(case, blocks, tangents)
    moving, fed = case.contract.call.moving(case), fed_operands(case)
    among = {moving.index(place): number for place, number in fed.items()}
    first, *rest = _calls(case, blocks)
    pushed = case.contract.oracle.pushforward(case, first, tangents)
    for operands in rest:
        pushed = case.contract.oracle.pushforward(case, operands, refilled(among, tangents, pushed))
    return pushed


def _pulled(case: Case, blocks: Arrays, cotangents: Arrays) -> Arrays:
    """The cotangents of the operands of the first call, with those of what all calls share, which add up."""
    if case.calls == 1:
        return case.contract.oracle.pullback(case, blocks, cotangents)
    moving, fed = case.contract.call.moving(case), fed_operands(case)
    first, *rest = _calls(case, blocks)
    every: list[Arrays] = []
    for operands in reversed(rest):
        pulled = dict(zip(moving, case.contract.oracle.pullback(case, operands, cotangents), strict=True))
        cotangents = [np.zeros_like(ct) for ct in cotangents]
        for place, number in fed.items():
            cotangents[number] = pulled[place]
        every.append([np.zeros_like(ct) if place in fed else ct for place, ct in pulled.items()])
    every.append(case.contract.oracle.pullback(case, first, cotangents))
    with np.errstate(invalid="ignore", over="ignore"):
        return [functools.reduce(np.add, one) for one in zip(*every, strict=True)]


def _over_batch(
    case: Case,
    arrays: Arrays,
    places: Sequence[Place],
    function: Callable[[list[np.ndarray]], Arrays],
    results: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """An oracle's `function` of blocks on each input of the batch; what it gives is like operands, or like results.

    Raises:
        NotDifferentiable: if it is the derivative of a user's reference, of which JAX has none in that mode.
        SuiteError: if it fails.
    """
    lead = len(case.mesh.sizes)
    every: list[list[np.ndarray] | None] = []
    try:
        for at in np.ndindex(*case.batch):
            blocks = []
            for array, place in zip(arrays, places, strict=True):
                shared = () if place is None else case.shared_dimensions(place)
                chosen = tuple(i for d, i in enumerate(at) if d not in shared)
                blocks.append(np.asarray(array[(slice(None),) * lead + chosen]))
            with differentiating():
                every.append(list(function(blocks)) if case.keeps(at) else None)
    except NotDifferentiable:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        given = "reference" if case.contract.oracle.holds is None else "predicate"
        own = "the oracle fails, an error of this suite" if listed(case.contract) else f"the {given} fails"
        raise SuiteError(f"{own}: {case}: {type(error).__name__}: {first}") from error
    if not case.batch:
        assert every[0] is not None
        return every[0]
    kept = next(found for found in every if found is not None)
    whole = []
    for i, one in enumerate(kept):
        stack = np.stack([np.zeros_like(one) if found is None else found[i] for found in every], axis=lead)
        spread = stack.reshape(*one.shape[:lead], *case.batch, *one.shape[lead:])
        shared = () if results is None else case.shared_dimensions(results[i])
        with np.errstate(invalid="ignore", over="ignore"):
            whole.append(spread.sum(axis=tuple(lead + d for d in shared)) if shared else spread)
    return whole
