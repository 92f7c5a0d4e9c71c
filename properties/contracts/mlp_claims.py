"""What the loss of a multilayer perceptron sends under every parallelisation.

Sizes are B examples and D_0 to D_n; x and y are the numbers of devices of the roles `data` and `model`. Parameters are
gathered as they are, and sums travel in the accumulator's dtype. What gradients are computed from is sent again, all of
it but the sum of the loss itself. Then come the transposes: an all-gather's is a reduce-scatter of as much, and what is
the same on several devices has the sum of all their gradients. Weights that are rematerialised are gathered once more,
wherever the gradient of what they are multiplied by is wanted. (Rajbhandari et al. 2020, section 7: 2 Psi of data
parallelism is one all-reduce of a gradient of Psi numbers; 3 Psi of stage 3 two all-gathers and a reduce-scatter.)
"""

import itertools
from typing import Any

from shardproof.oracles.dtypes import width
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.costs import NOTHING
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.contracts.roles import axes_of

NAMES = ("x", "y", "over_x", "over_y", "over", "rows", "layers", "weights", "biases", "b", "s")
"""`over_x` is whether there are axes of that role at all; `rows` are the examples of a device, `b` and `s` the bytes of
an element of the parameters and of the accumulator."""


def size_of(name: str, case: Case) -> Any:
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


def _fully_sharded(weights: tuple[str, str], gradients: tuple[str, str], again: bool) -> str:
    """Biases are gathered over Y, and their gradients scattered there and added up over X."""
    gathered: Kinds = {"all_gather": (f"layers*({weights[0]}+over_y)", f"b*(weights*({weights[1]})+over_y*biases/y)")}
    once_more: Kinds = {"all_gather": (f"layers*({weights[0]})", f"b*weights*({weights[1]})")} if again else {}
    scattered: Kinds = {
        "reduce_scatter": (f"layers*({gradients[0]}+over_y)", f"s*(weights*({gradients[1]})+over_y*biases)"),
        "all_reduce": ("layers*over_x", "over_x*s*biases/y"),
    }
    return f"{_text(_together(LOSS, gathered))};grad:{_text(_together(gathered, once_more, scattered))}"


def _by_rows(again: bool = False) -> str:
    """Weights `[D_in_XY, D_out]` are gathered over X and Y, and gradients scattered; biases are `[D_out_Y]`."""
    return _fully_sharded(("over", "over/(x*y)"), ("over", "over"), again)


def _in_two(again: bool = False) -> str:
    """Weights `[D_in_X, D_out_Y]` are gathered over Y, then over X, and gradients scattered the other way round."""
    return _fully_sharded(("(over_x+over_y)", "over_y/(x*y)+over_x/x"), ("(over_x+over_y)", "over_x+over_y/x"), again)


PRODUCTS: Kinds = {"reduce_scatter": ("layers*over_y", "over_y*s*rows*biases")}
"""The reduce-scatter of each row-parallel product `[B_X, D_out]` over Y."""

COTANGENTS: Kinds = {"all_gather": ("layers*over_y", "over_y*s*rows*biases/y")}
"""The all-gather of its cotangent."""


def _of_features(again: bool = False) -> str:
    """Weights `[D_in_YX, D_out]` are gathered over X, and their gradients scattered there; biases are `[D_out_Y]`."""
    gathered: Kinds = {"all_gather": ("layers*over_x", "over_x*b*weights/(x*y)")}
    once_more: Kinds = {"all_gather": ("layers*over_x", "over_x*b*weights/(x*y)")} if again else {}
    scattered: Kinds = {
        "reduce_scatter": ("layers*over_x", "over_x*s*weights/y"),
        "all_reduce": ("layers*over_x", "over_x*s*biases/y"),
    }
    forward = _together(LOSS, gathered, PRODUCTS)
    return f"{_text(forward)};grad:{_text(_together(gathered, once_more, PRODUCTS, COTANGENTS, scattered))}"


CLAIMS: dict[str, str] = {
    "one_device": NOTHING,
    # an all-reduce of the gradient of every array
    "data_parallel": f"{_text(LOSS)};grad:all_reduce=2*layers*over,bytes=over*s*(weights+biases)",
    "fsdp_rows": _by_rows(),
    "fsdp_rows_remat": _by_rows(again=True),
    "fsdp_2d": _in_two(),
    "fsdp_2d_remat": _in_two(again=True),
    # parameters `[D_in_Y, D_out]` and `[D_out_Y]` are the same along X: their gradients are added up there
    "tensor_parallel": f"{_text(_together(LOSS, PRODUCTS))};grad:"
    + _text(_together(PRODUCTS, COTANGENTS, {"all_reduce": ("2*layers*over_x", "over_x*s*(weights+biases)/y")})),
    "fsdp_tensor_parallel": _of_features(),
    "fsdp_tensor_parallel_remat": _of_features(again=True),
}
"""Of every parallelisation, what it sends."""
