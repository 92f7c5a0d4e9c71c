"""The table of parity says what is so: all parallelisations take one device's steps, and one that does not is seen."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from shardproof.impl import optimisers
from shardproof.impl.losses import PARALLELISATIONS
from shardproof.impl.losses.data_parallel import linear_alone
from shardproof.impl.training import TrainingStep
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.benchmark.parity import NAMES, Steps, form, held, parity, row, within
from shardproof.properties.laws.training import OPTIMISERS, TOLERANCE, check_steps
from shardproof.properties.meta.brief import marked
from shardproof.properties.programs.training import FORMS, Axes

MESH = MeshCase(("dp", "tp"), (2, 2))
TRIAL = Steps(MESH, ("dp",), ("tp",), (8, 12, 4), 8, steps=10)
DEEP = replace(TRIAL, sizes=(16,) * 13)


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize("name", marked(NAMES, ["fsdp_tensor_parallel", "zero"]))
def test_parity(name: str) -> None:
    """One device's loss, gradients and step of SGD bit for bit, one and ten steps of Adam, and the formula's bytes."""
    found = parity(form(name), TRIAL)
    assert found.same == {"simulate": True, "xla": True}
    for engine in ("simulate", "xla"):
        assert len(found.adam[engine]) == 10
        assert max(found.adam[engine]) < TOLERANCE
    assert str(found.sent["simulate"]) == str(found.formula)
    assert row(found)[1] == "the same bits"


def test_every_form_is_in_the_table() -> None:
    """Of all losses, and of all steps that accumulate or share the optimiser's state."""
    assert set(NAMES) == {*PARALLELISATIONS, *FORMS}


@pytest.mark.needs_devices(4)
def test_a_wrong_parallelisation_is_seen() -> None:
    """A row of a loss that is not one device's says so, of both engines: here biases have no part in the last layer."""

    def without_bias(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> Any:
        return linear_alone(x, w, 0 * b, data, model)

    wrong = replace(PARALLELISATIONS["one_device"], linear=without_bias)

    def step(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> TrainingStep:
        return TrainingStep(wrong, optimiser, mesh=mesh, data=data, model=model)

    found = parity(replace(FORMS["one_device"], step=step), replace(TRIAL, steps=2))
    assert found.same == {"simulate": False, "xla": False}
    assert min(found.most(engine, steps) for engine in ("simulate", "xla") for steps in (1, 2)) > 1e-3
    assert within(found.most("simulate", 2)).startswith("off by ")
    assert row(found)[1] == "simulate: False, xla: False"


def test_what_is_held() -> None:
    """Fully sharded, a device holds 1/p of parameters and state but for biases; under ZeRO of the state alone."""
    p = MESH.size
    names = ("data_parallel", "fsdp_rows", "fsdp_rows_remat", "zero", "zero_tensor_parallel")
    every = {name: held(name, DEEP) for name in names}
    against = every["data_parallel"]
    assert against.state == 2 * against.parameters == 2 * 4 * 12 * (16 * 16 + 16)
    for name in ("fsdp_rows", "fsdp_rows_remat"):
        assert every[name].parameters * p == against.parameters + 4 * 12 * 16  # biases are whole along `data`
        assert every[name].state == 2 * every[name].parameters
    assert every["zero"].parameters == against.parameters
    assert every["zero"].state * p == against.state == every["zero_tensor_parallel"].state * p
    assert every["zero_tensor_parallel"].parameters * MESH.shape["tp"] == against.parameters
    assert every["fsdp_rows_remat"].peak < every["fsdp_rows"].peak < every["zero"].peak < against.peak
    assert every["fsdp_rows_remat"].peak < 1.6 * against.peak / p


@pytest.mark.parametrize("name", marked(["adam", "momentum", "sgd"], ["adam"]))
@pytest.mark.parametrize("engine", ["simulate", "xla"])
def test_optimisers_are_those_of_optax(name: str, engine: str) -> None:
    """Optax's SGD and Adam take the steps that their definitions say, under data parallelism and ZeRO, as ours do."""
    optax = pytest.importorskip("optax", reason="the dependency group `optimisers` is not installed")
    made = {
        "sgd": lambda: optax.sgd(0.02),
        "momentum": lambda: optax.sgd(0.02, momentum=0.9),
        "adam": lambda: optax.adam(0.01),
    }[name]
    trial = replace(TRIAL, mesh=MeshCase(("dp",), (2,)), data=("dp",), model=())
    for one in ("data_parallel", "fsdp_rows", "zero"):
        check_steps(trial, FORMS[one], (made, OPTIMISERS[name][1]), engine)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_updates_are_those_of_optax(name: str) -> None:
    """Element by element ten updates of ours and of optax's are alike, to nine digits of the largest."""
    optax = pytest.importorskip("optax", reason="the dependency group `optimisers` is not installed")
    ours, theirs = {
        "sgd": (optimisers.sgd(0.02), optax.sgd(0.02)),
        "momentum": (optimisers.sgd(0.02, momentum=0.9), optax.sgd(0.02, momentum=0.9)),
        "adam": (optimisers.adam(0.01), optax.adam(0.01)),
    }[name]
    with jax.enable_x64(True):
        params = {"w": jax.random.normal(jax.random.key(0), (3, 4)), "b": jax.random.normal(jax.random.key(1), (4,))}
        states = [one.init(params) for one in (ours, theirs)]
        for step in range(10):
            gradients = jax.tree.map(lambda x, k=step: jax.random.normal(jax.random.key(k), x.shape), params)
            found = []
            for i, one in enumerate((ours, theirs)):
                updates, states[i] = one.update(gradients, states[i], params)
                found.append(jax.tree.leaves(updates))
            for one, other in zip(*found, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
