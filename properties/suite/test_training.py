"""Steps of training are those of a single device, under every parallelisation, on drawn meshes and sizes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.properties.cases.strategies import axis_tuples, meshes
from shardproof.properties.contracts import Scope
from shardproof.properties.counting.counted import of_compiled, of_record
from shardproof.properties.laws.training import OPTIMISERS, Trial, check_steps
from shardproof.properties.programs.training import FORMS, Form

EXAMPLES = {"simulate": 0.01, "xla": 0.01}
"""What the profile's examples are multiplied with."""


@st.composite
def trials(draw: st.DrawFn, form: Form, scope: Scope, *, steps: int = 10) -> Trial:
    """Meshes, two disjoint axis tuples in any order, sizes that they divide where they must; shrinks to one device."""
    mesh = draw(meshes(max_devices=scope.max_devices, available=scope.available), label="mesh")
    data = draw(axis_tuples(mesh), label="data")
    others = [name for name in mesh.axis_names if name not in data]
    model = tuple(draw(st.permutations(others), label="model")[: draw(st.integers(0, len(others)))])
    both = mesh.axis_size(data) * mesh.axis_size(model)
    unit = both if form.sharded else 1
    depth = draw(st.integers(1, 2), label="depth")
    sizes = tuple(unit * draw(st.integers(1, 2 if unit > 1 else 5)) for _ in range(depth + 1))
    microbatches = draw(st.integers(1, 3), label="microbatches") if form.masked else 1
    examples = both * microbatches * draw(st.integers(1, 2), label="examples")
    return Trial(mesh, data, model, sizes, examples, microbatches, steps, draw(st.integers(0, 999), label="seed"))


def steps_of(engine: str) -> object:
    """The law on an engine, as a test."""

    @pytest.mark.law("value", engine)
    @pytest.mark.parametrize("form", FORMS.values(), ids=str)
    @settings(max_examples=max(2, round(settings().max_examples * EXAMPLES[engine])))
    @given(data=st.data())
    def test(form: Form, scope: Scope, data: st.DataObject) -> None:
        trial = data.draw(trials(form, scope, steps=3 if engine == "simulate" else 10), label="trial")
        name = data.draw(st.sampled_from(sorted(OPTIMISERS)), label="optimiser")
        evidence = check_steps(trial, form, OPTIMISERS[name], engine)
        cost = (of_record(evidence) if engine == "simulate" else of_compiled(evidence)).cost
        assert cost is not None
        p = trial.mesh.axis_size(trial.data)
        shapes = [s for a, b in zip(trial.sizes[:-1], trial.sizes[1:], strict=True) for s in (a * b, b)]
        if form.name == "accumulated" and (p > 1 or engine == "simulate"):  # the gradient, the sum, the int32 count
            assert cost.bytes_in("all_reduce") == 8 * (sum(shapes) + 1) + 4
        if form.name == "zero" and (p > 1 or engine == "simulate"):
            padded = sum(p * math.ceil(n / p) for n in shapes)
            assert cost.bytes_in("reduce_scatter") == 8 * padded
            assert cost.bytes_in("all_gather") == 8 * padded // p
            assert cost.bytes_in("all_reduce") == 12

    test.__doc__ = (
        "Losses and parameters equal those of a single device after every step: three interpreted, ten compiled."
    )
    return test


test_steps_simulate = steps_of("simulate")
test_steps_xla = steps_of("xla")
