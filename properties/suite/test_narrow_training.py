"""Gradients of 16-bit parameters: how they are added up, over microbatches and over devices."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from shardproof.impl import accumulation
from shardproof.impl.optimisers import Transformation
from shardproof.oracles import mlp
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.training import Trial
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.laws.training import OPTIMISERS, check_steps
from shardproof.properties.programs.training import FORMS
from shardproof.properties.programs.violation import Broken

DEVICES, MICROBATCHES, EXAMPLES, SIZES = 2, 64, 128, (4, 4)
MESH = MeshCase(("dp",), (DEVICES,))

forms = pytest.mark.parametrize("name", ["accumulated", "accumulated_fsdp", "zero"])
dtypes = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def gradient_kept() -> Transformation:
    """An optimiser whose state is the gradient, and which moves nothing."""
    return Transformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda gradients, state, params=None: (jax.tree.map(jnp.zeros_like, gradients), gradients),
    )


def batch_of(dtype: Any) -> list[np.ndarray]:
    """`W`, `b`, inputs and targets of which all parts' gradients are positive, so that roundings add up."""
    rng = np.random.default_rng(0)
    shapes = SIZES, SIZES[1:], (EXAMPLES, SIZES[0]), (EXAMPLES, SIZES[1])
    w, b, inputs, targets = (np.abs(rng.normal(size=shape)) for shape in shapes)
    return [x.astype(dtype) for x in (w, b, inputs, -targets)]


def gradients_of(name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Those of W and b that a form's step gives to its optimiser, interpreted."""
    w, b, inputs, targets = arrays
    mesh, form = abstract_mesh(MESH), FORMS[name]
    step = form.step(gradient_kept(), mesh, ("dp",), (), MICROBATCHES)
    params, batch = [(w, b)], (inputs, targets, np.ones(EXAMPLES, bool))
    state = prepare(step.init_traceable, params).run(params)
    _, state, _ = prepare(step.function, params, state, batch).run(params, state, batch)
    leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
    return [x.ravel()[: own.size].reshape(own.shape) for x, own in zip(leaves, (w, b), strict=True)]


def check_gradients(name: str, dtype: Any) -> None:
    """A part's gradient is rounded to the parameters' dtype; their sum is not before it is divided by the count.

    Raises:
        AssertionError: if it is off by more than these roundings.
    """
    arrays = batch_of(dtype)
    w, b, inputs, targets = arrays
    dtypes = [a.dtype for a in arrays]
    each = EXAMPLES // DEVICES // MICROBATCHES
    parts = [
        mlp.loss.pullback([w, b, inputs[i : i + each], targets[i : i + each]], [np.ones(())], range(2), dtypes, {})
        for i in range(0, EXAMPLES, each)
    ]
    for i, found in enumerate(gradients_of(name, arrays)):
        whole = np.mean([part[i] for part in parts], axis=0)
        rounded = np.mean([np.abs(part[i]) for part in parts], axis=0) + np.abs(whole)
        off = unit_roundoff(dtype) * 1.01 * rounded + 1e-5 * rounded
        assert found.dtype == dtype
        assert np.all(np.abs(found.astype(np.float64) - whole) <= off), f"{name} in {dtype}: gradient {i}"


@forms
@dtypes
def test_gradients_are_rounded_twice(name: str, dtype: str) -> None:
    """A gradient is off by two roundings of its own size, however many microbatches and devices there are."""
    check_gradients(name, np.dtype(getattr(ml_dtypes, dtype, dtype)))


@forms
def test_sums_in_the_parameters_dtype_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What adds up microbatches in 16 bits is off by more, and what sends sums of 16 bits sends too little."""
    monkeypatch.setattr(accumulation, "accumulator", lambda x: x.dtype)
    with pytest.raises(AssertionError, match="gradient 0"):
        check_gradients(name, np.dtype(ml_dtypes.bfloat16))
    with pytest.raises(Broken, match=r"expected .* \(formula\)"):
        check_steps(
            Trial(MESH, ("dp",), (), (4, 4), 8, 2, dtype="bfloat16"), FORMS[name], OPTIMISERS["sgd"], "simulate"
        )


@forms
@dtypes
def test_what_is_sent(name: str, dtype: str) -> None:
    """Sums over devices are float32, and what is gathered has the parameters' dtype: the formulas count bytes."""
    trial = Trial(MESH, ("dp",), (), (4, 4), 8, 2, dtype=dtype)
    check_steps(trial, FORMS[name], OPTIMISERS["sgd"], "simulate")


@dtypes
def test_a_loss_in_16_bits_is_added_up_in_float32(dtype: str) -> None:
    """Sum and count are, of many microbatches, where a sum of 16 bits stays where it is at 256; so is the quotient."""
    microbatches = 1028
    loss = accumulation.accumulating(
        lambda w, part, **axes: (jnp.sum(w * part), jnp.sum(jnp.ones_like(part))), microbatches=microbatches
    )
    mesh = abstract_mesh(MESH)
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arrays = np.ones((), narrow), np.ones(DEVICES * microbatches, narrow)
    step = jax.value_and_grad(lambda w, part: loss(w, part, mesh=mesh, data="dp", model=()))
    value, gradient = prepare(step, *arrays).run(*arrays)
    assert (np.asarray(value).dtype, float(value)) == (np.dtype("float32"), 1.0)
    assert (np.asarray(gradient).dtype.name, float(gradient)) == (dtype, 1.0)
