"""The contract of mlp_loss: the squared error of a model whose parameters and examples devices share in many ways.

How arguments are laid out the contract leaves open: an implementation says so, by the roles that shard each dimension,
and sizes are drawn that these divide. One of a user's own gets whole arrays, of which every size is a multiple of the
number of devices.

What it sends is stated in sizes: there are B examples and D_0 to D_n, and x and y are the numbers of devices of the
roles `data` and `model`. Parameters are gathered as they are, and sums travel in the accumulator's dtype. What
gradients are computed from is sent again, all of it but the sum of the loss itself. Then come the transposes: that
of an all-gather is a reduce-scatter of as much, and what is the same on several devices has the sum of all their
gradients. Weights that are rematerialised are gathered once more, wherever the gradient of what they are multiplied by
is wanted. (Rajbhandari et al. 2020, section 7: 2 Psi of data parallelism is one all-reduce of a gradient of Psi
numbers; 3 Psi of stage 3 two all-gathers and a reduce-scatter.)
"""

import itertools
from functools import partial
from typing import Any

from shardproof.impl.losses import PARALLELISATIONS, Layout, Roles
from shardproof.oracles import mlp
from shardproof.oracles.dtypes import width
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.costs import NOTHING
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import longer
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.contracts.roles import Conditions, axes_of
from shardproof.properties.contracts.whole import whole_contract

DEPTHS = (2, 1, 3)
"""Layers; the first that a failure is shown on has something between two of them."""

SHAPES = ((1024, 4096), (4096,), (4096, 1024), (1024,), (8192, 1024), (8192, 1024))
"""Of two layers, and a batch."""


def dimensions(names: str, roles: Roles) -> str:
    """A description of an array (see `described.Array`): `batch@data d0@model`."""
    return " ".join("@".join([name, *some]) for name, some in zip(names.split(), roles, strict=True))


def signature_of(depth: int, layout: Layout, *, all_divide: bool = False) -> Signature:
    """The signature of a model of so many layers, laid out in this way.

    Arguments:
        depth: how many layers.
        layout: how devices share its arrays.
        all_divide: whether every size is a multiple of the number of devices of both roles.
    """
    layers = [
        (dimensions(f"d{at} d{at + 1}", layout.weights), dimensions(f"d{at + 1}", layout.biases)) for at in range(depth)
    ]
    batch = dimensions("batch d0", layout.inputs), dimensions(f"batch d{depth}", layout.targets)
    sides = ["batch", *(f"d{at}" for at in range(depth + 1))]
    hidden = {side: dimensions(side, (("data", "model"),)) for side in sides} if all_divide else {}
    return Signature.of(["params", "batch"], [layers, batch], "", more=("data", "model"), hidden=hidden)


NAMES = ("x", "y", "over_x", "over_y", "over", "rows", "layers", "weights", "biases", "b", "s")
"""`over_x` is whether there are axes of that role at all; `rows` are the examples of a device, `b` and `s` the bytes of
an element of the parameters and of the accumulator."""


