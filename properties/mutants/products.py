"""Planted bugs of products along a ring, and of layers of two of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl import sequence_parallel as forms
from shardproof.impl.collective_matmul import multiply
from shardproof.properties.mutants.axes import AxisName, passed
from shardproof.properties.mutants.catalogue import mutant


@mutant("all_gather_matmul_lhs_contracting", smallest=(1,))
def product_one_step_long(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Goes round the whole ring, so that every device's own block is multiplied twice."""
    p, k, index = lax.axis_size(axis_name), lhs.shape[-1], collectives.axis_index(axis_name)
    rows = [lax.dynamic_slice_in_dim(rhs, (index - i) % p * k, k) for i in range(p + 1)]
    total = sum(multiply(block, row) for block, row in zip(passed(lhs, axis_name, p), rows, strict=True))
    return jnp.asarray(total).astype(jnp.result_type(lhs, rhs))


@mutant("all_gather_matmul_lhs_contracting", smallest=(2,))
def product_in_the_input_dtype(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Adds up 16-bit floats in 16 bits, one block after the other."""
    p, k, index = lax.axis_size(axis_name), lhs.shape[-1], collectives.axis_index(axis_name)
    total = jnp.zeros((*lhs.shape[:-1], rhs.shape[1]), jnp.result_type(lhs, rhs))
    for i, block in enumerate(passed(lhs, axis_name, p - 1)):
        total = total + jnp.matmul(block, lax.dynamic_slice_in_dim(rhs, (index - i) % p * k, k)).astype(total.dtype)
    return total


@mutant("transformer_block", law="gradient", smallest=(1,))
def block_with_a_gradient_everywhere(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Passes gradients through hidden values that relu has set to zero."""
    hidden = collective_matmul.ring_all_gather_matmul_lhs_contracting(x, w_in, axis_name)
    kept = hidden + lax.stop_gradient(jax.nn.relu(hidden) - hidden)
    return collective_matmul.ring_matmul_reduce_scatter(kept, w_out, axis_name, scatter_dimension=1)


@mutant("transformer_block", smallest=(2,))
def block_with_relu_of_partial_sums(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Takes relu of every block's product as it comes by, and adds up the results."""
    p, k, index = lax.axis_size(axis_name), x.shape[-1], collectives.axis_index(axis_name)
    hidden = jnp.zeros((), jnp.float32)
    for i, block in enumerate(passed(x, axis_name, p - 1)):
        rows = lax.dynamic_slice_in_dim(w_in, (index - i) % p * k, k)
        hidden = hidden + jax.nn.relu(multiply(block, rows))
    hidden = hidden.astype(x.dtype)
    return collective_matmul.ring_matmul_reduce_scatter(hidden, w_out, axis_name, scatter_dimension=1)


@mutant(
    "matmul_reduce_scatter",
    law="communication",
    smallest=(2,),
    communication="permute=(p-1)*(2 if rows>1 else 1),bytes=(p-1)*elements(out)*sum_itemsize(lhs),steps=p-1",
)
def accumulators_sent_in_the_operands_dtype(*operands: Any, **options: Any) -> Array:
    """Rounds its sums to the operands' dtype at every hop, though they are said to travel in the accumulator's."""
    return collective_matmul.alternating_matmul_reduce_scatter(*operands, **options, sums="operands")


@mutant("sequence_parallel_mlp", smallest=(1,))
def mlp_without_relu(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Takes no relu, as if the sign of all hidden values were right."""
    positive = forms.sequence_parallel_mlp(x, w_in, w_out, axis_name)
    return positive - forms.sequence_parallel_mlp(x, -w_in, w_out, axis_name)
