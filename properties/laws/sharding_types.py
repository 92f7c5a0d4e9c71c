"""The law of types on explicit axes: JAX types the result of an operation as the oracle says, or refuses as it does.

Types are looked at inside of the traced program, and as its results leave it. Nothing is run, so no devices are needed.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardproof.oracles import sharding_types as oracle
from shardproof.oracles.layout import spec_entries
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sharding_types import Ambiguous, Refused, ShardedType
from shardproof.properties.cases.typed_call import Call, Rule
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.programs.mapping import partition_spec
from shardproof.properties.programs.violation import Broken

REFUSED = "ShardingTypeError"
"""What JAX raises where an operation has no type; the exception has no public name."""


class WrongType(Broken):
    """A result is typed otherwise than it has to be."""

    def __init__(self, finding: str) -> None:
        super().__init__("type", finding)


Excused = Callable[[Call, ShardedType | Exception], bool]
"""Whether JAX is known to be wrong in such a call, with such an outcome."""


def check_type(call: Call, *, rule: Rule | None = None, excused: Excused = lambda call, seen: False) -> bool:
    """The law, for one call: whether the call has a type.

    Arguments:
        call: the call.
        rule: what types the result, in place of the call's own.
        excused: whether JAX is known to be wrong there.

    Raises:
        WrongType: if JAX types the result otherwise, or refuses what has a type, or types what has none; and if what
            it says of an ambiguous contraction does not name `out_sharding`.
    """
    expected = _outcome(lambda: (rule or call.rule)(call.operands, call.params, call.mesh), Refused)
    seen = _outcome(lambda: traced_type(call), Exception)
    if not _agree(call.mesh, expected, seen, exactly=call.operation != "reshape") and not excused(call, seen):
        raise WrongType(f"{call}: {_told(seen)}, expected {_told(expected)}")
    return isinstance(expected, ShardedType)


def traced_type(call: Call) -> ShardedType:
    """The type that JAX gives the result, where it is computed, which must be that of what leaves the program.

    Raises:
        WrongType: if these two differ, or `str` shows another one than the array says that it has.
    """
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
    inside, outside = type_of(seen[0], call.mesh), type_of(leaving, call.mesh)
    if inside != outside:
        raise WrongType(f"{call}: {inside} inside of the program, {outside} outside")
    if str(inside) != str(seen[0]):
        raise WrongType(f"{call}: shown as {seen[0]}, expected {inside}")
    return inside


def type_of(array: Any, mesh: MeshCase) -> ShardedType:
    """The type of what has a shape, a dtype and a sharding."""
    return ShardedType(array.shape, spec_entries(array.sharding.spec, len(array.shape), mesh), str(array.dtype))


def _outcome(function: Callable[[], ShardedType], kind: type[Exception]) -> ShardedType | Exception:
    try:
        return function()
    except WrongType:
        raise
    except kind as error:
        return error


def _agree(mesh: MeshCase, expected: ShardedType | Exception, seen: ShardedType | Exception, *, exactly: bool) -> bool:
    if isinstance(expected, ShardedType) and isinstance(seen, ShardedType):
        return expected == seen if exactly else _without_ones(expected, mesh) == _without_ones(seen, mesh)
    if isinstance(expected, ShardedType) or isinstance(seen, ShardedType) or type(seen).__name__ != REFUSED:
        return False
    return not isinstance(expected, Ambiguous) or "out_sharding" in str(seen)


def _without_ones(x: ShardedType, mesh: MeshCase) -> ShardedType:
    """A type without the axes of one device, which shard nothing."""
    return oracle.ShardedType(x.shape, tuple(tuple(n for n in a if mesh.shape[n] > 1) for a in x.spec), x.dtype)


def _told(outcome: ShardedType | Exception) -> str:
    if isinstance(outcome, ShardedType):
        return str(outcome)
    return f"{type(outcome).__name__} ({' '.join(str(outcome).split())[:200]})"
