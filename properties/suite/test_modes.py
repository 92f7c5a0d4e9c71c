"""The three modes of sharding: automatic axes, explicit ones, and `shard_map`."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import NamedSharding

from shardproof.impl import modes
from shardproof.properties.cases.strategies.layouts import modes_cases, reshardings
from shardproof.properties.cases.strategies.typed_calls import OPERATIONS, calls
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.laws.modes import (
    check_dtype,
    check_layout,
    check_loss,
    check_mlp,
    check_mode,
    check_narrow_loss,
)
from shardproof.properties.laws.resharding import check_resharding
from shardproof.properties.laws.sharding_types import check_type
from shardproof.properties.programs.violation import Broken
from shardproof.properties.runner.excused_types import excused

TYPED = max(10, settings().max_examples // 4)
"""Calls of each operation: they are traced, and nothing is compiled."""


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=TYPED)
@given(data=st.data())
def test_a_result_on_explicit_axes_is_typed(operation: str, data: st.DataObject) -> None:
    """Its type is the one that follows from those of the operands, and there is none where none follows."""
    check_type(data.draw(calls(operation), label="call"), excused=excused)


LAYERS = {
    "automatic": modes.automatic_mlp,
    "explicit": modes.explicit_mlp,
    "mixed": modes.mixed_mlp,
    "manual": modes.manual_mlp,
}
LOSSES = {
    "automatic": modes.automatic_loss,
    "explicit": modes.explicit_loss,
    "mixed": modes.mixed_loss,
    "manual": modes.manual_loss,
}

NARROW = ("bfloat16", "float16")

INTERPRETED = max(4, settings().max_examples // 10)
COMPILED = max(2, settings().max_examples // 70)


@pytest.mark.parametrize("mode", LAYERS)
@settings(max_examples=INTERPRETED)
@given(data=st.data())
def test_a_layer_is_the_same_in_every_mode(mode: str, engines: Mapping[str, Engine], data: st.DataObject) -> None:
    """Its values are those of the whole arrays, bit for bit, in 16 bits as well, and it is in that mode."""
    case = data.draw(modes_cases(max_devices=16, available=16), label="case")
    check_mode(LAYERS[mode], mode, case)
    dtype = data.draw(st.sampled_from(("float32", *NARROW)), label="dtype")
    check_mlp(LAYERS[mode], case, engines["simulate"], dtype if max(case.sides) < 8 else "float32")


@pytest.mark.parametrize("mode", LOSSES)
@settings(max_examples=INTERPRETED)
@given(data=st.data())
def test_a_loss_is_the_same_in_every_mode(mode: str, engines: Mapping[str, Engine], data: st.DataObject) -> None:
    """So are its dtype, and its gradients, by every argument, and in 16 bits it is added up in float32."""
    case = data.draw(modes_cases(max_devices=12, available=12), label="case")
    check_dtype(LOSSES[mode], case)
    check_loss(LOSSES[mode], case, engines["simulate"])
    if max(case.sides) < 32:  # hidden values are integers up to 32 then
        check_narrow_loss(LOSSES[mode], case, engines["simulate"], data.draw(st.sampled_from(NARROW), label="dtype"))


@pytest.mark.parametrize("mode", LAYERS)
@settings(max_examples=COMPILED)
@given(data=st.data())
def test_a_layer_is_laid_out_in_every_mode(mode: str, scope: Scope, data: st.DataObject) -> None:
    """Compiled, every device has the part of the result that was asked for."""
    case = data.draw(modes_cases(max_devices=scope.max_devices, available=scope.available), label="case")
    known = DEFECTS["product_over_three_axes"]
    try:
        check_layout(LAYERS[mode], case)
    except Broken as error:
        if error.kind != "values" or not (case.over_three_axes and known.in_version(jax.__version__)):
            raise
        assert known.repair is not None
        with known.repair(lax.dot_general_p):
            check_layout(LAYERS[mode], case)


def constrained(x: Any, spec: Any, mesh: Any) -> Any:
    """On automatic axes."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def from_type_to_type(x: Any, spec: Any, mesh: Any) -> Any:
    """On explicit axes."""
    return jax.reshard(x, NamedSharding(mesh, spec))


@pytest.mark.parametrize("function", [constrained, from_type_to_type])
@settings(max_examples=10 * COMPILED)
@given(data=st.data())
def test_a_change_of_layout_sends_no_more_than_there_is(
    function: Callable[..., Any], scope: Scope, data: st.DataObject
) -> None:
    """Of any number of dimensions: what a device has is not sent, and never more than gathering everything takes."""
    explicit = function is from_type_to_type
    drawn = reshardings(max_devices=scope.max_devices, available=scope.available, explicit=explicit)
    case = data.draw(drawn, label="case")
    assume(not (case.in_front_of_another and DEFECTS["reshard_after_another"].in_version(jax.__version__)))
    try:
        check_resharding(function, case)
    except Broken as error:
        known = case.over_another_axis and DEFECTS["reshard_over_another_axis"].in_version(jax.__version__)
        if error.kind != "communication" or not known:
            raise
