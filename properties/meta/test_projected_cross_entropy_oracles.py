"""The loss of a projection: the oracle on whole arrays, both implementations, and their memory."""

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardproof.impl import projected_cross_entropy as forms
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.projected_cross_entropy import projected_cross_entropy as oracle
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.engines.xla import abstract_mesh
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
from shardproof.properties.performance.operations import peak_of
from shardproof.properties.programs.program import Argument, Program

FORMS = (
    forms.projected_cross_entropy,
    forms.chunked_projected_cross_entropy,
    functools.partial(forms.chunked_projected_cross_entropy, chunk=2),
)
TOKENS, FEATURES, CLASSES, CHUNK = 512, 4, 256, 16
"""Of the memory's test: a participant's logits are far more than everything else."""

PARTICIPANTS = MeshCase(("tp",), (4,))


def named(form: Any) -> str:
    """The name of a form, of a partial one with its keywords."""
    return getattr(form, "__name__", "") or f"{form.func.__name__}, {form.keywords}"


def token_by_token(
    mesh: MeshCase, axes: tuple[str, ...], labels: np.ndarray, s: float, ignored: int, x: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Every token's loss, by the probabilities of all classes, each with the x of the participant that has it."""
    result = np.zeros(labels.shape)
    for device in np.ndindex(*mesh.sizes):
        columns = [
            (x[participant], column) for participant in participants(mesh, axes, device) for column in w[participant].T
        ]
        for token, label in enumerate(labels[device]):
            if label == ignored:
                continue
            logits = [math.fsum(a * b for a, b in zip(rows[token], c, strict=True)) for rows, c in columns]
            powers = [math.exp(logit) for logit in logits]
            surprises = [-math.log(power / sum(powers)) for power in powers]
            result[(*device, token)] = (1 - s) * surprises[label] + s * sum(surprises) / len(surprises)
    return result


@given(place=places(), smoothing=st.sampled_from([0.0, 0.1]), ignored=st.sampled_from([-1, 0]))
def test_the_loss_is_that_of_whole_tokens(place: Any, smoothing: float, ignored: int) -> None:
    """The oracle's losses, differences and adjoint are those of tokens with all of their classes."""
    mesh, axes, seed = place
    shapes = [(3, 2), (2, 2), (3, 2), (2, 2), (3,)]
    x, w, dx, dw, ct = (floats(mesh, *shape, seed=seed + i) for i, shape in enumerate(shapes))
    one = np.random.default_rng(seed).integers(0, 2 * mesh.axis_size(axes), 3)
    labels = np.broadcast_to(one, (*mesh.sizes, 3))
    options: dict[str, Any] = {"label_smoothing": smoothing, "ignore_index": ignored}
    whole = functools.partial(token_by_token, mesh, axes, labels, smoothing, ignored)
    np.testing.assert_allclose(oracle.value([x, w, labels], mesh, axes, **options)[0], whole(x, w), rtol=1e-10)
    pushed = oracle.pushforward([x, w, labels], [dx, dw, None], mesh, axes, **options)
    np.testing.assert_allclose(pushed[0], central_difference(whole, [x, w], [dx, dw]), rtol=1e-6, atol=1e-7)
    *pulled, none = oracle.pullback([x, w, labels], [ct], mesh, axes, **options)
    assert none is None
    right = inner([dx, dw], [np.asarray(one) for one in pulled])
    assert math.isclose(inner(pushed, [ct]), right, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_an_ignored_nan_counts_for_nothing(form: Any) -> None:
    """An ignored row of NaN affects no other loss and makes no gradient NaN."""
    mesh, axes = REVERSED
    x = np.ones((2, 3, 3, 2), np.float32)
    x[:, :, 0] = np.nan
    w, labels = floats(mesh, 2, 2, dtype=np.float32), np.broadcast_to([7, 8, 0], (2, 3, 3))
    local = functools.partial(form, axis_name=axes, ignore_index=7)
    found = on_devices(local, mesh, x, w, labels)
    assert np.isfinite(found).all()
    assert not found[..., 0].any()
    _, (of_x, of_w) = derivatives(local, mesh, [x, w], [np.ones_like(x), w], np.ones((2, 3, 3), np.float32), [labels])
    assert np.isfinite(of_w).all()
    assert np.isfinite(of_x).all()
    assert not of_x[:, :, 0].any()


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_what_is_refused(form: Any) -> None:
    """Wrong operands, labels, smoothing and chunks are refused with what was expected."""
    mesh, axes = REVERSED
    x, w, labels = (np.zeros((2, 3, *shape), np.float32) for shape in ((2, 4), (4, 3), (2,)))
    ids, name = labels.astype(np.int32), named(form).split(",")[0]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ((x > 0, w, ids), {}, rf"{name}: x='bool.*': expected an array of real floating-point numbers, on the"),
        ((x, w[..., 0], ids), {}, rf"{name}: w='float32\[4\].*': expected"),
        ((x, w[:, :, :3], ids), {}, rf"{name}: w='float32\[3,3\].*': expected an array of shape \(4, 3\), a row for"),
        ((x, w[..., :0], ids), {}, rf"{name}: w='float32\[4,0\].*': expected an array of at least one column"),
        ((x, w, labels), {}, rf"{name}: labels='float32.*': expected an array of integers, on the mesh \(dp=2, tp=3\)"),
        ((x, w, ids[..., :1]), {}, rf"{name}: labels='int32\[1\].*': expected an array of shape \(2,\), one label for"),
        ((x, w, ids), {"label_smoothing": 1.5}, rf"{name}: label_smoothing=1.5: expected a number in \[0, 1\]"),
        ((x, w, ids), {"axis_name": ("tp", "ep")}, rf"{name}: axis_name=\('tp', 'ep'\): expected bound axis names"),
    ]
    if "chunked" in name:
        cases.append(((x, w, ids), {"chunk": 0}, "chunk=0: expected a number of classes of at least 1"))
    for arguments, changed, message in cases:
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, **({"axis_name": axes} | changed)), mesh, *arguments)


