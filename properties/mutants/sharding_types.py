"""Wrong rules of types on explicit axes, and right ones that are stated oddly, by the operation that they are of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from shardproof.oracles import sharding_types as oracle
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sharding_types import Ambiguous, Refused, ShardedType
from shardproof.properties.cases.typed_call import Params, Rule

Types = Sequence[ShardedType]
Stated = TypeVar("Stated", bound=Rule)


@dataclass(frozen=True)
class StatedRule:
    """A rule, its operation, and what is wrong with it, or odd."""

    operation: str
    sentence: str
    rule: Rule


WRONG: dict[str, StatedRule] = {}
ODD: dict[str, StatedRule] = {}


def _enter(table: dict[str, StatedRule], operation: str) -> Callable[[Stated], Stated]:
    def enter(rule: Stated) -> Stated:
        name = getattr(rule, "__name__", "")
        table[name] = StatedRule(operation, str(rule.__doc__), rule)
        return rule

    return enter


def _wrong(operation: str) -> Callable[[Stated], Stated]:
    return _enter(WRONG, operation)


def _odd(operation: str) -> Callable[[Stated], Stated]:
    return _enter(ODD, operation)


@_wrong("elementwise")
def as_the_first_operand(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Only the first operand says how the result is sharded."""
    result = oracle.elementwise(*xs)
    return replace(result, spec=((),) * (result.rank - xs[0].rank) + xs[0].spec)


