"""Running a case: programs made ready once per structure, and their results as blocks."""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad

from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.manual import stacked_axes
from shardproof.properties.engines import Engine, Interpreted, Prepared, SimulateEngine, XlaEngine
from shardproof.properties.engines.batches import oracle_blocks
from shardproof.properties.engines.simulate import raised_in
from shardproof.properties.engines.simulate.exchange import divide
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.programs.derivatives import derivatives
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program, Seen, WrongResult, answering, forward
from shardproof.properties.programs.violation import NotDifferentiable

KEPT = 32
"""How many structures stay compiled: Hypothesis tries one again and again while it shrinks."""

MODES = {"gradient": (True, True), "reverse gradient": (False, True), "forward gradient": (True, False)}
"""What is made ready of a derivative: whether forward mode, and whether reverse mode."""

CUSTOM_VJP = "raise_custom_vjp_error_on_jvp"
"""The function in which JAX refuses forward mode of a custom_vjp."""

NO_FORWARD_MODE = "a custom_vjp has no forward mode"

LINEARIZATION = "Linearization failed"
"""How JAX's exception begins where a function has no reverse mode."""

_ready: OrderedDict[tuple[object, ...], "Ready"] = OrderedDict()
_seen: OrderedDict[tuple[object, ...], Seen] = OrderedDict()


@dataclass(frozen=True)
class Ready:
    """A structure made ready: what runs it, and what was seen of it."""

    prepared: Prepared
    seen: Seen
    placements: tuple[Placement, ...] = ()


def traced(program: Program, case: Case, engine: Engine) -> Any:
    """The jaxpr of a program under an abstract mesh: what it must refuse is refused here, before anything runs."""
    mesh = engine.abstract_mesh(case.mesh)
    with answering():  # the rules of derivatives as well
        return jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))


def contains(jaxpr: Any, primitive: str) -> bool:
    """Whether an equation of that primitive is in a program, or in one inside of it."""
    return any(equation.primitive.name == primitive for equation in equations(jaxpr))


def ready(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The structure of `case` made ready as `kind`: `value`, `placed`, or one of `MODES`.

    Raises:
        NotDifferentiable: if JAX has no derivative of the function in a mode that is asked for.
        WrongResult: if what the function returns has another tree, or in a derivative other shapes, than it should.
    """
    structure = case.structure if kind == "placed" else dataclasses.replace(case.structure, out=None)
    key = (kind, implementation, structure, engine.name)
    if key in _ready:
        _ready.move_to_end(key)
        return _ready[key]
    made = _make(kind, implementation, case, engine)
    _keep(key, made)
    jaxpr = made.prepared.jaxpr
    if engine.name == XlaEngine.name and jaxpr is not None:  # of which the interpreter need not trace its own
        as_well = (kind, implementation, structure, SimulateEngine.name)
        _keep(as_well, dataclasses.replace(made, prepared=Interpreted.of(jaxpr)))
    return made


def derived(implementation: Implementation, case: Case, engine: Engine) -> tuple[str, Ready]:
    """The derivative in both modes, or in the one that there is, and which of `MODES` that is.

    A custom_vjp has no forward mode, a while_loop no reverse mode.

    Raises:
        NotImplementedError: if the implementation has no derivative in any mode.
    """
    first: NotImplementedError | None = None
    for kind in MODES:
        try:
            return kind, ready(kind, implementation, case, engine)
        except NotImplementedError as error:
            first = first or error
    assert first is not None
    raise first


def _keep(key: tuple[object, ...], made: Ready) -> None:
    _ready[key] = made
    if len(_ready) > KEPT:
        _ready.popitem(last=False)


def forget() -> None:
    """Makes every structure ready anew: JAX's rules are others than they were."""
    _ready.clear()
    _seen.clear()


def seen_of_values(implementation: Implementation, case: Case, engine: Engine) -> Seen:
    """What is seen when values of a structure are traced, which its derivatives must know; traced once for that."""
    key = (implementation, dataclasses.replace(case.structure, out=None))
    if key not in _seen:
        seen = Seen()
        traced(forward(case, implementation, seen), case, engine)
        remember(implementation, case, seen)
    return dataclasses.replace(_seen[key])


def remember(implementation: Implementation, case: Case, seen: Seen) -> None:
    """Keeps what was seen when the values of a structure were traced."""
    _seen[implementation, dataclasses.replace(case.structure, out=None)] = dataclasses.replace(seen)
    if len(_seen) > KEPT:
        _seen.popitem(last=False)


def _make(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    seen = Seen()
    if kind == "value":
        with differentiating():  # where a link of its chain does
            prepared = engine.prepare(forward(case, implementation, seen), case.mesh)
        if prepared.jaxpr is not None:
            remember(implementation, case, seen)
        return Ready(prepared, seen)
    if kind == "placed":
        return Ready(engine.prepare(forward(case, implementation, seen, out="placed"), case.mesh), seen)
    forward_mode, reverse_mode = MODES[kind]
    with differentiating():  # as for values
        seen = seen_of_values(implementation, case, engine)
    check_results(case, seen)
    program, placements = derivatives(case, implementation, seen, forward_mode=forward_mode, reverse_mode=reverse_mode)
    with differentiating():
        with answering():  # the rules of derivatives
            prepared = engine.prepare(program, case.mesh)
        # jvp of a custom_vjp is traced all the same, to a primitive that nothing can run
        jaxpr = traced(program, case, engine) if prepared.jaxpr is None else prepared.jaxpr
        if forward_mode and contains(jaxpr, "custom_lin"):
            raise NotDifferentiable(NO_FORWARD_MODE)
        return Ready(prepared, seen, tuple(placements))


@contextmanager
def differentiating() -> Iterator[None]:
    """Tells what JAX has no derivative of from any other exception: by where, or with which words, it was raised.

    That is the transpose of a while_loop, forward mode of a custom_vjp where it is mapped, and what has no rule that
    keeps values apart from derivatives, as a custom_vmap.

    Raises:
        NotDifferentiable: in place of what JAX raises.
    """
    try:
        yield
    except ValueError as error:
        frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        if frames[-1] is ad.primitive_transposes[lax.while_p].__code__:
            raise NotDifferentiable("a while_loop has no reverse mode") from error
        if str(error).startswith(LINEARIZATION) and raised_in(error).startswith("jax."):
            raise NotDifferentiable(str(error).partition(". ")[0]) from error
        raise
    except TypeError as error:
        *_, (last, _) = walk_tb(error.__traceback__)
        if last.f_code.co_name == CUSTOM_VJP and raised_in(error).startswith("jax."):
            raise NotDifferentiable(NO_FORWARD_MODE) from error
        raise


def check_results(case: Case, seen: Seen) -> None:
    """Results have the shapes and dtypes of the oracle's.

    Raises:
        WrongResult: if one has not.
    """
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
