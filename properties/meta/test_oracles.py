"""Oracles by hand: sums of every dtype, what has no derivative, and what they refuse."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardproof.impl import cross_entropy as losses
from shardproof.impl import means
from shardproof.oracles import collectives, mlp, transposes
from shardproof.oracles.cross_entropy import vocab_parallel_cross_entropy
from shardproof.oracles.means import masked_mean, weighted_mean
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import REVERSED
from shardproof.properties.meta.blockwise import floats, simulated

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
        transposes.all_reduce_transpose(np.zeros(2), PAIR, "dp", op=op)


def test_what_is_not_tiled_has_one_entry_per_participant() -> None:
    """Splitting a dimension that is not tiled and has another size than there are participants is refused with both."""
    with pytest.raises(ValueError, match="has size 3: expected 2, one piece per participant"):
        collectives.reduce_scatter(np.zeros((2, 3)), PAIR, "dp")


def test_labels_of_no_class_are_nan_and_have_no_slope() -> None:
    """A label outside [0, V) has the loss NaN, unless it is ignored; of both the gradient is zero."""
    mesh, axes = PAIR, ("dp",)
    logits, labels = floats(mesh, 4, 3), np.broadcast_to([-1, -2, 6, 5], (2, 4))
    logits[1, 0, 2] = np.nan
    loss = vocab_parallel_cross_entropy.value([logits, labels], mesh, axes)[0]
    np.testing.assert_array_equal(np.isnan(loss), np.broadcast_to([False, True, True, False], (2, 4)))
    assert not loss[:, 0].any()
    pulled = vocab_parallel_cross_entropy.pullback([logits, labels], [np.ones((2, 4))], mesh, axes)[0]
    assert pulled is not None
    np.testing.assert_array_equal(pulled.any(axis=(0, 2)), [False, False, False, True])


@pytest.mark.parametrize(
    ("labels", "message"), [(np.zeros((1, 2)), "float64"), (np.zeros((1, 3), int), r"int64\[1, 3")]
)
def test_other_labels_are_refused(labels: np.ndarray, message: str) -> None:
    """Labels that are no integers, or not one per token."""
    with pytest.raises(ValueError, match=f"labels: {message}"):
        vocab_parallel_cross_entropy.value([np.zeros((1, 2, 2)), labels], MeshCase(("tp",), (1,)), ("tp",))


def test_a_chunk_has_a_class() -> None:
    """A chunk of no class is refused."""
    with pytest.raises(ValueError, match="chunk=0: expected a number of classes of at least 1"):
        simulated(
            functools.partial(losses.chunked_cross_entropy, axis_name="dp", chunk=0),
            PAIR,
            np.zeros((2, 1, 3)),
            np.zeros((2, 1), int),
        )


@pytest.mark.parametrize("weights", [np.ones((1, 3)), np.array([[1.0, -1.0]])], ids=["more", "negative"])
def test_other_weights_are_refused(weights: np.ndarray) -> None:
    """Weights of another shape, and a negative one; a mask of numbers."""
    values, mesh = np.ones((1, 2)), MeshCase(("dp",), (1,))
    with pytest.raises(ValueError, match=r"weights: \[1, \d\]: expected \[1, 2\], none of them negative"):
        weighted_mean.value([values, weights], mesh, ("dp",))
    with pytest.raises(ValueError, match=r"mask: float64\[1, \d\]: expected bool\[1, 2\]"):
        masked_mean.value([values, weights], mesh, ("dp",))


@pytest.mark.parametrize("form", [means.masked_mean, means.weighted_mean], ids=lambda form: form.__name__)
def test_wrong_arguments_are_refused(form: Any) -> None:
    """Values and weights that are not floating, a mask of numbers or another shape, and an axis that is not there."""
    mesh, axes = REVERSED
    x, name = np.zeros((2, 3, 2), np.float32), form.__name__
    argument, right, other = ("mask", x > 0, x) if form is means.masked_mean else ("weights", x, x > 0)
    kind = "bool" if form is means.masked_mean else "real floating-point numbers"
    for arguments, axis_name, message in (
        ((x > 0, right), axes, r"values='bool.*': expected an array of real floating-point numbers, on the mesh"),
        ((x, other), axes, rf"{argument}='{other.dtype}.*': expected an array of {kind}, on the mesh \(dp=2, tp=3\)"),
        ((x, right[..., :1]), axes, rf"{argument}='.*\[1\].*': expected an array of shape \(2,\), that of values"),
        ((x, right), ("tp", "ep"), r"axis_name=\('tp', 'ep'\): expected bound axis names"),
        ((x, right), ("tp", "tp"), r"axis_name=\('tp', 'tp'\): expected each mesh axis at most once"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            simulated(functools.partial(form, axis_name=axis_name), mesh, *arguments)


def test_relu_has_no_derivative_at_zero() -> None:
    """A hidden value of zero hands on no gradient, and no tangent."""
    arrays = [np.ones((1, 1)), np.array([-1.0]), np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.ones((1, 1))]
    dtypes = [a.dtype for a in arrays]
    pulled = mlp.loss.pullback(arrays, [np.ones(())], range(6), dtypes, {})
    assert [float(g.sum()) for g in pulled] == [0.0, 0.0, 0.0, -2.0, 0.0, 2.0]
    assert float(mlp.loss.pushforward(arrays, {0: np.ones((1, 1))}, dtypes, {})[0]) == 0.0


def test_sizes_must_match() -> None:
    """A bias that is as long as another layer's is refused, and so are targets of too many examples."""
    right = [np.ones((2, 3)), np.ones(3), np.ones((1, 2)), np.ones((1, 3))]
    for place, wrong in ((1, np.ones(1)), (3, np.ones((2, 3))), (2, np.ones((1, 3)))):
        arrays = [wrong if i == place else a for i, a in enumerate(right)]
        with pytest.raises(ValueError, match="expected those of layers, inputs and targets that match"):
            mlp.loss.value(arrays, [a.dtype for a in arrays], {})
