"""The loss of a model and its gradients on a mesh, as a program of global arrays in the layout of the loss."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from shardproof.impl.losses import Parallelisation
from shardproof.oracles.communication import Cost
from shardproof.oracles.layout import spec_entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts.mlp_claims import CLAIMS, SIZES, Setting
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.program import Argument, Program

AxisName = str | tuple[str, ...]


def shapes(sizes: Sequence[int], examples: int) -> Any:
    """The shapes of `(params, batch)`, of a model of these sizes, D_0 to D_n."""
    layers = [((d_in, d_out), (d_out,)) for d_in, d_out in itertools.pairwise(sizes)]
    return layers, ((examples, sizes[0]), (examples, sizes[-1]))


def loss_and_gradients(
    loss: Parallelisation,
    mesh: MeshCase,
    sizes: Sequence[int],
    examples: int,
    *,
    data: AxisName,
    model: AxisName,
    dtype: Any = np.float32,
    of_batch: bool = False,
) -> Program:
    """The program `(*parameters, inputs, targets) -> (loss, *gradients)`: what one step of training needs.

    Arguments:
        loss: the loss.
        mesh: the mesh.
        sizes: D_0 to D_n.
        examples: B.
        data: the axes of that role.
        model: the axes of the other.
        dtype: of all arrays.
        of_batch: whether the gradients of inputs and targets are among the results as well.
    """
    depth = len(sizes) - 1
    specs = loss.layout.specs(depth, data=data, model=model)
    named = jax.tree.leaves(specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
    wholes = jax.tree.leaves(shapes(sizes, examples), is_leaf=lambda s: isinstance(s, tuple) and isinstance(s[0], int))
    structure: Any = jax.tree.structure(([(0, 0)] * depth, (0, 0)))

    def build(on: Any) -> Any:
        def step(*arrays: jax.Array) -> list[jax.Array]:
            params, batch = jax.tree.unflatten(structure, arrays)
            over = (0, 1) if of_batch else (0,)
            function = jax.value_and_grad(lambda p, b: loss(p, b, mesh=on, data=data, model=model), argnums=over)
            value, gradients = function(params, batch)
            return [value, *jax.tree.leaves(gradients)]

        return step

    arguments = tuple(Argument(x, dtype, spec_entries(s, len(x), mesh)) for x, s in zip(wholes, named, strict=True))
    return Program(build, arguments)


def step_cost(name: str, at: Setting) -> Cost:
    """What the loss and its gradients send together: what gradients are computed from is sent once, for both.

    Arguments:
        name: the parallelisation's.
        at: what it is in.
    """
    claim = Expectation.parse(CLAIMS[name], tuple(SIZES))
    assert claim.forward is not None
    assert claim.backward is not None
    loss, gradients = (terms.stated(at.names).cost for terms in (claim.forward, claim.backward))
    kind = "all_reduce"
    return gradients + Cost.of({kind: loss.count(kind)}, {kind: loss.bytes_in(kind)})
