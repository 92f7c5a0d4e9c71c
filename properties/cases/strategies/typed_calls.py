"""Calls on explicit axes to check the types of: operations, operands and layouts of them, drawn."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

from shardproof.impl.baselines import spec as partition_spec
from shardproof.oracles import sharding_types as oracle
from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sharding_types import ShardedType
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.meshes import meshes
from shardproof.properties.cases.strategies.specs import specs
from shardproof.properties.cases.typed_call import Call, explicit_axes

DTYPES = ("float32", "bfloat16", "float16")
UNARY = (jnp.sin, jnp.negative, lambda x: x * 2)
BINARY = (jnp.add, jnp.multiply, jnp.maximum)
REDUCTIONS: tuple[Callable[..., Any], ...] = (jnp.sum, jnp.max, jnp.mean, jnp.prod)

Pairs = tuple[oracle.Pair, oracle.Pair]
"""Contracted dimensions, and batch dimensions."""

Drawn = tuple[tuple[ShardedType, ...], tuple[Any, ...], Callable[..., Any], Callable[..., ShardedType]]
"""Operands, further parameters, a function of arrays, and what types its result."""


@st.composite
def meshes_with_explicit_axes(draw: Any, *, max_devices: int = 24) -> MeshCase:
    """Meshes of which all axes, or some, are explicit. Shrinks to one device."""
    mesh = meshes.within(draw, max_devices=max_devices, explicit=False)
    automatic = draw(sampled((None, None, *mesh.axis_names)), label="an automatic axis")
    some = tuple("auto" if name == automatic and len(mesh.sizes) > 1 else "explicit" for name in mesh.axis_names)
    return MeshCase(mesh.axis_names, mesh.sizes, mesh.devices, some)


@st.composite
def calls(draw: Any, operation: str, *, max_devices: int = 24) -> Call:
    """Calls of an operation. Shrinks to one device, and to arrays that nothing shards."""
    mesh = draw(meshes_with_explicit_axes(max_devices=max_devices))
    operands, params, function, rule = OPERATIONS[operation](draw, mesh, draw(sampled(DTYPES), label="dtype"))
    return Call(operation, mesh, operands, params, function, lambda xs, params, mesh: rule(xs, params, mesh))


def _spec(draw: Any, mesh: MeshCase, rank: int, *, all_of_them: bool = False) -> Entries:
    axes = explicit_axes(mesh)
    return specs.within(draw, mesh, rank, allowed=axes, required=axes if all_of_them else ())


def _sizes(draw: Any, mesh: MeshCase, *layouts: Entries, most: int = 2) -> tuple[int, ...]:
    """Sizes of dimensions that all of the layouts divide."""
    return tuple(
        math.lcm(*map(mesh.axis_size, entries)) * draw(st.integers(1, most), label="factor")
        for entries in zip(*layouts, strict=True)
    )


def _without(entries: Sequence[tuple[str, ...]], taken: Sequence[tuple[str, ...]]) -> Entries:
    """Entries without those that name an axis that others do."""
    names = {name for axes in taken for name in axes}
    return tuple(axes if not names & {*axes} else () for axes in entries)


def _elementwise(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    rank, count = draw(st.integers(0, 3), label="rank"), draw(st.integers(1, 3), label="operands")
    result, other = _spec(draw, mesh, rank), _spec(draw, mesh, rank)
    kinds = [[draw(st.integers(0, 11), label="dimension") for _ in range(rank)] for _ in range(count)]
    mixed = any(kind > 9 for of_one in kinds for kind in of_one)
    sizes = _sizes(draw, mesh, result, *([other] if mixed else []))
    operands = []
    for of_one in kinds:
        some = [r if kind < 5 else () for kind, r in zip(of_one, result, strict=True)]
        more = [o if kind > 9 else () for kind, o in zip(of_one, other, strict=True)]
        spec = tuple(a or b for a, b in zip(some, _without(more, some), strict=True))
        shape = tuple(1 if kind == 7 else n for kind, n in zip(of_one, sizes, strict=True))
        first = 0 if rank == 0 or of_one[0] not in (8, 9) else 1  # of fewer dimensions
        operands.append(ShardedType(shape[first:], spec[first:], dtype))
    one, two = draw(sampled(UNARY), label="unary"), draw(sampled(BINARY), label="binary")

    def function(*xs: Any) -> Any:
        total = one(xs[0])
        for x in xs[1:]:
            total = two(total, x)
        return total

    return tuple(operands), (), function, lambda xs, params, mesh: oracle.elementwise(*xs)


def _one(draw: Any, mesh: MeshCase, dtype: str, *, least: int = 0) -> ShardedType:
    spec = _spec(draw, mesh, draw(st.integers(least, 3), label="rank"))
    return ShardedType(_sizes(draw, mesh, spec), spec, dtype)


def _reduction(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    x = _one(draw, mesh, dtype, least=1)
    dimensions = tuple(sorted(draw(st.sets(st.integers(0, x.rank - 1), min_size=1), label="dimensions")))
    keepdims, reduce = draw(st.booleans(), label="keepdims"), draw(sampled(REDUCTIONS), label="reduction")
    return (
        (x,),
        (dimensions, keepdims),
        lambda x: reduce(x, axis=dimensions, keepdims=keepdims),
        lambda xs, params, mesh: oracle.reduction(xs[0], params[0], keepdims=params[1]),
    )


def _transpose(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    x = _one(draw, mesh, dtype)
    permutation = tuple(draw(st.permutations(range(x.rank)), label="permutation"))
    return (
        (x,),
        (permutation,),
        lambda x: jnp.transpose(x, permutation),
        lambda xs, params, mesh: oracle.transposed(xs[0], *params),
    )


def _broadcast(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    x = _one(draw, mesh, dtype)
    front = draw(st.lists(st.integers(1, 3), max_size=2), label="new dimensions")
    longer = draw(st.integers(1, 3), label="what was one")
    shape = (*front, *(longer if n == 1 and not axes else n for n, axes in zip(x.shape, x.spec, strict=True)))
    return (
        (x,),
        (shape,),
        lambda x: jnp.broadcast_to(x, shape),
        lambda xs, params, mesh: oracle.broadcast(xs[0], *params),
    )


def _contraction(draw: Any, mesh: MeshCase, dtype: str, *, told: bool = False) -> Drawn:
    batch, contracted = draw(st.integers(0, 1), label="batch"), draw(st.integers(0, 2), label="contracted")
    left, right = draw(st.integers(0, 2 - batch), label="left"), draw(st.integers(0, 2 - batch), label="right")
    both = batch + contracted
    lhs, rhs = [*_spec(draw, mesh, both + left)], [*_spec(draw, mesh, both + right)]
    for i in range(both):
        kind = draw(st.integers(0, 7), label="sharded by")  # one of both, or both, alike or not
        lhs[i], rhs[i] = {0: ((), rhs[i]), 1: (lhs[i], ()), 2: (lhs[i], rhs[i])}.get(kind, (lhs[i], lhs[i]))
        if kind > 5 or (i >= batch and kind > 3):
            rhs[i] = ()
    for i in range(len(rhs)):  # an axis shards one dimension
        rhs[i : i + 1] = _without(rhs[i : i + 1], rhs[:i])
    if draw(st.integers(0, 3), label="apart"):
        rhs[both:] = _without(rhs[both:], lhs)
    shared = _sizes(draw, mesh, tuple(lhs[:both]), tuple(rhs[:both]))
    own, others = _sizes(draw, mesh, tuple(lhs[both:])), _sizes(draw, mesh, tuple(rhs[both:]))
    orders = [draw(st.permutations(range(both + more)), label="order") for more in (left, right)]
    operands = tuple(
        oracle.transposed(ShardedType((*shared, *sizes), tuple(spec), dtype), order)
        for sizes, spec, order in zip((own, others), (lhs, rhs), orders, strict=True)
    )
    at, others_at = ([order.index(i) for i in range(both)] for order in orders)
    pairs: Pairs = (
        (tuple(at[batch:]), tuple(others_at[batch:])),
        (tuple(at[:batch]), tuple(others_at[:batch])),
    )
    if not told:
        return (
            operands,
            pairs,
            lambda lhs, rhs: lax.dot_general(lhs, rhs, pairs),
            lambda xs, params, mesh: oracle.contraction(*xs, *params),
        )
    shape = _product(operands, pairs).shape
    wanted = _spec(draw, mesh, len(shape))
    out = tuple(axes if n % mesh.axis_size(axes) == 0 else () for n, axes in zip(shape, wanted, strict=True))
    return (
        operands,
        (*pairs, out),
        lambda lhs, rhs: lax.dot_general(lhs, rhs, pairs, out_sharding=partition_spec(out)),
        lambda xs, params, mesh: oracle.resharded(_product(xs, (params[0], params[1])), params[2], mesh),
    )


def _product(operands: Sequence[ShardedType], pairs: Pairs) -> ShardedType:
    """The product of the operands if nothing sharded them."""
    lhs, rhs = (ShardedType(x.shape, ((),) * x.rank, x.dtype) for x in operands)
    return oracle.contraction(lhs, rhs, *pairs)


def _told_contraction(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    return _contraction(draw, mesh, dtype, told=True)


def _reshape(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    kind = draw(sampled(("split", "merge", "merge", "any", "none")), label="kind")
    spec = _spec(draw, mesh, draw(st.integers(1, 3), label="rank"), all_of_them=kind == "merge")
    if kind == "merge" and draw(st.integers(0, 3), label="unsharded in front") == 3:
        spec = tuple(sorted(spec, key=bool))
    sizes = [n if n > 1 or axes else 2 for n, axes in zip(_sizes(draw, mesh, spec, most=4), spec, strict=True)]
    several = 2 if kind == "merge" and len(spec) > 1 else 1
    start = draw(st.integers(0, len(spec) - several), label="from")
    end = start + draw(st.integers(several, len(spec) - start), label="how many")
    new = [*sizes]
    if kind == "merge":
        new[start:end] = [math.prod(sizes[start:end])]
    elif kind == "split":
        new[start : start + 1] = _factors(draw, sizes[start])
    elif kind == "any":
        new[start:end] = _factors(draw, math.prod(sizes[start:end]))
    old, entries = [*sizes], [*spec]
    places = st.lists(st.integers(0, 3), max_size=2 if draw(st.integers(0, 3), label="ones") == 3 else 0)
    for at in draw(places, label="ones before"):
        old[at:at], entries[at:at] = [1], [()]
    for at in draw(places, label="ones after"):
        new[at:at] = [1]
    shape = tuple(new)
    return (
        (ShardedType(tuple(old), tuple(entries), dtype),),
        (shape,),
        lambda x: jnp.reshape(x, shape),
        lambda xs, params, mesh: oracle.reshaped(xs[0], params[0], mesh),
    )


def _factors(draw: Any, n: int) -> list[int]:
    """Two or three factors of a number."""
    found = []
    for _ in range(draw(st.integers(1, 2), label="cuts")):
        factor = draw(sampled([d for d in range(1, n + 1) if n % d == 0]), label="factor")
        found.append(factor)
        n //= factor
    return [*found, n]


def _resharding(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    rank = draw(st.integers(0, 3), label="rank")
    held, wanted = _spec(draw, mesh, rank), _spec(draw, mesh, rank)
    x = ShardedType(_sizes(draw, mesh, held, wanted), held, dtype)
    return (
        (x,),
        (wanted,),
        lambda x: jax.reshard(x, partition_spec(wanted)),
        lambda xs, params, mesh: oracle.resharded(xs[0], params[0], mesh),
    )


OPERATIONS: dict[str, Callable[[st.DrawFn, MeshCase, str], Drawn]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "contraction": _contraction,
    "contraction with out_sharding": _told_contraction,
    "reshape": _reshape,
    "resharding": _resharding,
}
"""What draws the rest of a call, by the name of the operation."""
