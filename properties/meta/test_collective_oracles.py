"""Oracles of collectives: the numbers of each dtype, and layouts with their collectives."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardproof.oracles import collectives
from shardproof.oracles.mesh import MeshCase

PAIR = MeshCase(("dp",), (2,))


LARGEST = 2**64 - 1
REDUCED: dict[str, tuple[str, Any, list[Any], Any, Any]] = {
    "a sum of bool counts": ("sum", bool, [True, True], np.int32, 2),
    "the maximum of bool": ("max", bool, [True, False], bool, True),
    "the minimum of bool": ("min", bool, [True, False], bool, False),
    "a mean of bool": ("mean", bool, [True, False], np.float32, 0.5),
    "a mean of integers": ("mean", np.int8, [1, 0], np.float32, 0.5),
    "a mean of short integers": ("mean", ml_dtypes.int4, [1, 0], np.float32, 0.5),
    "int8 wraps around": ("sum", np.int8, [100, 100], np.int8, -56),
    "negative int8 wraps around": ("sum", np.int8, [-100, -100], np.int8, 56),
    "uint8 wraps around": ("sum", np.uint8, [200, 200], np.uint8, 144),
    "int32 wraps around": ("sum", np.int32, [2**30, 2**30], np.int32, -(2**31)),
    "int4 wraps around": ("sum", ml_dtypes.int4, [5, 5], ml_dtypes.int4, -6),
    "bfloat16 is rounded once": ("sum", ml_dtypes.bfloat16, [256, 1, 1], ml_dtypes.bfloat16, 258),
    "the largest uint64 is the largest": ("max", np.uint64, [2, LARGEST], np.uint64, LARGEST),
    "the largest uint64 is not the smallest": ("min", np.uint64, [LARGEST, 3], np.uint64, 3),
    "uint64 wraps around": ("sum", np.uint64, [2, LARGEST], np.uint64, 1),
}
"""Numbers of a dtype that participants have, and the dtype and number that they receive."""


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_a_dtype(name: str) -> None:
    """An all-reduce has the exact result, in its own dtype, and so has a reduce-scatter if it is a sum."""
    op, dtype, held, to, expected = REDUCED[name]
    p = len(held)
    mesh, blocks = MeshCase(("dp",), (p,)), np.array([[n] * p for n in held], dtype)
    row = np.array([expected] * p).astype(to)
    np.testing.assert_array_equal(collectives.all_reduce(blocks, mesh, "dp", op=op), np.stack([row] * p), strict=True)
    if op == "sum":
        np.testing.assert_array_equal(collectives.reduce_scatter(blocks, mesh, "dp"), row, strict=True)


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_have_no_transpose(op: str) -> None:
    """The transpose of a reduction that is not linear is refused with the op and those that are."""
    with pytest.raises(ValueError, match=f"^op={op!r}: only sum and mean are linear$"):
        collectives.all_reduce_transpose(np.zeros(2), PAIR, "dp", op=op)


def test_what_is_not_tiled_has_one_entry_per_participant() -> None:
    """Splitting a dimension that is not tiled and has another size than there are participants is refused with both."""
    with pytest.raises(ValueError, match="has size 3: expected 2, one piece per participant"):
        collectives.reduce_scatter(np.zeros((2, 3)), PAIR, "dp")
