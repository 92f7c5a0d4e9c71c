"""What layers and losses in every mode refuse, and a teacher's outputs, in words that name what was called."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardproof.impl import modes
from shardproof.impl.distillation import predictions
from shardproof.impl.losses import tensor_parallel
from shardproof.impl.modes import Layouts
from shardproof.impl.reshard import constrained_reshard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.xla import abstract_mesh

MESH = MeshCase(("dp", "tp"), (2, 2))
SHAPES = {"x": (2, 4), "w_in": (4, 4), "b_in": (4,), "w_out": (4, 2), "b_out": (2,), "targets": (2, 2)}
LAYOUTS: dict[str, Any] = {name: ((),) * len(shape) for name, shape in SHAPES.items() if name != "targets"}
LAYOUTS |= {"hidden": ((), ()), "result": ((), ())}

MISTAKES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"w_in": (3, 4)}, {}, r"w_in='float32\[3,4\]': expected an array of shape \(4, 4\), \[D, F\] for x"),
    ({"b_in": (3,)}, {}, r"b_in='float32\[3\]': expected an array of shape \(4,\), \[F\]"),
    ({"w_out": (3, 2)}, {}, r"w_out='float32\[3,2\]': expected an array of shape \(4, 2\), \[F, E\]"),
    ({"b_out": (1,)}, {}, r"b_out='float32\[1\]': expected an array of shape \(2,\), \[E\]"),
    ({}, {"hidden": (("dp",),)}, r"layouts.hidden=\(\('dp',\),\): expected axes of 2 dimensions"),
    ({}, {"x": (("pp",), ())}, r"layouts.x=.*: expected distinct axes out of dp, tp"),
    ({}, {"result": (("dp",), ("dp",))}, r"layouts.result=.*: expected distinct axes out of dp, tp"),
    ({}, {"x": (("dp", "tp"), ())}, r"layouts.x=.*: expected axes whose 4 parts divide \[2, 4\]"),
]
FUNCTIONS = [
    *(modes.automatic_mlp, modes.explicit_mlp, modes.mixed_mlp, modes.manual_mlp),
    *(modes.automatic_loss, modes.explicit_loss, modes.mixed_loss, modes.manual_loss),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_layers_and_losses(function: Any) -> None:
    """Sizes that do not match, and layouts that do not fit, are refused by name, on the mesh."""
    for shapes, layouts, message in MISTAKES:
        arrays = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in {**SHAPES, **shapes}.items()}
        targets = [arrays["targets"]] if function.__name__.endswith("loss") else []
        parameters = tuple(arrays[name] for name in ("w_in", "b_in", "w_out", "b_out"))

        def called(*given: Any, layouts: Any = layouts) -> Any:
            return function(*given, mesh=abstract_mesh(MESH), layouts=Layouts(**{**LAYOUTS, **layouts}))

        with pytest.raises(ValueError, match=rf"^{function.__name__}: {message}.*, on the mesh \(dp=2, tp=2\)"):
            jax.eval_shape(called, arrays["x"], *targets, parameters)


def test_targets() -> None:
    """So are targets of another shape."""
    x, targets, *parameters = (
        jax.numpy.zeros({**SHAPES, "targets": (2, 3)}[name])
        for name in ("x", "targets", "w_in", "b_in", "w_out", "b_out")
    )
    function: Any = modes.mixed_loss
    with pytest.raises(ValueError, match=r"^mixed_loss: targets='float32\[2,3\]': expected an array of shape \(2, 2\)"):
        function(x, targets, tuple(parameters), mesh=abstract_mesh(MESH), layouts=Layouts(**LAYOUTS))


def test_predictions() -> None:
    """A teacher's sizes, and its axes, are refused by the name of the function that was called."""
    mesh, over = abstract_mesh(MESH), {"data": (), "model": "tp"}
    params = [(jax.numpy.zeros((4, 4)), jax.numpy.zeros(4))]
    few, inputs = jax.numpy.zeros((2, 2)), jax.numpy.zeros((2, 4))
    with pytest.raises(ValueError, match=r"^predictions: params='W \[4, 4\].*': expected W \[2, D\] and b"):
        predictions(tensor_parallel, params, few, mesh=mesh, **over)
    with pytest.raises(ValueError, match=r"^predictions: model=\('pp',\): expected distinct axes out of dp, tp"):
        predictions(tensor_parallel, params, inputs, mesh=mesh, data=(), model="pp")


@pytest.mark.parametrize(
    ("rows", "columns", "told"),
    [
        ("sp", (), "rows=('sp',)"),
        ("dp", ("tp", "dp"), "columns=('tp', 'dp')"),
        (("tp", "tp"), (), "rows=('tp', 'tp')"),
    ],
)
def test_a_layout_of_other_axes_is_refused(rows: Any, columns: Any, told: str) -> None:
    """Of an axis that the mesh lacks, or that is named twice: the role and its axes are told, and those of the mesh."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"))
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        constrained_reshard(jnp.zeros((4, 4)), mesh=mesh, rows=rows, columns=columns)
    assert "expected axes of the mesh, dp, tp, each once in rows and columns" in str(raised.value)
