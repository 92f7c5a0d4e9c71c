"""One device, and data parallelism: all parameters on every device, the examples of a batch shared by all of them.

The gradient of every parameter is that of all examples: each device's are added up over all devices, in one all-reduce
of each array, which compilers combine.
"""

from jaxtyping import Array, Float

from shardproof.impl.collective_matmul.rings import multiply
from shardproof.impl.losses.blocks import assembled
from shardproof.impl.losses.layout import Axes, Layout
from shardproof.impl.losses.parallelisation import Parallelisation
from shardproof.impl.model import linear


def linear_alone(
    x: Float[Array, "b d_in"], w: Float[Array, "d_in d_out"], b: Float[Array, "d_out"], data: Axes, model: Axes
) -> Float[Array, "b d_out"]:
    """`x [B, D_in]`, `W [D_in, D_out]`, `b [D_out]`: all on every device."""
    return linear(x, w, b)


def linear_of_examples(
    x: Float[Array, "b d_in"], w: Float[Array, "d_in d_out"], b: Float[Array, "d_out"], data: Axes, model: Axes
) -> Float[Array, "b d_out"]:
    """`x [B_XY, D_in]`, `W [D_in, D_out]`, `b [D_out]` to `[B_XY, D_out]`, with data X and model Y."""
    every = (*data, *model)
    return multiply(x, assembled(w, along=every)) + assembled(b, along=every)


one_device = Parallelisation("one_device", Layout(), linear_alone)
"""Every device computes all of it; nothing is sent."""

EXAMPLES = ("data", "model")
data_parallel = Parallelisation(
    "data_parallel",
    Layout(inputs=(EXAMPLES, ()), targets=(EXAMPLES, ())),
    linear_of_examples,
)
"""`inputs [B_XY, D_0]`, `W [D_in, D_out]`, `b [D_out]`, `targets [B_XY, D_n]`, with data X and model Y."""
