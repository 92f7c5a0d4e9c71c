"""Types on explicit axes: JAX types the result of an operation as the oracle says, or refuses as it does.

Types are looked at inside of the traced program, and as its results leave it. Nothing is run, so no devices are needed.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import NamedSharding

from shardproof.impl.reshard import spec as partition_spec
from shardproof.oracles import sharding_types as oracle
from shardproof.oracles.layout import Entries, spec_entries
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sharding_types import Ambiguous, Refused, ShardedType
from shardproof.properties.cases.strategies import meshes, specs
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.known_defects import DEFECTS

TYPED = max(10, settings().max_examples // 4)
"""Calls of each operation: they are traced, and nothing is compiled."""

REFUSED = "ShardingTypeError"
"""The exception that JAX raises where an operation has no type; it has no public name."""

Types = Sequence[ShardedType]
Rule = Callable[[Types, tuple[Any, ...], MeshCase], ShardedType]
"""The type of a result, given those of the operands, further parameters and the mesh; it may raise `Refused`."""


@dataclass(frozen=True)
class Call:
    """An operation on operands of these types, which name explicit axes of the mesh; `rule` types the result."""

    operation: str
    mesh: MeshCase
    operands: tuple[ShardedType, ...]
    params: tuple[Any, ...]
    function: Callable[..., Any]
    rule: Rule

    @property
    def expected(self) -> ShardedType:
        """The type of the result.

        Raises:
            Refused: if there is none.
        """
        return self.rule(self.operands, self.params, self.mesh)

    def __str__(self) -> str:
        given_ones = ", ".join(map(str, (*self.operands, *self.params)))
        return f"{self.operation}({given_ones}) on {self.mesh}"


DTYPES = ("float32", "bfloat16", "float16")
UNARY = (jnp.sin, jnp.negative, lambda x: x * 2)
BINARY = (jnp.add, jnp.multiply, jnp.maximum)
REDUCTIONS: tuple[Callable[..., Any], ...] = (jnp.sum, jnp.max, jnp.mean, jnp.prod)

Pairs = tuple[oracle.Pair, oracle.Pair]
"""Contracted dimensions, and batch dimensions."""

Drawn = tuple[tuple[ShardedType, ...], tuple[Any, ...], Callable[..., Any], Rule]
"""Operands, further parameters, a function of arrays, and the rule."""


@st.composite
def calls(draw: Any, operation: str, *, max_devices: int = 24) -> Call:
    """Calls of an operation, on meshes of which one axis may be automatic.

    Shrinks to one device, and to arrays that nothing shards.
    """
    mesh = meshes.within(draw, max_devices=max_devices, explicit=False)
    automatic = draw(sampled((None, None, *mesh.axis_names)), label="an automatic axis")
    kinds = tuple("auto" if name == automatic and len(mesh.sizes) > 1 else "explicit" for name in mesh.axis_names)
    mesh = MeshCase(mesh.axis_names, mesh.sizes, mesh.devices, kinds)
    return Call(operation, mesh, *OPERATIONS[operation](draw, mesh, draw(sampled(DTYPES), label="dtype")))


def _spec(draw: Any, mesh: MeshCase, rank: int, *, all_of_them: bool = False) -> Entries:
    axes = tuple(name for name, kind in mesh.types.items() if kind == "explicit")
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


def _contraction(draw: Any, mesh: MeshCase, dtype: str, *, asked: bool = False) -> Drawn:
    batch, contracted = draw(st.integers(0, 1), label="batch"), draw(st.integers(0, 2), label="contracted")
    left, right = draw(st.integers(0, 2 - batch), label="left"), draw(st.integers(0, 2 - batch), label="right")
    both = batch + contracted
    lhs, rhs = [*_spec(draw, mesh, both + left)], [*_spec(draw, mesh, both + right)]
    for i in range(both):
        kind = draw(st.integers(0, 7), label="sharded by")  # one of both, or both, equally or not
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
    if not asked:
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


def _contraction_to(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    return _contraction(draw, mesh, dtype, asked=True)


def _reshape(draw: Any, mesh: MeshCase, dtype: str) -> Drawn:
    kind = draw(sampled(("split", "merge", "any", "none")), label="kind")
    spec = _spec(draw, mesh, draw(st.integers(1, 3), label="rank"), all_of_them=kind == "merge")
    if kind == "merge" and draw(st.booleans(), label="unsharded in front"):
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
    places = st.lists(st.integers(0, 3), max_size=2)
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


OPERATIONS: dict[str, Callable[[Any, MeshCase, str], Drawn]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "contraction": _contraction,
    "contraction with out_sharding": _contraction_to,
    "reshape": _reshape,
    "resharding": _resharding,
}
"""The function that draws the rest of a call, by the name of the operation."""


def traced_type(call: Call) -> ShardedType:
    """The type that JAX gives the result, which is that of what leaves the program, and is shown as it is."""
    mesh, seen = abstract_mesh(call.mesh), []
    arguments = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, partition_spec(x.spec)))
        for x in call.operands
    ]

    def program(*arrays: Any) -> Any:
        result = call.function(*arrays)
        seen.append(jax.typeof(result))
        return result

    with jax.sharding.use_abstract_mesh(mesh):
        (leaving,) = jax.jit(program).trace(*arguments).jaxpr.out_avals
    inside, outside = (
        ShardedType(x.shape, spec_entries(x.sharding.spec, len(x.shape), call.mesh), str(x.dtype))
        for x in (seen[0], leaving)
    )
    assert inside == outside, f"{call}: {inside} inside of the program, {outside} outside"
    assert str(inside) == str(seen[0]), f"{call}: shown as {seen[0]}, expected {inside}"
    return inside


def check(call: Call, rule: Rule | None = None) -> None:
    """JAX types the result by the rule, or refuses what it refuses; of an ambiguous contraction it names the remedy."""
    expected: ShardedType | Refused
    seen: ShardedType | Exception
    try:
        expected = (rule or call.rule)(call.operands, call.params, call.mesh)
    except Refused as refused:
        expected = refused
    try:
        seen = traced_type(call)
    except AssertionError as error:
        if error.args and str(call) in str(error):
            raise
        seen = error
    except Exception as error:
        seen = error
    agree = isinstance(expected, Refused) and type(seen).__name__ == REFUSED
    if isinstance(expected, ShardedType) and isinstance(seen, ShardedType):
        ones = call.operation == "reshape"  # of which axes of one device may be lost: they shard nothing
        agree = without_ones(expected, call.mesh) == without_ones(seen, call.mesh) if ones else expected == seen
    if isinstance(expected, Ambiguous):
        agree = agree and "out_sharding" in str(seen)
    assert agree or excused(call, seen), f"{call}: {seen!r}, expected {expected!r}"


def without_ones(x: ShardedType, mesh: MeshCase) -> ShardedType:
    """A type without the axes of one device."""
    return ShardedType(x.shape, tuple(tuple(n for n in a if mesh.shape[n] > 1) for a in x.spec), x.dtype)


def excused(call: Call, seen: ShardedType | Exception) -> bool:
    """True if a known defect of JAX, or its stricter rule of batch dimensions, explains the outcome."""

    def has(defect: str) -> bool:
        return DEFECTS[defect].in_version(jax.__version__)

    name, text = type(seen).__name__, str(seen)
    if call.operation == "contraction":
        lhs, rhs = call.operands
        pairs = [(lhs.spec[i], rhs.spec[j]) for i, j in zip(*call.params[1], strict=True)]
        by_rhs, by_lhs = (any(b and not a for a, b in pairs), any(a and not b for a, b in pairs))
        refused = name == REFUSED and "batch dimensions to have the same sharding" in text
        strict = jax.version.__version_info__[:2] >= (0, 11) and refused and (by_rhs or by_lhs)
        return strict or (has("dot_general_batch_type") and isinstance(seen, ShardedType) and by_rhs)
    if call.operation != "reshape":
        return False
    (x,), (shape,) = call.operands, call.params
    of_one = any(call.mesh.shape[axis] == 1 for axes in x.spec for axis in axes[-1:])
    return (
        (has("reshape_axis_of_one") and of_one and type(seen) is AssertionError and not text)
        or (
            has("reshape_beside_ones") and (type(seen) is AssertionError or name == REFUSED) and 1 in (*x.shape, *shape)
        )
        or (has("reshape_to_ones") and type(seen) is IndexError and shape.count(1) > x.shape.count(1))
    )


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=TYPED)
@given(data=st.data())
def test_a_result_on_explicit_axes_is_typed(operation: str, data: st.DataObject) -> None:
    """Its type is the one that follows from those of the operands, and there is none where none follows."""
    check(data.draw(calls(operation), label="call"))


def never_ambiguous(xs: Types, params: Any, mesh: MeshCase) -> ShardedType:
    """A sum over dimensions that both operands shard is taken to be the same on all devices."""
    lhs, rhs = xs
    try:
        return oracle.contraction(lhs, rhs, *params)
    except Ambiguous:
        summed = tuple(() if i in params[0][1] else axes for i, axes in enumerate(rhs.spec))
        return oracle.contraction(lhs, replace(rhs, spec=summed), *params)


def the_last_part_is_sharded(xs: Types, params: Any, mesh: MeshCase) -> ShardedType:
    """Of parts that are sharded the axes go to the other one."""
    result = oracle.reshaped(xs[0], params[0], mesh)
    return replace(result, spec=result.spec[::-1]) if result.rank > xs[0].rank else result


def the_last_axis_is_dropped(xs: Types, params: Any, mesh: MeshCase) -> ShardedType:
    """Of several axes of a dimension the last one shards nothing."""
    return oracle.resharded(xs[0], [axes[:-1] if len(axes) > 1 else axes for axes in params[0]], mesh)


WRONG: list[tuple[str, Rule]] = [
    ("contraction", never_ambiguous),
    ("reshape", the_last_part_is_sharded),
    ("resharding", the_last_axis_is_dropped),
]
"""Wrong rules of some operations, each of which few calls show."""


MESH = MeshCase(("dp", "tp", "pp"), (2, 2, 1), axis_types=("explicit",) * 3)


def typed(text: str) -> ShardedType:
    """`8@dp,4@(tp,pp),3` as a type."""
    entries = [part.partition("@") for part in re.findall(r"\d+(?:@(?:\w+|\([\w,]+\)))?", text)]
    spec = tuple(tuple(name for name in re.split(r"[(),]", axes) if name) for _, _, axes in entries)
    return ShardedType(tuple(int(size) for size, _, _ in entries), spec)


def search(operation: str, examples: int, rule: Rule) -> None:
    """Checks a rule, in place of the oracle's, on `examples` calls."""

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(calls(operation))
    def every(call: Call) -> None:
        check(call, rule)

    every()


@pytest.mark.parametrize(("operation", "rule"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_rule_is_found(operation: str, rule: Rule) -> None:
    """Among as many calls as some runs draw: one run finds some of them with one seed in three."""
    with pytest.raises(AssertionError, match=re.escape(f"{operation}(")):
        search(operation, 32 * TYPED, rule)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ((("dp",), ("dp",)), "each mesh axis at most once"),
        ((("ep",), ()), "'ep' is not an axis"),
        (((), ("dp", "tp")), "to divide their dimensions"),
        (((), (), ()), "at most 2 entries"),
    ],
)
def test_what_cannot_be_resharded(spec: tuple[tuple[str, ...], ...], match: str) -> None:
    """An axis twice, an unknown one, one that does not divide, one dimension too many."""
    with pytest.raises(Refused, match=match):
        oracle.resharded(typed("8,6"), spec, MESH)


def test_a_type_is_shown_as_jax_does() -> None:
    """With the axes of every dimension, in parentheses if there are several."""
    assert str(typed("8@dp,4@(tp,pp),3")) == "float32[8@dp,4@(tp,pp),3]"
    with pytest.raises(Refused, match=r"float32\[8@dp,4@dp\]: an axis shards two dimensions"):
        typed("8@dp,4@dp")