@_wrong("elementwise")
def tuples_in_mesh_order(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The axes of a dimension are in the order of the mesh."""
    result = oracle.elementwise(*xs)
    return replace(result, spec=tuple(mesh.in_mesh_order(axes) for axes in result.spec))


@_wrong("elementwise")
def the_first_that_is_sharded(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Where operands are sharded differently the first of them wins."""
    try:
        return oracle.elementwise(*xs)
    except Refused:
        rank = max(x.rank for x in xs)
        entries = zip(*[((),) * (rank - x.rank) + x.spec for x in xs], strict=True)
        return replace(max(xs, key=lambda x: x.rank), spec=tuple(next((a for a in e if a), ()) for e in entries))


@_wrong("elementwise")
def operands_matched_from_the_front(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """An operand of fewer dimensions shards the first ones of the result."""
    result = oracle.elementwise(*xs)
    rest = [x.spec + ((),) * (result.rank - x.rank) for x in sorted(xs, key=lambda x: x.rank)]
    return replace(result, spec=tuple(next((a for a in e if a), ()) for e in zip(*rest, strict=True)))


@_wrong("reduction")
def a_kept_dimension_keeps_its_axes(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """What is kept of a reduced dimension is sharded as it was."""
    result = oracle.reduction(xs[0], params[0], keepdims=params[1])
    return replace(result, spec=xs[0].spec) if params[1] else result


@_wrong("reduction")
def the_last_dimensions_are_lost(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The first axes are kept, whichever dimensions are reduced."""
    result = oracle.reduction(xs[0], params[0], keepdims=params[1])
    return result if params[1] else replace(result, spec=xs[0].spec[: result.rank])


@_wrong("transpose")
def axes_stay_in_their_places(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Sizes are permuted, and axes are not."""
    return replace(oracle.transposed(xs[0], *params), spec=xs[0].spec)


@_wrong("transpose")
def permuted_the_other_way(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Axes are permuted by the inverse: of two dimensions, or three in reversed order, both are the same."""
    (permutation,) = params
    inverse = [permutation.index(i) for i in range(len(permutation))]
    return replace(oracle.transposed(xs[0], permutation), spec=oracle.transposed(xs[0], inverse).spec)


@_wrong("broadcast")
def broadcast_from_the_front(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The first dimensions of the result are sharded as those of the operand."""
    result = oracle.broadcast(xs[0], *params)
    return replace(result, spec=xs[0].spec + ((),) * (result.rank - xs[0].rank))


@_wrong("contraction")
def the_right_operand_is_replicated(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The axes of the right operand are not in the result."""
    lhs, rhs = xs
    oracle.contraction(lhs, rhs, *params)
    return oracle.contraction(lhs, replace(rhs, spec=((),) * rhs.rank), *params)


@_wrong("contraction")
def never_ambiguous(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """A sum over dimensions that both operands shard is taken to be the same on all devices."""
    lhs, rhs = xs
    try:
        return oracle.contraction(lhs, rhs, *params)
    except Ambiguous:
        summed = tuple(() if i in params[0][1] else axes for i, axes in enumerate(rhs.spec))
        return oracle.contraction(lhs, replace(rhs, spec=summed), *params)


@_wrong("contraction")
def one_sharded_operand_is_ambiguous(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """A sum over a dimension is refused that one operand alone shards."""
    lhs, rhs = xs
    if any(lhs.spec[i] or rhs.spec[j] for i, j in zip(*params[0], strict=True)):
        raise Ambiguous(str(xs))
    return oracle.contraction(lhs, rhs, *params)


@_wrong("contraction with out_sharding")
def not_what_was_asked_for(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Where it is not ambiguous the result is sharded as if nothing had been asked for."""
    try:
        return oracle.contraction(xs[0], xs[1], params[0], params[1])
    except Refused:
        plain = [replace(x, spec=((),) * x.rank) for x in xs]
        return oracle.resharded(oracle.contraction(plain[0], plain[1], params[0], params[1]), params[2], mesh)


@_wrong("reshape")
def the_last_part_is_sharded(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Of parts that are sharded the axes go to the other one."""
    result = oracle.reshaped(xs[0], params[0], mesh)
    return replace(result, spec=result.spec[::-1]) if result.rank > xs[0].rank else result


@_wrong("reshape")
def what_is_split_is_gathered(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The parts of a sharded dimension are not sharded."""
    result = oracle.reshaped(xs[0], params[0], mesh)
    return replace(result, spec=tuple(a if a in xs[0].spec and n in xs[0].shape else () for n, a in _entries(result)))


@_wrong("reshape")
def merged_the_other_way(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The last of merged dimensions varies slowest."""
    result = oracle.reshaped(xs[0], params[0], mesh)
    return replace(result, spec=tuple(axes if axes in xs[0].spec else axes[::-1] for axes in result.spec))


@_wrong("reshape")
def merged_whatever_is_in_front(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """A dimension that is sharded may be merged with one in front that is not."""
    try:
        return oracle.reshaped(xs[0], params[0], mesh)
    except Refused as refused:
        if "in front of" not in str(refused):
            raise
        return oracle.reshaped(replace(xs[0], spec=tuple(sorted(xs[0].spec, key=bool, reverse=True))), params[0], mesh)


@_wrong("resharding")
def the_last_axis_is_dropped(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Of several axes of a dimension the last one shards nothing."""
    return oracle.resharded(xs[0], [axes[:-1] if len(axes) > 1 else axes for axes in params[0]], mesh)


@_wrong("resharding")
def resharded_in_mesh_order(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The axes of a dimension are in the order of the mesh."""
    return oracle.resharded(xs[0], [mesh.in_mesh_order(axes) for axes in params[0]], mesh)


@_odd("elementwise")
def one_operand_after_another(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """The operands are combined in pairs, from the last one on."""
    *rest, result = xs
    for x in reversed(rest):
        result = oracle.elementwise(x, result)
    return result


@_odd("reduction")
def reduced_one_by_one(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """One dimension is reduced after another, and what is kept is dropped at the end."""
    result = xs[0]
    for i in params[0]:
        result = oracle.reduction(result, [i], keepdims=True)
    return result if params[1] else oracle.reduction(result, params[0])


@_odd("contraction")
def a_sum_of_an_outer_product(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """All products are elements of one array, of which a sum is taken; no matter who shards what is contracted."""
    (contracted, batch), (lhs, rhs) = params, xs
    oracle.contraction(lhs, rhs, *params)
    lhs = replace(lhs, spec=tuple(() if i in contracted[0] else axes for i, axes in enumerate(lhs.spec)))
    rhs = replace(rhs, spec=tuple(() if i in contracted[1] else axes for i, axes in enumerate(rhs.spec)))
    own = [i for i in range(lhs.rank) if i not in (*contracted[0], *batch[0])]
    others = [i for i in range(rhs.rank) if i not in (*contracted[1], *batch[1])]
    left = oracle.transposed(lhs, [*batch[0], *contracted[0], *own])
    left = replace(left, shape=left.shape + (1,) * len(others), spec=left.spec + ((),) * len(others))
    right = oracle.transposed(rhs, [*batch[1], *contracted[1], *others])
    both, ones = len(batch[0]) + len(contracted[0]), len(own)
    spec = (*right.spec[:both], *[()] * ones, *right.spec[both:])
    right = ShardedType((*right.shape[:both], *[1] * ones, *right.shape[both:]), spec, right.dtype)
    return oracle.reduction(oracle.elementwise(left, right), range(len(batch[0]), both))


@_odd("reshape")
def axes_are_used_up(xs: Types, params: Params, mesh: MeshCase) -> ShardedType:
    """Of a split dimension every part takes axes until it has one element, each of which must divide what is left."""
    (x,), (shape,) = xs, params
    result = oracle.reshaped(x, shape, mesh)
    if x.rank != 1 or 1 in (*x.shape, *shape):
        return result
    left, spec = [*x.spec[0]], []
    for n in shape:
        taken = []
        while n > 1 and left and n % mesh.shape[left[0]] == 0:
            n //= mesh.shape[left[0]]
            taken.append(left.pop(0))
        spec.append(tuple(taken))
    return replace(result, spec=tuple(spec))


def _entries(x: ShardedType) -> list[tuple[int, tuple[str, ...]]]:
    return [*zip(x.shape, x.spec, strict=True)]
