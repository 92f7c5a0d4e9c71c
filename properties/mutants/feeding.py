"""Planted bugs that show where a function gets what it gave itself, and on no input that is new."""

from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant

_last: list[Array] = []
"""What one of these gave last."""


def _shifted(x: Array, axis_name: AxisName, offset: int) -> Array:
    _last[:] = [collectives.ring_shift(x, axis_name, offset=offset)]
    return _last[0]


@mutant("ring_shift", law="transformation", smallest=(2,))
def shift_that_was_made_already(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Gives the block back that it gave last, as if what was shifted once were where it belongs."""
    return x if _last and x is _last[0] else _shifted(x, axis_name, offset)


@mutant("ring_shift", law="transformed gradient", smallest=(1,))
def shift_detached_from_the_last(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Stops the gradient at a block that it gave itself, as one cuts off what came before a step in time."""
    return _shifted(lax.stop_gradient(x) if _last and x is _last[0] else x, axis_name, offset)
