"""Memory that was never written, in the simulate engine: reading it is refused, leaving it alone is not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import UnwrittenRead, simulate
from shardproof.properties.meta.test_simulate_elementwise import same

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.complex64, jnp.int8, jnp.uint32, jnp.bool_)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory(dtype: Any) -> None:
    """A result that depends on it is refused, whatever the dtype, and only such a result."""
    one = np.ones(2, dtype)

    def partly_written(x: Array) -> Array:
        return lax.dynamic_update_slice(lax.empty((3,), dtype), x, (0,))

    with pytest.raises(UnwrittenRead, match=r"result 0 .* element \[2\] .*test_simulate_unwritten.py:\d+"):
        simulate(partly_written, one)
    with pytest.raises(UnwrittenRead, match=r"result 1 .* element \[\] "):
        simulate(lambda x: (x, jax.jit(lambda x: jnp.abs(partly_written(x)) > 0)(x).sum()), one)
    assert same(simulate(lambda x: partly_written(x)[:2], one), one)
    assert same(simulate(lambda x: jnp.where(jnp.arange(3) < 2, partly_written(x), x[0]), one), np.ones(3, dtype))


def test_blocks() -> None:
    """The device is named that reads it, even where one content of the memory gives the right result."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def largest(x: Array) -> Array:
        buffer = lax.dynamic_update_slice(lax.empty((2,), jnp.int32), x, (0,))
        written = (lax.axis_index("tp") == 0) | (jnp.arange(2) == 0)
        return jnp.where(written, x, buffer).max(keepdims=True)  # the lowest integer is no maximum

    function = jax.shard_map(largest, mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P(("dp", "tp")))
    with pytest.raises(UnwrittenRead, match=r"element \[1\] .* first on device \(dp=0, tp=1\) in element \[0\]"):
        simulate(function, np.arange(4, dtype=np.int32))
