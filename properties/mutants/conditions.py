"""Planted bugs that depend on what is around the call: the transformation, the types, the error."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import get_opaque_trace_state
from jax.sharding import AxisType

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, mesh_names, names
from shardproof.properties.mutants.catalogue import mutant


@mutant("ring_shift", smallest=(2,))
def shift_wrong_under_vmap(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Its own rule for vmap shifts by one, whatever the offset."""

    @jax.custom_batching.custom_vmap
    def shift(x: Array) -> Array:
        return collectives.ring_shift(x, axis_name, offset=offset)

    @shift.def_vmap
    def _(size: int, batched: list[bool], x: Array) -> tuple[Array, bool]:
        return collectives.ring_shift(x, axis_name), True

    return shift(x)


@mutant("all_reduce", smallest=(2,))
def reduce_trusts_the_types(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces only what is typed varying, and so nothing under check_vma=False."""
    if op != "mean" and not collectives.varying(x):
        return x
    return collectives.all_reduce(x, axis_name, op=op)


@mutant("ring_shift", smallest=(1, 2))
def shift_lost_among_automatic_axes(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Does nothing where some axes of the mesh are not manual."""
    manual = all(kind == AxisType.Manual for kind in jax.sharding.get_abstract_mesh().axis_types)
    return collectives.ring_shift(x, axis_name, offset=offset if manual else 0)


@mutant("ring_shift", smallest=(1, 2))
def shift_that_waits_for_everybody(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Meets all devices before it sends, also those that no axis of its own connects."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    others = tuple(name for name in mesh_names() if name in manual and name not in names(axis_name))
    shifted = collectives.ring_shift(x, axis_name, offset=offset)
    if not collectives.varying(lax.axis_index(axis_name)) or not others:  # of which nothing is known
        return shifted
    everybody = lax.psum(collectives.cast_varying(jnp.int32(1), others), others)
    return jnp.where(everybody > 0, shifted, jnp.zeros_like(shifted))


@mutant("all_gather", smallest=(1,))
def gather_with_another_forward_rule(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Where it is differentiated its values are those of another rule, which loses the sign."""

    @jax.custom_vjp
    def gather(x: Array) -> Array:
        return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)

    def forward(x: Array) -> tuple[Array, None]:
        return gather(jnp.abs(x)), None

    def backward(_: None, ct: Array) -> tuple[Array]:
        return (collectives.reduce_scatter(ct, axis_name, scatter_dimension=axis, tiled=tiled),)

    gather.defvjp(forward, backward)
    return gather(x)


@mutant("ring_shift", smallest=(2,))
def shift_over_a_batch(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Goes further by the size of an axis called batch, where there is one."""
    try:
        further = lax.axis_size("batch") - 1
    except NameError:
        further = 0
    return collectives.ring_shift(x, axis_name, offset=offset + further)


_called: list[tuple[object, Array]] = []
"""The last call of `broadcast_cached_by_shape`, and what it gave."""


@mutant("broadcast", smallest=(1,))
def broadcast_cached_by_shape(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Its second call in a program gives the result of the first, as if what was traced once were right for any x."""
    key = (get_opaque_trace_state(), axis_name, root, x.shape, x.dtype)
    if not _called or _called[0][0] != key:
        _called[:] = [(key, collectives.broadcast(x, axis_name, root=root))]
    return _called[0][1]


@mutant("all_reduce", law="error", smallest=(1,))
def reduce_ignores_unknown_axes(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes a name that the mesh does not have for an axis of size 1."""
    return collectives.all_reduce(x, [name for name in names(axis_name) if name in mesh_names()], op=op)


_last: list[Array] = []
"""The last result of one of these."""


def _shifted(x: Array, axis_name: AxisName, offset: int) -> Array:
    _last[:] = [collectives.ring_shift(x, axis_name, offset=offset)]
    return _last[0]


@mutant("ring_shift", smallest=(2,))
def shift_that_was_made_already(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Gives the block back that it gave last, as if what was shifted once were where it belongs."""
    return x if _last and x is _last[0] else _shifted(x, axis_name, offset)


@mutant("ring_shift", law="gradient", smallest=(1,))
def shift_detached_from_the_last(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Stops the gradient at a block that it gave itself, as one cuts off what came before a step in time."""
    return _shifted(lax.stop_gradient(x) if _last and x is _last[0] else x, axis_name, offset)


@mutant("ring_shift", law="type", smallest=(2,))
def shift_typed_invariant_by_groups(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Ends in a maximum over groups of one participant each, which types the result invariant."""
    moved = collectives.ring_shift(x, axis_name, offset=offset)
    if x.dtype != jnp.float32:
        return moved
    return lax.pmax(moved, axis_name, axis_index_groups=[[i] for i in range(lax.axis_size(axis_name))])
