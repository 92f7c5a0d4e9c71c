"""The transformations that people put around a collective, none of which may change its meaning.

Each wraps a device-local function of blocks. Those that batch call it on `BATCH` inputs, stacked along a leading
dimension of every result and of the operands that they map (see `shardproof.properties.cases.chain`). Calls may be
composed: operands of the second call are results of the first.

Under a chain an oracle computes one input of the batch after the other; results that the chain drops are zeros. For
composed calls oracles are composed too, and their derivatives by the chain rule.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardproof.impl.collectives import cast_varying, varying
from shardproof.oracles.dtypes import is_float, round_to, wide
from shardproof.properties.cases.case import Case, dividing_axis
from shardproof.properties.cases.chain import COMPOSE, LINKS
from shardproof.properties.contracts import is_listed
from shardproof.properties.programs.violation import NotDifferentiable, SuiteError

Value = TypeVar("Value")

Composed = Mapping[int, int]
"""The numbers of the results that take the place of operands, by the operands' places."""


def can_compose(case: Case) -> bool:
    """True if calls can be composed where the chain says so: in links that map the operands that results replace."""
    if COMPOSE not in case.chain:
        return True
    if not case.contract.linear:  # data are made to fit a function, and its results need not be
        return False
    composed = composed_operands(case)
    inside = [LINKS[name] for name in case.chain[case.chain.index(COMPOSE) :]]
    return bool(composed) and all(link.maps_operand(place) for link in inside if link.batched for place in composed)


@lru_cache(maxsize=256)
def composed_operands(case: Case) -> Composed:
    """The operands that a second call gets from the results of the first: each has the shape, dtype and type of one.

    A result that varies less is cast. One may be typed to vary along all axes of the tuple, and wherever an operand
    does, whatever the function: so no result replaces an operand that varies less.
    """
    case = dataclasses.replace(case.structure, chain=(), manual=(), out=None)
    contract = case.contract
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    shapes = [result.shape[len(case.mesh.sizes) :] for result in contract.oracle.value(case, zeros)]
    dtypes = contract.oracle.result_dtypes(case, [o.numpy_dtype for o in case.operands])
    varying = frozenset(case.axes).union(*(o.placement.axes for o in case.operands))
    placed = None if contract.call.placed is None else contract.call.placed(case)
    pairs: dict[int, int] = {}
    for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False)):  # a product has one result
        for place in [number] if case.tree else contract.call.moving(case):
            operand = case.operands[place]
            like = (operand.block, operand.numpy_dtype) == (shape, dtype) and varying <= operand.placement.axes
            if place not in pairs and like and (placed is None or placed[number] == operand.placement):
                pairs[place] = number
                break
    return pairs


def next_operands(composed: Composed, operands: Sequence[Value], results: Sequence[Value]) -> list[Value]:
    """The operands of the next call."""
    return [results[composed[place]] if place in composed else operand for place, operand in enumerate(operands)]


Local = Callable[..., list[jax.Array]]
"""Blocks in, a list of result blocks out."""


def _vmap_last(fn: Local) -> Local:
    def batched(*xs: jax.Array) -> list[jax.Array]:
        moved = [jnp.moveaxis(x, 0, -1) for x in xs]
        return [jnp.moveaxis(y, -1, 0) for y in jax.vmap(fn, in_axes=-1, out_axes=-1)(*moved)]

    return batched


def _one_by_one(fn: Local, *, sequential: bool = False) -> Local:
    """The function on one input of the batch after the other; if `sequential`, each call waits for the one before."""

    def run(*xs: jax.Array) -> list[jax.Array]:
        results: list[list[jax.Array]] = []
        for i in range(len(xs[0])):
            given = (x[i] for x in xs)
            results.append(fn(*(_depending_on(results[-1], x) if sequential and results else x for x in given)))
        return [jnp.stack(ys) for ys in zip(*results, strict=True)]

    return run


def _traced_once(fn: Local) -> Local:
    """The function as a body of control flow, which is not traced again after `result_types`."""
    return jax.jit(fn, inline=True)


