"""Cross-entropy of sharded classes: the oracle once more on whole arrays, and all implementations against it."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.impl import cross_entropy as forms
from shardproof.oracles.cross_entropy import vocab_parallel_cross_entropy as oracle
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import REVERSED, places
from shardproof.properties.meta.blockwise import (
    central_difference,
    derivatives,
    floats,
    inner,
    on_devices,
    participants,
    simulated,
)

FORMS = (
    forms.vocab_parallel_cross_entropy,
    forms.gathered_cross_entropy,
    forms.chunked_cross_entropy,
    functools.partial(forms.chunked_cross_entropy, chunk=2),
)


def named(form: Any) -> str:
    """The name of a form, of a partial one with its keywords."""
    return getattr(form, "__name__", "") or f"{form.func.__name__}, {form.keywords}"


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
    np.testing.assert_allclose(oracle.value([logits, labels], mesh, axes, **keywords)[0], whole(logits), rtol=1e-10)
    pushed = oracle.pushforward([logits, labels], [tangent, None], mesh, axes, **keywords)
    np.testing.assert_allclose(pushed[0], central_difference(whole, [logits], [tangent]), rtol=1e-6, atol=1e-8)
    pulled = oracle.pullback([logits, labels], [ct], mesh, axes, **keywords)
    assert pulled[1] is None
    assert pulled[0] is not None
    assert math.isclose(inner(pushed, [ct]), inner([tangent], [pulled[0]]), rel_tol=1e-9, abs_tol=1e-12)


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


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_an_ignored_nan_counts_for_nothing(form: Any) -> None:
    """A token that is ignored has the loss 0 and the gradient 0 on devices, even if its logits are NaN."""
    mesh, axes = REVERSED
    logits, labels = floats(mesh, 2, 3, dtype=np.float32), np.broadcast_to([7, 8], (2, 3, 2))
    logits[:, :, 0] = np.nan
    local = functools.partial(form, axis_name=axes, ignore_index=7)
    np.testing.assert_array_equal(np.isnan(on_devices(local, mesh, logits, labels)), False)
    assert not on_devices(local, mesh, logits, labels)[..., 0].any()
    pushed, pulled = derivatives(local, mesh, [logits], [np.ones_like(logits)], logits[..., 1, 0:2], [labels])
    assert np.isfinite(pushed).all()
    assert not pulled[0][:, :, 0].any()


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_the_largest_label_is_not_minus_one(form: Any) -> None:
    """An unsigned label is not ignored for being -1 in another dtype: it is that of no class."""
    mesh = MeshCase(("tp",), (2,))
    labels = np.full((2, 1), 2**32 - 1, np.uint32)
    assert np.isnan(on_devices(functools.partial(form, axis_name="tp"), mesh, np.zeros((2, 1, 3)), labels)).all()


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_what_is_refused(form: Any) -> None:
    """Logits without classes or floats, labels that are no integers or not one per token, and a smoothing above 1."""
    mesh, axes = REVERSED
    x, labels, name = np.zeros((2, 3, 2, 4), np.float32), np.zeros((2, 3, 2), np.int32), named(form).split(",")[0]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ((x > 0, labels), {}, rf"{name}: logits='bool.*': expected an array of real floating-point numbers, on the"),
        (
            (x[..., :0], labels),
            {},
            rf"{name}: logits='float32\[2,0\].*': expected an array whose last dimension has at",
        ),
        ((x, x[..., 0]), {}, rf"{name}: labels='float32.*': expected an array of integers, on the mesh \(dp=2, tp=3\)"),
        ((x, labels[..., :1]), {}, rf"{name}: labels='int32\[1\].*': expected an array of shape \(2,\), one label for"),
        ((x, labels), {"label_smoothing": 1.5}, rf"{name}: label_smoothing=1.5: expected a number in \[0, 1\]"),
        ((x, labels), {"axis_name": ("tp", "ep")}, rf"{name}: axis_name=\('tp', 'ep'\): expected bound axis names"),
    ]
    for arguments, changed, message in cases:
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, **({"axis_name": axes} | changed)), mesh, *arguments)


def test_a_chunk_has_a_class() -> None:
    """A chunk of no class is refused."""
    with pytest.raises(ValueError, match="chunk=0: expected a number of classes of at least 1"):
        simulated(
            functools.partial(forms.chunked_cross_entropy, axis_name="tp", chunk=0),
            MeshCase(("tp",), (2,)),
            np.zeros((2, 1, 3)),
            np.zeros((2, 1), int),
        )
