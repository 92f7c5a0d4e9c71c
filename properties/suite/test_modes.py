"""Layouts and sizes that losses and changes of layout refuse, each by its name."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardproof.impl.distillation import predictions
from shardproof.impl.losses import tensor_parallel
from shardproof.impl.reshard import constrained_reshard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh


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
    ("rows", "columns", "text"),
    [
        ("sp", (), "rows=('sp',): expected distinct axes out of dp, tp"),
        ("dp", ("tp", "dp"), "columns=('tp', 'dp'): expected none of the axes of rows=('dp',)"),
    ],
)
def test_a_layout_of_other_axes_is_refused(rows: Any, columns: Any, text: str) -> None:
    """An axis that the mesh lacks, or that is used twice, is refused by its role."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"))
    with pytest.raises(ValueError, match=re.escape(text)):
        constrained_reshard(jnp.zeros((4, 4)), mesh=mesh, rows=rows, columns=columns)
