"""Real floats: which are drawn for an operation that computes with them, and in what it adds them up."""

from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.cases.strategies.dtypes import WIDE_IN
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Scope

FLOATS = ("float32", "bfloat16", "float16")


@lru_cache
def floats(scope: Scope, terms: int) -> st.SearchStrategy[str]:
    """Real floats of 16 and 32 bits, and of 64 where they are supported; shrinks to float32."""
    usual = sampled(FLOATS)
    if "x64" not in scope.features:
        return usual
    return st.tuples(st.integers(0, WIDE_IN - 1), usual).map(lambda d: "float64" if d[0] == WIDE_IN - 1 else d[1])


def float32_accumulator(dtype: np.dtype) -> np.dtype:
    """What terms of a dtype are added up in, to the end and with no rounding at every hop: 16-bit floats in float32."""
    return np.dtype("float32") if dtype.name in ("bfloat16", "float16") else dtype


def scaled_to(x: np.ndarray, most: float) -> np.ndarray:
    """An array by the power of two that makes its largest finite number about that large."""
    sizes = np.abs(x.astype(np.float64))
    largest = np.max(sizes, where=np.isfinite(sizes), initial=0)
    return x if largest == 0 else (x * np.exp2(np.rint(np.log2(most / largest))).astype(x.dtype)).astype(x.dtype)