def program(form: Any, dtype: str) -> Program:
    """The mean of the losses, with the gradients of x and w."""

    def build(mesh: Any) -> Any:
        specs = (P(), P(None, "tp"), P())
        local: Any = functools.partial(form, axis_name="tp", label_smoothing=0.1)
        losses = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())

        def both(x: Any, w: Any, labels: Any) -> Any:
            return jax.value_and_grad(lambda x, w: losses(x, w, labels).mean(), argnums=(0, 1))(x, w)

        return both

    classes = CLASSES * PARTICIPANTS.size
    return Program(
        build,
        (
            Argument((TOKENS, FEATURES), dtype, ((), ())),
            Argument((FEATURES, classes), dtype, ((), ("tp",))),
            Argument((TOKENS,), "int32", ((),)),
        ),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logits_are_never_there(dtype: str) -> None:
    """The chunked form has no array of a quarter of the logits, forward or backward."""
    mesh, logits = abstract_mesh(PARTICIPANTS), TOKENS * CLASSES
    for form, has_them in (
        (forms.projected_cross_entropy, True),
        (functools.partial(forms.chunked_projected_cross_entropy, chunk=CHUNK), False),
        (functools.partial(forms.chunked_projected_cross_entropy, chunk=CLASSES), True),
    ):
        one = program(form, dtype)
        traced = jax.make_jaxpr(one.build(mesh))(*one.abstract_arguments(mesh))
        bodies = [e.params["jaxpr"] for e in equations(traced) if e.primitive.name == "shard_map"]
        assert len(bodies) >= 2
        sizes = [math.prod(v.aval.shape) for body in bodies for e in equations(body) for v in e.outvars]
        assert (max(sizes) >= logits) == has_them
        assert has_them or max(sizes) < logits / 4
        assert (peak_of(one, PARTICIPANTS) >= 4 * logits) == has_them
