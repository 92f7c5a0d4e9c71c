"""Planted bugs that only a mesh shows that is larger than what one machine usually pretends to have."""

from jax import Array

from impl import collectives
from properties.mutants.axes import AxisName, mesh_names, mesh_size
from properties.mutants.catalogue import mutant


@mutant("broadcast", law="scale", smallest=(17,), runs="large")
def broadcast_with_four_bits(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Keeps the root in four bits, which is too few for more than 16 members."""
    return collectives.broadcast(x, axis_name, root=root & 15)


@mutant("ring_shift", law="scale", smallest=(101,), runs="large")
def shift_gives_up_beyond_a_hundred(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Does nothing on meshes of more than 100 devices."""
    small = mesh_size(mesh_names()) <= 100
    return collectives.ring_shift(x, axis_name, offset=offset if small else 0)
