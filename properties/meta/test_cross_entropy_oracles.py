"""Cross-entropy of sharded classes: the oracle once more on whole arrays."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles.cross_entropy import vocab_parallel_cross_entropy as oracle
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import places
from shardproof.properties.meta.blockwise import check_oracle, floats, participants


def labels_of(mesh: MeshCase, axes: tuple[str, ...], tokens: int, classes: int, seed: int = 0) -> np.ndarray:
    """Labels of all classes, and -1: every device's own, so that nothing is taken for granted."""
    v = classes * mesh.axis_size(axes)
    return np.random.default_rng(seed).integers(-1, v, (*mesh.sizes, tokens))


def losses_of_wholes(
    mesh: MeshCase, axes: tuple[str, ...], labels: np.ndarray, s: float, ignored: int, logits: np.ndarray
) -> np.ndarray:
    """Every token's loss, by the logarithms of its probabilities, one after the other."""
    result = np.zeros(labels.shape)
    for device in np.ndindex(*mesh.sizes):
        whole = np.concatenate([logits[participant] for participant in participants(mesh, axes, device)], axis=-1)
        for token, label in enumerate(labels[device]):
            if label == ignored:
                continue
            total = sum(math.exp(z) for z in whole[token])
            surprises = [-math.log(math.exp(z) / total) for z in whole[token]]
            known = 0 <= label < len(surprises)
            result[(*device, token)] = (
                (1 - s) * surprises[label] + s * sum(surprises) / len(surprises) if known else math.nan
            )
    return result


@given(place=places(), smoothing=st.sampled_from([0.0, 0.1, 1.0]), ignored=st.sampled_from([-1, 0]))
def test_the_loss_is_that_of_whole_tokens(place: Any, smoothing: float, ignored: int) -> None:
    """The oracle's losses, their differences and their adjoint are those of tokens with all of their classes."""
    mesh, axes, seed = place
    logits, tangent, ct = (floats(mesh, *shape, seed=seed + i) for i, shape in enumerate([(3, 2), (3, 2), (3,)]))
    labels = labels_of(mesh, axes, 3, 2, seed)
    labels = labels if ignored == -1 else np.maximum(labels, 0)
    keywords: dict[str, Any] = {"label_smoothing": smoothing, "ignore_index": ignored}
    whole = functools.partial(losses_of_wholes, mesh, axes, labels, smoothing, ignored)
    check_oracle(oracle, whole, mesh, axes, [logits], [tangent], ct, [labels], rtol=1e-6, **keywords)


def test_labels_of_no_class_are_nan_and_have_no_slope() -> None:
    """A label outside [0, V) has the loss NaN, unless it is ignored; of both the gradient is zero."""
    mesh, axes = MeshCase(("tp",), (2,)), ("tp",)
    logits, labels = floats(mesh, 4, 3), np.broadcast_to([-1, -2, 6, 5], (2, 4))
    logits[1, 0, 2] = np.nan
    loss = oracle.value([logits, labels], mesh, axes)[0]
    np.testing.assert_array_equal(np.isnan(loss), np.broadcast_to([False, True, True, False], (2, 4)))
    assert not loss[:, 0].any()
    pulled = oracle.pullback([logits, labels], [np.ones((2, 4))], mesh, axes)[0]
    assert pulled is not None
    np.testing.assert_array_equal(pulled.any(axis=(0, 2)), [False, False, False, True])


@pytest.mark.parametrize(
    ("labels", "message"), [(np.zeros((1, 2)), "float64"), (np.zeros((1, 3), int), r"int64\[1, 3")]
)
def test_the_oracle_refuses(labels: np.ndarray, message: str) -> None:
    """Labels that are no integers, or not one per token."""
    with pytest.raises(ValueError, match=f"labels: {message}"):
        oracle.value([np.zeros((1, 2, 2)), labels], MeshCase(("tp",), (1,)), ("tp",))
