"""What is wrong in one of the three modes is found, in as many cases as a run draws; what is odd is not."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import pytest
from hypothesis import Phase, given, settings
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.oracles.layout import spec_entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.modes import ModesCase
from shardproof.properties.cases.resharding import Resharding
from shardproof.properties.cases.strategies.layouts import modes_cases
from shardproof.properties.engines import Engine
from shardproof.properties.engines.xla import abstract_mesh, device_mesh
from shardproof.properties.laws.modes import (
    check_dtype,
    check_layout,
    check_loss,
    check_mlp,
    check_mode,
    check_narrow_loss,
)
from shardproof.properties.laws.resharding import check_resharding
from shardproof.properties.mutants.modes import (
    NARROW_LOSSES,
    ODD_LAYERS,
    OF_INPUTS,
    OTHERWISE,
    UNPLACED,
    WRONG_LAYERS,
    WRONG_LOSSES,
)
from shardproof.properties.mutants.resharding import CHANGES, RIGHT
from shardproof.properties.mutants.resharding import WRONG as RESHARDINGS
from shardproof.properties.programs.violation import Broken
from shardproof.properties.suite.test_modes import COMPILED, INTERPRETED

pytestmark = pytest.mark.needs_devices(8)


def search(check: Callable[[ModesCase], None], examples: int) -> None:
    """Asks it of so many cases."""

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(modes_cases())
    def every(case: ModesCase) -> None:
        check(case)

    every()


@pytest.mark.parametrize("name", WRONG_LAYERS)
def test_a_wrong_layer_is_found(name: str, engines: Mapping[str, Engine]) -> None:
    """By its values."""
    with pytest.raises(AssertionError):
        search(lambda case: check_mlp(WRONG_LAYERS[name], case, engines["simulate"]), INTERPRETED)


@pytest.mark.parametrize("name", WRONG_LOSSES)
def test_a_wrong_loss_is_found(name: str, engines: Mapping[str, Engine]) -> None:
    """By its value, or a gradient."""
    with pytest.raises(AssertionError, match=r"the loss|the gradient by"):
        search(lambda case: check_loss(WRONG_LOSSES[name], case, engines["simulate"]), INTERPRETED)


@pytest.mark.parametrize("name", NARROW_LOSSES)
def test_a_loss_in_16_bits_is_found(name: str, engines: Mapping[str, Engine]) -> None:
    """Its sum is rounded more often than it may be, where it is above 256."""

    def check(case: ModesCase) -> None:
        if max(case.sides) < 32:
            check_narrow_loss(NARROW_LOSSES[name], case, engines["simulate"], "bfloat16")

    with pytest.raises(Broken, match="the loss"):
        search(check, 8 * INTERPRETED)


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_layer_in_another_mode_is_found(name: str, engines: Mapping[str, Engine]) -> None:
    """Its values are right; where its products are, or its hidden values, is not."""
    mode, mlp = OTHERWISE[name]
    search(lambda case: check_mlp(mlp, case, engines["simulate"]), COMPILED)
    with pytest.raises(Broken, match=r"products on axes of|the hidden values are laid out as"):
        search(lambda case: check_mode(mlp, mode, case), INTERPRETED)


@pytest.mark.parametrize("name", OF_INPUTS)
def test_a_loss_in_another_dtype_is_found(name: str, engines: Mapping[str, Engine]) -> None:
    """It shows where x and the targets differ."""
    search(lambda case: check_loss(OF_INPUTS[name], case, engines["simulate"]), COMPILED)
    with pytest.raises(Broken, match=r"^the loss"):
        search(lambda case: check_dtype(OF_INPUTS[name], case), 1)


@pytest.mark.parametrize("name", RESHARDINGS)
def test_a_wrong_change_of_layout_is_found(name: str) -> None:
    """For what is wrong with it."""
    function, case, kind = RESHARDINGS[name]
    with pytest.raises(Broken) as raised:
        check_resharding(function, case)
    assert raised.value.kind == kind


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("case", CHANGES, ids=str)
def test_an_odd_change_of_layout_is_right(name: str, case: Resharding) -> None:
    """It is not reported."""
    check_resharding(RIGHT[name], case)


@pytest.mark.parametrize("name", UNPLACED)
def test_a_layer_elsewhere_is_found(name: str, engines: Mapping[str, Engine]) -> None:
    """Its values are right, and where they are is not; few cases are compiled, so a night's are looked at."""
    search(lambda case: check_mlp(UNPLACED[name], case, engines["simulate"]), COMPILED)
    with pytest.raises(AssertionError, match="expected NamedSharding"):
        search(lambda case: check_layout(UNPLACED[name], case), 10 * COMPILED)


@pytest.mark.parametrize("name", ODD_LAYERS)
def test_an_odd_layer_is_right(name: str, engines: Mapping[str, Engine]) -> None:
    """No check reports it."""
    search(lambda case: check_mlp(ODD_LAYERS[name], case, engines["simulate"]), INTERPRETED)
    search(lambda case: check_layout(ODD_LAYERS[name], case), COMPILED)


EXPLICIT = MeshCase(("dp", "tp"), (2, 2), axis_types=("explicit", "explicit"))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_constraint_on_explicit_axes_is_an_assertion(compiled: bool) -> None:
    """It holds, and then changes nothing, or raises, which an automatic one never does; only the order is another."""
    mesh = device_mesh(EXPLICIT)
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec(("dp", "tp"), None)))
    for spec, holds in (
        (PartitionSpec(("dp", "tp"), None), True),
        (PartitionSpec(("tp", "dp"), None), False),
        (PartitionSpec("dp", "tp"), False),
        (PartitionSpec(), False),
    ):

        def constrained(x: jax.Array, spec: PartitionSpec = spec) -> jax.Array:
            return jax.lax.with_sharding_constraint(x, spec)

        function = jax.jit(constrained) if compiled else constrained
        with jax.set_mesh(mesh):
            if holds:
                assert spec_entries(jax.typeof(function(x)).sharding.spec, 2, EXPLICIT) == (("dp", "tp"), ())
            else:
                with pytest.raises(AssertionError, match="acts as an assert"):
                    function(x)


def test_gradients_on_explicit_axes_are_typed_as_what_they_are_of() -> None:
    """By an operand that is sharded, and by one that is not, of a product that has to be told where to."""
    mesh = abstract_mesh(EXPLICIT)
    specs = PartitionSpec("dp", "tp"), PartitionSpec("tp", None)
    lhs, rhs = (jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, spec)) for spec in specs)

    def loss(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(jnp.matmul(lhs, rhs, out_sharding=PartitionSpec("dp", "tp"))))

    with jax.sharding.use_abstract_mesh(mesh):
        gradients = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(lhs, rhs).jaxpr.out_avals
    assert [str(g) for g in gradients] == ["float32[8@dp,8@tp]", "float32[8@tp,8]"]
