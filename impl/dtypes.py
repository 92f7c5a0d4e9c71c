"""The dtypes in which numbers are added up."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


def accumulator(*operands: Array) -> Any:
    """The dtype in which products are added up: float32 for 16-bit floats, the operands' own otherwise."""
    dtype = jnp.result_type(*operands)
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype
