"""The dtypes that collectives carry."""

from functools import lru_cache

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.dtypes import exact_limit, is_float
from shardproof.properties.cases.strategies.making import sampled

WIDE = ("float64", "int64", "complex128", "uint64")
"""The dtypes that JAX only has under `jax.enable_x64`."""

FAMILIES = (
    ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64"),
    ("int32", "int8", "int16", "uint8", "int4", "uint32", "uint16", "uint4", "int64", "uint64"),
    ("bool", "complex64", "complex128"),
)
"""A family is drawn first: the rare kinds fail in ways of their own. The simplest dtype of each is the first."""

ALL = tuple(name for family in FAMILIES for name in family if name not in WIDE)
"""The dtypes that JAX has without an option. int2 crashes XLA:CPU (see the known defects)."""


def as_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name, ml_dtypes' own included; raises ValueError if there is none."""
    if name not in (*ALL, *WIDE):
        raise ValueError(f"dtype={name!r}: expected one of {', '.join((*ALL, *WIDE))}")
    return np.dtype(getattr(ml_dtypes, name, name))


@lru_cache
def dtypes(
    *,
    floating: bool = False,
    numeric: bool = False,
    ordered: bool = False,
    terms: int = 1,
    wrapping: bool = True,
    wide: bool = False,
) -> st.SearchStrategy[str]:
    """Names of dtypes, all of `ALL` by default. Shrinks to float32.

    Arguments:
        floating: only those with gradients: real and complex floats.
        numeric: without bool.
        ordered: without complex numbers.
        terms: only those in which a sum of `terms` ones is exact.
        wrapping: whether sums of integers may wrap around, and are thus always exact.
        wide: whether 64-bit dtypes are drawn as well.
    """
    chosen = [
        name
        for name in (*ALL, *(WIDE if wide else ()))
        if (not floating or is_float(as_dtype(name)))
        and (not numeric or name != "bool")
        and (not ordered or not name.startswith("complex"))
        and (wrapping or name not in ("int64", "uint64"))  # JAX takes their mean in float64
        and (exact_limit(as_dtype(name)) >= terms or (wrapping and not is_float(as_dtype(name))))
    ]
    families = [tuple(name for name in family if name in chosen) for family in FAMILIES]
    # two choices for every family: with one for those of a single name, that would be the simplest
    return st.tuples(sampled([family for family in families if family]), st.integers(0, 59)).map(
        lambda drawn: drawn[0][drawn[1] % len(drawn[0])]
    )
