"""Types on explicit axes beyond those of single operations; layouts and sizes that are refused, each by its name."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.impl.distillation import predictions
from shardproof.impl.losses import tensor_parallel
from shardproof.impl.reshard import constrained_reshard
from shardproof.oracles.layout import spec_entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh, device_mesh

EXPLICIT = MeshCase(("dp", "tp"), (2, 2), axis_types=("explicit", "explicit"))


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_constraint_on_explicit_axes_is_an_assertion(compiled: bool) -> None:
    """It holds, and then changes nothing, or raises, which an automatic one never does; only the order is another."""
    mesh = device_mesh(EXPLICIT)
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec(("dp", "tp"), None)))
    for at, holds in (
        (PartitionSpec(("dp", "tp"), None), True),
        (PartitionSpec(("tp", "dp"), None), False),
        (PartitionSpec(), False),
    ):

        def constrained(x: jax.Array, at: PartitionSpec = at) -> jax.Array:
            return lax.with_sharding_constraint(x, at)

        function = jax.jit(constrained) if compiled else constrained
        with jax.set_mesh(mesh):
            if holds:
                assert spec_entries(jax.typeof(function(x)).sharding.spec, 2, EXPLICIT) == (("dp", "tp"), ())
            else:
                with pytest.raises(AssertionError, match="acts as an assert"):
                    function(x)


def test_gradients_on_explicit_axes_are_typed_as_what_they_are_of() -> None:
    """By an operand that is sharded, and by one that is not, of a product that needs `out_sharding`."""
    mesh = abstract_mesh(EXPLICIT)
    both = PartitionSpec("dp", "tp"), PartitionSpec("tp", None)
    lhs, rhs = (jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, at)) for at in both)

    def loss(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(jnp.matmul(lhs, rhs, out_sharding=PartitionSpec("dp", "tp"))))

    with jax.sharding.use_abstract_mesh(mesh):
        gradients = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(lhs, rhs).jaxpr.out_avals
    assert [str(g) for g in gradients] == ["float32[8@dp,8@tp]", "float32[8@tp,8]"]


def test_predictions() -> None:
    """A teacher's sizes, and its axes, are refused by the name of the function that was called."""
    mesh, over = abstract_mesh(MeshCase(("dp", "tp"), (2, 2))), {"data": (), "model": "tp"}
    params = [(jax.numpy.zeros((4, 4)), jax.numpy.zeros(4))]
    few, inputs = jax.numpy.zeros((2, 2)), jax.numpy.zeros((2, 4))
    with pytest.raises(ValueError, match=r"^predictions: params='W \[4, 4\].*': expected W \[2, D\] and b"):
        predictions(tensor_parallel, params, few, mesh=mesh, **over)
    with pytest.raises(ValueError, match=r"^predictions: model=\('pp',\): expected distinct axes out of dp, tp"):
        predictions(tensor_parallel, params, inputs, mesh=mesh, data=(), model="pp")


@pytest.mark.parametrize(
    ("rows", "columns", "named"), [("sp", (), "rows=('sp',)"), ("dp", ("tp", "dp"), "columns=('tp', 'dp')")]
)
def test_a_layout_of_other_axes_is_refused(rows: Any, columns: Any, named: str) -> None:
    """An axis that the mesh lacks, or that is used twice, is refused by its role; the message lists the mesh's axes."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"))
    with pytest.raises(ValueError, match=re.escape(named)) as raised:
        constrained_reshard(jnp.zeros((4, 4)), mesh=mesh, rows=rows, columns=columns)
    assert "expected axes of the mesh, dp, tp, each once in rows and columns" in str(raised.value)
