"""Steps of training are those of a single device, under every parallelisation, on drawn meshes and sizes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import trials
from shardproof.properties.cases.training import Trial
from shardproof.properties.contracts import Scope
from shardproof.properties.laws.training import OPTIMISERS, check_steps
from shardproof.properties.programs.training import FORMS, Form

EXAMPLES = {"simulate": 0.03, "xla": 0.01}
"""What the profile's examples are multiplied with."""


def steps_of(engine: str) -> object:
    """The law on an engine, as a test."""

    @pytest.mark.law("value", engine)
    @pytest.mark.parametrize("form", FORMS.values(), ids=str)
    @settings(max_examples=max(2, round(settings().max_examples * EXAMPLES[engine])))
    @given(data=st.data())
    def test(form: Form, scope: Scope, data: st.DataObject) -> None:
        steps = 3 if engine == "simulate" else 10
        drawn = trials(
            max_devices=scope.max_devices,
            available=scope.available,
            masked=form.masked,
            sharded=form.sharded,
            max_steps=steps,
        )
        trial = data.draw(drawn, label="trial")
        name = data.draw(st.sampled_from(sorted(OPTIMISERS)), label="optimiser")
        check_steps(trial, form, OPTIMISERS[name], engine)

    test.__doc__ = (
        "After every step losses and parameters are those of a single device, and gradients are sent once, whatever "
        "the number of microbatches: three steps interpreted, ten compiled, one in 16 bits."
    )
    return test


test_steps_simulate = steps_of("simulate")
test_steps_xla = steps_of("xla")


@pytest.mark.law("value", "simulate")
@pytest.mark.parametrize(("optimiser", "steps"), [("sgd", 1), ("adam", 10)])
@pytest.mark.parametrize("form", FORMS.values(), ids=str)
def test_one_step_and_ten(form: Form, optimiser: str, steps: int) -> None:
    """A step of gradient descent, and each of the first ten of Adam, are one device's under all forms."""
    mesh = MeshCase(("dp", "tp"), (2, 2))
    microbatches = 2 if form.masked else 1
    trial = Trial(mesh, ("dp",), ("tp",), (8, 12, 4), 8, microbatches=microbatches, steps=steps)
    check_steps(trial, form, OPTIMISERS[optimiser], "simulate")
