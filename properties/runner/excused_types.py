"""Which calls on explicit axes JAX is known to type wrongly, or to refuse although they have a type."""

import jax

from shardproof.oracles.sharding_types import ShardedType
from shardproof.properties.cases.typed_call import Call
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.laws.sharding_types import REFUSED

BATCH_REFUSED_BY = (0, 11)
"""The first versions that refuse a batch dimension which one operand alone shards; before, see `_batch_of_rhs`."""


def excused(call: Call, seen: ShardedType | Exception) -> bool:
    """Whether a known defect, or a stricter rule, explains what JAX makes of a call that is typed otherwise."""
    return any(
        explains(call, seen) for explains in (_batch_of_rhs, _batch_refused, _axis_of_one, _beside_ones, _to_ones)
    )


def _has(defect: str) -> bool:
    return DEFECTS[defect].in_version(jax.__version__)


def _of_one_alone(call: Call, *, by_rhs: bool) -> bool:
    """Whether a batch dimension is sharded by one operand alone, or just by the right one."""
    if call.operation != "contraction":
        return False
    lhs, rhs = call.operands
    pairs = [(lhs.spec[i], rhs.spec[j]) for i, j in zip(*call.params[1], strict=True)]
    return any(not left and right for left, right in pairs) or (not by_rhs and any(a and not b for a, b in pairs))


def _batch_of_rhs(call: Call, seen: ShardedType | Exception) -> bool:
    return _has("dot_general_batch_type") and isinstance(seen, ShardedType) and _of_one_alone(call, by_rhs=True)


def _batch_refused(call: Call, seen: ShardedType | Exception) -> bool:
    """What is refused must say that it is for its batch dimensions."""
    strict = jax.version.__version_info__[:2] >= BATCH_REFUSED_BY
    told = type(seen).__name__ == REFUSED and "batch dimensions to have the same sharding" in str(seen)
    return strict and told and _of_one_alone(call, by_rhs=False)


def _axis_of_one(call: Call, seen: ShardedType | Exception) -> bool:
    if call.operation != "reshape" or not _has("reshape_axis_of_one"):
        return False
    ones = any(call.mesh.shape[name] == 1 for axes in call.operands[0].spec for name in axes[-1:])
    return ones and type(seen) is AssertionError and not str(seen)


def _beside_ones(call: Call, seen: ShardedType | Exception) -> bool:
    if call.operation != "reshape" or not _has("reshape_beside_ones"):
        return False
    (x,), (shape,) = call.operands, call.params
    refused = type(seen) is AssertionError or type(seen).__name__ == REFUSED
    return refused and 1 in (*x.shape, *shape)


def _to_ones(call: Call, seen: ShardedType | Exception) -> bool:
    if call.operation != "reshape" or not _has("reshape_to_ones"):
        return False
    (x,), (shape,) = call.operands, call.params
    return type(seen) is IndexError and shape.count(1) > x.shape.count(1)
