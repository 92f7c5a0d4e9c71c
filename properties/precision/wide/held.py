"""How a wide run holds numbers: a double, or what is no float as it is, and beside it how far off it may be.

The two are the fields of one element, so that a rule that only moves elements moves both, and need not know.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from shardproof.oracles.dtypes import is_float

Numbers = Any
"""An array, or the scalar that NumPy gives in place of one of rank 0."""

UNKNOWN = np.inf
"""The error of what nothing is claimed of."""


class Wide(NamedTuple):
    """A result of a wide run.

    Arguments:
        value: float64 or complex128 for a float of any dtype, and any other dtype as it was traced.
        error: elementwise, in float64, how far what the program computes in its own dtypes may be from it; infinite
            where nothing is claimed.
    """

    value: Numbers
    error: Numbers


@functools.cache
def held(dtype: np.dtype) -> np.dtype:
    """The dtype of the elements that hold numbers of a traced dtype; random keys are held as they are."""
    if dtype.names is not None:
        return dtype
    of_error = np.float16 if dtype == bool else np.float64  # a boolean is certain, or unknown
    return np.dtype([("value", double(dtype)), ("error", of_error)], align=True)


@functools.cache
def double(dtype: np.dtype) -> np.dtype:
    """The dtype of the numbers themselves."""
    if not is_float(dtype):
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def is_held(x: Numbers) -> bool:
    """Whether an array has errors beside its numbers."""
    return x.dtype.names is not None and "error" in x.dtype.names


def value_of(x: Numbers) -> Numbers:
    """The numbers alone."""
    return x["value"] if is_held(x) else x


def error_of(x: Numbers) -> Numbers:
    """The errors alone: none of a random key."""
    return x["error"] if is_held(x) else np.zeros(x.shape)


def together(value: Numbers, error: Numbers | float, dtype: np.dtype) -> Numbers:
    """Numbers of a traced dtype, with their errors, which broadcast."""
    result = np.empty(value.shape, held(dtype))
    result["value"] = value
    result["error"] = error
    return result


def over_blocks(mask: Numbers, x: Numbers) -> Numbers:
    """A mask `[*lead]`, or one of elements, with as many dimensions as `x`."""
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))


def certain(value: Numbers, dtype: np.dtype) -> Numbers:
    """Numbers of a traced dtype that the program has in its own dtypes as well."""
    return value if value.dtype.names is not None else together(value, 0.0, dtype)