def _size(name: str, case: Case) -> Any:
    """What claims mean by a name."""
    axes, dtype = axes_of(case.roles), case.operands[0].numpy_dtype
    x, y = (case.mesh.axis_size(axes[role]) for role in ("data", "model"))
    *parameters, inputs, _ = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
    sides = (inputs[1], *(shape[1] for shape in parameters[::2]))
    over = (int(bool(axes["data"])), int(bool(axes["model"])), int(bool(axes["data"] or axes["model"])))
    weights = sum(d_in * d_out for d_in, d_out in itertools.pairwise(sides))
    bits = width(dtype), width(float32_accumulator(dtype))
    sizes = (x, y, *over, inputs[0] // x, len(sides) - 1, weights, sum(sides[1:]), bits[0] // 8, bits[1] // 8)
    return dict(zip(NAMES, sizes, strict=True))[name]


Kinds = dict[str, tuple[str, str]]
"""Of a kind of collective, how many, and the bytes of all."""

LOSS: Kinds = {"all_reduce": ("over", "over*s")}
"""The sum of all devices' parts."""


def _together(*parts: Kinds) -> Kinds:
    """One after the other."""
    found: Kinds = {}
    for kind, (count, size) in (item for part in parts for item in part.items()):
        found[kind] = (f"{found[kind][0]}+{count}", f"{found[kind][1]}+{size}") if kind in found else (count, size)
    return found


def _text(parts: Kinds) -> str:
    return ",".join(f"{kind}={count},{kind}_bytes={size}" for kind, (count, size) in parts.items())


BY_ROWS = ("over", "over/(x*y)"), ("over", "over")
"""Weights `[D_in_XY, D_out]` are gathered over X and Y, and gradients scattered; biases are `[D_out_Y]`."""

IN_TWO = ("(over_x+over_y)", "over_y/(x*y)+over_x/x"), ("(over_x+over_y)", "over_x+over_y/x")
"""Weights `[D_in_X, D_out_Y]` are gathered over Y, then over X, and gradients scattered the other way round."""


def _fully_sharded(weights: tuple[str, str], gradients: tuple[str, str], *, again: bool = False) -> str:
    """Biases are gathered over Y, and their gradients scattered there and added up over X."""
    gathered: Kinds = {"all_gather": (f"layers*({weights[0]}+over_y)", f"b*(weights*({weights[1]})+over_y*biases/y)")}
    once_more: Kinds = {"all_gather": (f"layers*({weights[0]})", f"b*weights*({weights[1]})")}
    scattered: Kinds = {
        "reduce_scatter": (f"layers*({gradients[0]}+over_y)", f"s*(weights*({gradients[1]})+over_y*biases)"),
        "all_reduce": ("layers*over_x", "over_x*s*biases/y"),
    }
    return f"{_text(_together(LOSS, gathered))};grad:{_text(_together(gathered, *[once_more] * again, scattered))}"


PRODUCTS: Kinds = {"reduce_scatter": ("layers*over_y", "over_y*s*rows*biases")}
"""The reduce-scatter of each row-parallel product `[B_X, D_out]` over Y."""

COTANGENTS: Kinds = {"all_gather": ("layers*over_y", "over_y*s*rows*biases/y")}
"""The all-gather of its cotangent."""


def _of_features(*, again: bool = False) -> str:
    """Weights `[D_in_YX, D_out]` are gathered over X, and their gradients scattered there; biases are `[D_out_Y]`."""
    gathered: Kinds = {"all_gather": ("layers*over_x", "over_x*b*weights/(x*y)")}
    scattered: Kinds = {
        "reduce_scatter": ("layers*over_x", "over_x*s*weights/y"),
        "all_reduce": ("layers*over_x", "over_x*s*biases/y"),
    }
    forward = _together(LOSS, gathered, PRODUCTS)
    return f"{_text(forward)};grad:{_text(_together(gathered, *[gathered] * again, PRODUCTS, COTANGENTS, scattered))}"


CLAIMS: dict[str, str] = {
    "one_device": NOTHING,
    # an all-reduce of the gradient of every array
    "data_parallel": f"{_text(LOSS)};grad:all_reduce=2*layers*over,bytes=over*s*(weights+biases)",
    "fsdp_rows": _fully_sharded(*BY_ROWS),
    "fsdp_rows_remat": _fully_sharded(*BY_ROWS, again=True),
    "fsdp_2d": _fully_sharded(*IN_TWO),
    "fsdp_2d_remat": _fully_sharded(*IN_TWO, again=True),
    # parameters `[D_in_Y, D_out]` and `[D_out_Y]` are the same along X: their gradients are added up there
    "tensor_parallel": f"{_text(_together(LOSS, PRODUCTS))};grad:"
    + _text(_together(PRODUCTS, COTANGENTS, {"all_reduce": ("2*layers*over_x", "over_x*s*(weights+biases)/y")})),
    "fsdp_tensor_parallel": _of_features(),
    "fsdp_tensor_parallel_remat": _of_features(again=True),
}
"""Of every parallelisation, what it sends."""


CONTRACTS: tuple[Contract, ...] = (
    whole_contract(
        "mlp_loss",
        tuple(signature_of(depth, Layout(), all_divide=True) for depth in DEPTHS),
        mlp.loss,
        # the sides of a matrix are multiples of the number of devices
        conditions=Conditions(most=64, optional=frozenset({"data", "model"})),
        dtypes=floats,
        kinds=("real", "exact"),
        features=frozenset({"explained_errors", "x64"}),
        violations=(longer("params", 1, 0), longer("batch", -1, 0)),
        shapes=tuple((shape, None, "") for shape in SHAPES),
        accumulator="float32",
        sizes={name: partial(_size, name) for name in NAMES},
        implementations={
            name: Claim(
                loss,
                communication=CLAIMS[name],
                whole=True,
                layouts=tuple(signature_of(depth, loss.layout) for depth in DEPTHS),
            )
            for name, loss in PARALLELISATIONS.items()
        },
    ),
)
