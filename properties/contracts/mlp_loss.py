"""The contract of mlp_loss: the squared error of a model whose parameters and examples devices share in many ways.

Layouts are those of each implementation, by the roles that shard each dimension, and sizes are drawn that these divide.
A user's function gets whole arrays, of which every size is a multiple of the number of devices.
"""

from shardproof.impl.losses import PARALLELISATIONS, Layout, Roles
from shardproof.oracles import mlp
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import longer
from shardproof.properties.contracts.operation import operation
from shardproof.properties.contracts.roles import Conditions

DEPTHS = (2, 1, 3)
"""Layers; the first that a failure is shown on has something between two of them."""

SHAPES = ((1024, 4096), (4096,), (4096, 1024), (1024,), (8192, 1024), (8192, 1024))
"""The shapes of two layers, and a batch."""


def dimensions(names: str, roles: Roles) -> str:
    """A description of an array (see `described.Array`): `batch@data d0@model`."""
    return " ".join("@".join([name, *some]) for name, some in zip(names.split(), roles, strict=True))


def signature_of(depth: int, layout: Layout, *, all_divide: bool = False) -> Signature:
    """The signature of a model of `depth` layers; if `all_divide`, sizes are multiples of the devices of both roles."""
    layers = [
        (dimensions(f"d{at} d{at + 1}", layout.weights), dimensions(f"d{at + 1}", layout.biases)) for at in range(depth)
    ]
    batch = dimensions("batch d0", layout.inputs), dimensions(f"batch d{depth}", layout.targets)
    sides = ["batch", *(f"d{at}" for at in range(depth + 1))]
    hidden = {side: dimensions(side, (("data", "model"),)) for side in sides} if all_divide else {}
    return Signature.of(["params", "batch"], [layers, batch], "", more=("data", "model"), hidden=hidden)


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "mlp_loss",
        mlp.loss,
        tuple(signature_of(depth, Layout(), all_divide=True) for depth in DEPTHS),
        # the sides of a matrix are multiples of the number of devices
        conditions=Conditions(most=64, optional=frozenset({"data", "model"})),
        dtypes=floats,
        kinds=("real", "exact"),
        features=frozenset({"explained_errors", "x64"}),
        violations=(longer("params", 1, 0), longer("batch", -1, 0)),
        shapes=tuple((shape, None, "") for shape in SHAPES),
        accumulator="float32",
        implementations={
            name: Claim(loss, whole=True, layouts=tuple(signature_of(depth, loss.layout) for depth in DEPTHS))
            for name, loss in PARALLELISATIONS.items()
        },
    ),
)
