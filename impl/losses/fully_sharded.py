"""Fully sharded data parallelism (Rajbhandari et al. 2020; Zhao et al. 2023): examples and parameters are both shared.

A layer gathers its parameters, multiplies its own examples by them, and drops them. The transpose of the gather is a
reduce-scatter: a device adds up the gradient of its own part. What is rematerialised is gathered again for that.
"""

from jaxtyping import Array, Float

from shardproof.impl.collective_matmul.rings import multiply
from shardproof.impl.losses.blocks import assembled
from shardproof.impl.losses.data_parallel import EXAMPLES
from shardproof.impl.losses.layout import Axes, Layout
from shardproof.impl.losses.parallelisation import Parallelisation


def linear_of_rows(
    x: Float[Array, "b d_in"], w: Float[Array, "rows d_out"], b: Float[Array, "part"], data: Axes, model: Axes
) -> Float[Array, "b d_out"]:
    """`x [B_XY, D_in]`, `W [D_in_XY, D_out]`, `b [D_out_Y]` to `[B_XY, D_out]`, with data X and model Y."""
    every = (*data, *model)
    weights = assembled(w, [(every, 0)], along=every)
    return multiply(x, weights) + assembled(b, [(model, 0)], along=every)


def linear_of_blocks(
    x: Float[Array, "b d_in"], w: Float[Array, "rows columns"], b: Float[Array, "part"], data: Axes, model: Axes
) -> Float[Array, "b d_out"]:
    """`x [B_XY, D_in]`, `W [D_in_X, D_out_Y]`, `b [D_out_Y]` to `[B_XY, D_out]`, with data X and model Y."""
    every = (*data, *model)
    weights = assembled(w, [(model, 1), (data, 0)], along=every)
    return multiply(x, weights) + assembled(b, [(model, 0)], along=every)


fsdp_rows = Parallelisation(
    "fsdp_rows",
    Layout((EXAMPLES, ()), weights=(EXAMPLES, ()), biases=(("model",),), targets=(EXAMPLES, ())),
    linear_of_rows,
)
"""`inputs [B_XY, D_0]`, `W [D_in_XY, D_out]`, `b [D_out_Y]`, `targets [B_XY, D_n]`, with data X and model Y."""

fsdp_2d = Parallelisation(
    "fsdp_2d",
    Layout((EXAMPLES, ()), weights=(("data",), ("model",)), biases=(("model",),), targets=(EXAMPLES, ())),
    linear_of_blocks,
)
"""`inputs [B_XY, D_0]`, `W [D_in_X, D_out_Y]`, `b [D_out_Y]`, `targets [B_XY, D_n]`, with data X and model Y."""

fsdp_rows_remat = fsdp_rows.rematerialised("fsdp_rows_remat")
fsdp_2d_remat = fsdp_2d.rematerialised("fsdp_2d_remat")