def _switch(fn: Local) -> Local:
    fn = _traced_once(fn)

    def choose(*xs: jax.Array) -> list[jax.Array]:
        types = result_types(fn, *xs)

        def zeros(*xs: jax.Array) -> list[jax.Array]:
            return [zeros_of_type(t) for t in types]

        index = lax.optimization_barrier(jnp.int32(1))  # which a compiler does not know
        chosen: list[jax.Array] = lax.switch(index, [zeros, lambda *xs: list(fn(*xs)), zeros], *xs)
        return chosen

    return choose


def _depending_on(results: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """The operand, chosen between itself and a number of a result that varies no further, which would change its type.

    A compiler does not know which, and derivatives go through both.
    """
    fitting = [y for y in results if varying(y) <= varying(x) and y.dtype == x.dtype and y.size]
    itself = lax.optimization_barrier(jnp.bool_(True))
    return jnp.where(itself, x, fitting[0].ravel()[0]) if fitting else x


def _compose(case: Case, fn: Local) -> Local:
    """Calls the function twice, the second time on results, cast to vary as the operands that they replace."""
    composed = composed_operands(case)

    def twice(*xs: jax.Array) -> list[jax.Array]:
        results = list(fn(*xs))
        given = next_operands(composed, xs, results)
        if any((y.shape, y.dtype) != (x.shape, x.dtype) for x, y in zip(xs, given, strict=True)):
            return results  # wrong as they are, which is what is reported
        return list(fn(*(cast_varying(y, varying(x)) for x, y in zip(xs, given, strict=True))))

    return twice


def _divergent_switch(fn: Local, axis: str, *, number: int) -> Local:
    """The call in all branches of a `switch`, of which devices along an axis take the next one each.

    Operands are cast outside: JAX adds up the derivatives of a replica inside of a branch (see the known defects).
    """
    fn = _traced_once(fn)

    def branch(i: int) -> Local:  # they differ, or a compiler makes one of all
        return lambda *xs: list(fn(*(xs if i == 0 else map(lax.optimization_barrier, xs))))

    def choose(*xs: jax.Array) -> list[jax.Array]:
        index = lax.axis_index(axis)
        branches, operands = [branch(i) for i in range(number)], cast_varying(xs, varying(index))
        chosen: list[jax.Array] = _with_carries(fn, xs, lambda: lax.switch(index % number, branches, *operands))
        return chosen

    return choose


def _with_carries(fn: Local, xs: Sequence[jax.Array], traced: Callable[[], Any]) -> Any:
    """The result of `traced()`, which traces the function with operands that vary along more axes.

    Raises:
        NotImplementedError: if the function has a loop that begins with a constant, whose type fits `xs` alone.
    """
    try:
        return traced()
    except TypeError as error:
        if "carry input and carry output must have equal types" not in str(error):
            raise
        result_types(fn, *xs)  # whose error it is if that fails as well
        raise NotImplementedError("a loop begins with what does not vary as the operands do") from error


def _divergent_while(fn: Local, axis: str) -> Local:
    """The call in every step of a `while_loop`, of which devices along an axis make one or two by turns."""
    fn = _traced_once(fn)

    def loop(*xs: jax.Array) -> list[jax.Array]:
        steps = 1 + lax.axis_index(axis) % 2
        operands = cast_varying(xs, varying(steps))
        nothing = [zeros_of_type(t) for t in _with_carries(fn, xs, lambda: result_types(fn, *operands))]

        def step(state: tuple[jax.Array, Any, Any]) -> tuple[jax.Array, Any, Any]:
            i, blocks, _ = state
            return i + 1, blocks, list(fn(*blocks))

        start = (jnp.int32(0), list(operands), nothing)
        results: list[jax.Array] = lax.while_loop(lambda state: state[0] < steps, step, start)[2]
        return results

    return loop


def zeros_of_type(aval: Any) -> jax.Array:
    """Zeros of an abstract value: its shape, its dtype, and its varying axes."""
    zeros: jax.Array = cast_varying(jnp.zeros(aval.shape, aval.dtype), aval.manual_axis_type.varying)
    return zeros


def result_types(fn: Local, *xs: jax.Array) -> list[Any]:
    """The abstract values of the results of `fn`, found by tracing it."""
    return list(jax.make_jaxpr(fn)(*xs).out_avals)


def _while(fn: Local) -> Local:
    fn = _traced_once(fn)

    def loop(*xs: jax.Array) -> list[jax.Array]:
        types = result_types(fn, *[x[0] for x in xs])
        buffers = [jnp.broadcast_to(zeros_of_type(t), (len(xs[0]), *t.shape)) for t in types]

        def step(state: tuple[jax.Array, list[jax.Array]]) -> tuple[jax.Array, list[jax.Array]]:
            i, held = state
            ys = fn(*[lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs])
            return i + 1, [lax.dynamic_update_index_in_dim(h, y, i, 0) for h, y in zip(held, ys, strict=True)]

        return lax.while_loop(lambda state: state[0] < len(xs[0]), step, (jnp.int32(0), buffers))[1]

    return loop


def _cond(fn: Local) -> Local:
    fn = _traced_once(fn)

    def choose(*xs: jax.Array) -> list[jax.Array]:
        types = result_types(fn, *[x[0] for x in xs])

        def step(carry: Any, inputs: tuple[jax.Array, Sequence[jax.Array]]) -> tuple[Any, list[jax.Array]]:
            flag, x = inputs
            return carry, lax.cond(flag, lambda x: list(fn(*x)), lambda x: [zeros_of_type(t) for t in types], x)

        return lax.scan(step, 0, (jnp.array([True, False]), xs))[1]

    return choose


WRAPS: Mapping[str, Callable[[Local], Local]] = {
    "inner_jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": jax.vmap,
    "vmap_last": _vmap_last,
    "vmap_named": lambda fn: jax.vmap(fn, axis_name="batch"),
    "vmap_first": lambda fn: lambda *xs: jax.vmap(fn, in_axes=(0, *(None for _ in xs[1:])))(*xs),
    "vmap_others": lambda fn: lambda *xs: jax.vmap(fn, in_axes=(None, *(0 for _ in xs[1:])))(*xs),
    "twice": _one_by_one,
    "sequential": partial(_one_by_one, sequential=True),
    "switch": _switch,
    "scan": lambda fn: lambda *xs: lax.scan(lambda carry, x: (carry, fn(*x)), 0, xs)[1],
    "while_loop": _while,
    "cond": _cond,
}
"""The links around a call, but for those that need the mesh."""

DIVERGENT: Mapping[str, Callable[[Local, str], Local]] = {
    "divergent_cond": partial(_divergent_switch, number=2),
    "divergent_switch": partial(_divergent_switch, number=3),
    "divergent_while": _divergent_while,
}
"""The links that need the axis along which devices diverge."""


def primal_of_vjp(fn: Local, moving: Sequence[int]) -> Local:
    """The function as differentiation runs it: a function with a derivative of its own has another forward rule."""

    def primal(*xs: jax.Array) -> list[jax.Array]:
        some, chosen = of_some(fn, xs, moving)
        results: list[jax.Array] = jax.vjp(some, *chosen)[0]
        return results

    return primal


def of_some(fn: Callable[..., Any], xs: Sequence[Any], moving: Sequence[int]) -> tuple[Callable[..., Any], Any]:
    """The function of some of its arguments alone, and these."""

    def some(*chosen: Any) -> Any:
        whole = dict(enumerate(xs)) | dict(zip(moving, chosen, strict=True))
        return fn(*whole.values())

    return some, tuple(xs[i] for i in moving)


def apply_chain(case: Case, fn: Local) -> Local:
    """A function with a case's chain around it: `outer(inner(fn))`."""
    for name in reversed(case.chain):
        if name in DIVERGENT:
            fn = DIVERGENT[name](fn, dividing_axis(case))
        elif name == COMPOSE:
            fn = _compose(case, fn)
        elif not LINKS[name].whole:
            fn = WRAPS[name](fn)
    return fn


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
