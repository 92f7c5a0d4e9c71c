"""What training steps, accumulation and models refuse, and in which words."""

from typing import Any

import jax
import numpy as np
import pytest

from shardproof.impl.losses.layout import Layout
from shardproof.impl.model import initialise
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.laws.training import OPTIMISERS
from shardproof.properties.programs.training import FORMS

MESH = MeshCase(("dp", "tp"), (2, 1))


def params() -> Any:
    """Those of one layer, on one device."""
    return [(jax.numpy.zeros((2, 2)), jax.numpy.zeros(2))]


@pytest.mark.parametrize("name", ["data_parallel", "accumulated", "zero"])
@pytest.mark.parametrize("call", ["init", "lower", "call"])
def test_an_abstract_mesh_is_refused(name: str, call: str) -> None:
    """What runs on devices asks for a mesh that has some, and says what can be traced without."""
    step: Any = FORMS[name].step(OPTIMISERS["adam"][0](), abstract_mesh(MESH), ("dp",), (), 1)
    some = params()
    calls = {
        "init": lambda: step.init(some),
        "lower": lambda: step.lower(some, (), ()),
        "call": lambda: step(some, (), ()),
    }
    with pytest.raises(ValueError, match=r"^\w+Step: mesh=\(dp=2, tp=1\): expected a mesh of devices; on an abstract"):
        calls[call]()
    jax.eval_shape(step.init_traceable, params())


@pytest.mark.parametrize("name", ["accumulated", "zero"])
def test_microbatches_that_do_not_divide(name: str) -> None:
    """A number of microbatches that does not divide the examples is refused for who was called."""
    step: Any = FORMS[name].step(OPTIMISERS["sgd"][0](), abstract_mesh(MESH), ("dp",), (), 3)
    batch = np.zeros((4, 2)), np.zeros((4, 2)), np.ones(4, bool)
    caller = {"accumulated": "accumulating", "zero": "ZeroStep"}[name]
    with pytest.raises(ValueError, match=rf"^{caller}: microbatches=3: expected a number that divides the examples of"):
        jax.eval_shape(step.function, params(), (), batch)


def test_models_and_layouts() -> None:
    """Sizes that are none, and roles that are none or twice, are refused by the names of what was called."""
    with pytest.raises(
        ValueError, match=r"^initialise: sizes=\(3,\): expected the sizes of inputs and outputs at least"
    ):
        initialise(jax.random.key(0), (3,))
    with pytest.raises(ValueError, match=r"^Layout: weights=\(\('model',\), \('model',\)\): expected each of"):
        Layout(weights=(("model",), ("model",)))
