"""Tensor parallelism: the features of all layers are shared, beside the examples.

Unlike those of Shoeybi et al. 2019, which are column- and row-parallel by turns, every layer is row-parallel: a device
has some features of its examples, and the rows of W for them. The products are added up over `model`; of the sum every
device keeps the columns that are its features of the next layer, in one reduce-scatter. Devices along `data` hold
replicas of parameters, or, fully sharded, a part of their rows each.
"""

from jaxtyping import Array, Float

from shardproof.impl.collective_matmul.rings import multiply
from shardproof.impl.losses.blocks import assembled, scattered_sum
from shardproof.impl.losses.layout import Axes, Layout
from shardproof.impl.losses.parallelisation import Parallelisation


def linear_of_features(
    x: Float[Array, "b features"], w: Float[Array, "rows d_out"], b: Float[Array, "part"], data: Axes, model: Axes
) -> Float[Array, "b part"]:
    """`x [B_X, D_in_Y]`, `W [D_in_Y, D_out]`, `b [D_out_Y]` to `[B_X, D_out_Y]`, with data X and model Y."""
    product = multiply(x, assembled(w, along=data))
    return scattered_sum(product, model) + assembled(b, along=data)


def linear_of_gathered_features(
    x: Float[Array, "b features"], w: Float[Array, "rows d_out"], b: Float[Array, "part"], data: Axes, model: Axes
) -> Float[Array, "b part"]:
    """`x [B_X, D_in_Y]`, `W [D_in_YX, D_out]`, `b [D_out_Y]` to `[B_X, D_out_Y]`, with data X and model Y."""
    product = multiply(x, assembled(w, [(data, 0)], along=data))
    return scattered_sum(product, model) + assembled(b, along=data)


FEATURES = (("data",), ("model",))
tensor_parallel = Parallelisation(
    "tensor_parallel",
    Layout(FEATURES, weights=(("model",), ()), biases=(("model",),), targets=FEATURES),
    linear_of_features,
)
"""`inputs [B_X, D_0_Y]`, `W [D_in_Y, D_out]`, `b [D_out_Y]`, `targets [B_X, D_n_Y]`, with data X and model Y."""

fsdp_tensor_parallel = Parallelisation(
    "fsdp_tensor_parallel",
    Layout(FEATURES, weights=(("model", "data"), ()), biases=(("model",),), targets=FEATURES),
    linear_of_gathered_features,
)
"""`inputs [B_X, D_0_Y]`, `W [D_in_YX, D_out]`, `b [D_out_Y]`, `targets [B_X, D_n_Y]`, with data X and model Y."""

fsdp_tensor_parallel_remat = fsdp_tensor_parallel.rematerialised("fsdp_tensor_parallel_remat")
