"""The leaves of a reference's arguments and results, and their dtypes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.contracts.described import Signature
from shardproof.properties.precision.arithmetic import double

Arrays = Sequence[np.ndarray]
Dtypes = Sequence[np.dtype]
Options = Mapping[str, Any]


class WrongTree(ValueError):
    """What a reference returns has another tree than its description."""


def leaves_of(signature: Signature, result: Any) -> list[Any]:
    """The leaves of what a reference returns.

    Raises:
        WrongTree: if it has another tree than its description.
    """
    right, found = (_drawn(tree) for tree in (signature.result_tree, result))
    if right != found:
        raise WrongTree(f"the reference returns {found}: expected {right}, as results are described; * is an array")
    return list(jax.tree.leaves(result))


def _drawn(tree: Any) -> str:
    return str(jax.tree.structure(tree)).removeprefix("PyTreeDef(").removesuffix(")")


def together_of(signature: Signature, dtypes: Dtypes) -> np.dtype:
    """The dtype of the floats among some arguments together."""
    floats = [d for d, array in zip(dtypes, signature.arrays, strict=True) if array.dtype == "float"]
    return np.dtype(jax.numpy.result_type(*floats)) if floats else np.dtype("float32")


def is_wider(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether one float has more bytes than another one."""
    return is_float(dtype) and is_float(other) and dtype.itemsize > other.itemsize


def as_single(dtype: np.dtype) -> np.dtype:
    """A float's dtype, or float32 if that has more digits."""
    return np.dtype(np.float32) if is_float(dtype) and dtype.itemsize < 4 else dtype


def arrays_like(signature: Signature, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes) -> list[np.ndarray]:
    """Arrays to try a reference with: ones, as doubles, and of indices the first."""
    return [
        np.full(shape, not array.below, double(np.dtype(dtype)))
        for array, shape, dtype in zip(signature.arrays, shapes, dtypes, strict=True)
    ]
