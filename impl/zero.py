"""ZeRO stage 1: data parallelism whose optimiser's state is partitioned (P_os, Rajbhandari et al. 2020).

Every device holds all parameters and differentiates the loss of its own examples. The gradients are reduce-scattered as
in stage 2, but whole before that; a device has the optimiser's state of its shard alone, and updates that shard; then
the parameters are gathered. On a ring both together send what an all-reduce of the gradient sends (there, section 7.1),
if parameters are not narrower than sums of their gradients.

A shard is a piece of a parameter's elements in a row, padded with zeros at the end to a multiple of the participants.
An optimiser has to work element by element, as SGD and Adam do: one that takes norms of a parameter gets a shard's.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Shaped

from shardproof.impl.accumulation import Scalar, accumulate, mean_of, replicated
from shardproof.impl.arguments import AxisName, as_axes
from shardproof.impl.collectives import axis_index, cast_varying
from shardproof.impl.optimisers import Optimiser, Tree, apply_updates
from shardproof.impl.training import Step, Stepped, like_parameters, shown

Flat = Shaped[Array, "n"]


class ZeroStep(Step):
    """The step of ZeRO: gradients reduce-scattered, the optimiser's state and update on shards, parameters gathered.

    The state's arrays are flat: the shards of all participants in a row, zeros at the ends.

    Arguments:
        loss: as a device computes it: `(weights, microbatch, *, data, model)` to a sum and a count (see
            `shardproof.impl.accumulation`).
        optimiser: a pair `init`, `update`, that works element by element.
        mesh: the mesh on which all arrays are.
        data: the axis or axes over which examples, gradients and the optimiser's state are shared.
        model: further axes, for the loss to use.
        layouts: `(params, data, model)` to the PartitionSpecs of `params`, a tree like them or one for all, and of
            `batch`. `model` may shard parameters, and `data` may not: that would be FSDP. By default parameters are
            the same on all devices, and `data` shards the batch in its first dimension.
        microbatches: the number of parts that the examples of a device are taken in.
    """

    def __init__(
        self,
        loss: Callable[..., tuple[Scalar, Scalar]],
        optimiser: Optimiser,
        *,
        mesh: Mesh | AbstractMesh,
        data: AxisName,
        model: AxisName = (),
        layouts: Callable[..., Any] = replicated,
        microbatches: int = 1,
    ) -> None:
        super().__init__(mesh)
        self.loss, self.optimiser, self.layouts, self.microbatches = loss, optimiser, layouts, microbatches
        self.data, self.model = as_axes(data), as_axes(model)

    def state_shardings(self, params: Tree) -> Any:
        """Each array of the state, `[p * shard]`, is sharded over `data` and what else shards its parameter.

        Raises:
            ValueError: for parameters that are sharded over `data`; for an optimiser whose state has arrays that are
                not like the parameters.
        """
        specs = self._state_specs(params, self._params_specs(params))
        # without these, JAX says nothing of the automatic ones among a shard's axes, and each device may keep all
        return jax.tree.map(lambda s: NamedSharding(self.mesh, s), specs, is_leaf=lambda s: isinstance(s, P))

    def init_traceable(self, params: Tree) -> Tree:
        """The optimiser's state, traceable."""
        specs = self._params_specs(params)
        of_state = self._state_specs(params, specs)
        mapped: Any = jax.shard_map(
            lambda params: self.optimiser.init(jax.tree.map(self._shard, params)),
            mesh=self.mesh,
            in_specs=(specs,),
            out_specs=of_state,
        )
        return mapped(params)

    def function(self, params: Tree, state: Tree, batch: Tree) -> Stepped:
        """The step, traceable."""
        specs = self._params_specs(params)
        of_state = self._state_specs(params, specs)
        mapped: Any = jax.shard_map(
            self._local,
            mesh=self.mesh,
            in_specs=(specs, of_state, self.layouts(params, self.data, self.model)[1]),
            out_specs=(specs, of_state, P()),
        )
        stepped: Stepped = mapped(params, state, batch)
        return stepped

    def _local(self, params: Tree, state: Tree, batch: Tree) -> Stepped:
        """The step of a device: a reduce-scatter of every gradient, in its dtype, and an all-gather of every shard."""
        loss, weights = partial(self.loss, data=self.data, model=self.model), cast_varying(params, self.data)
        total, count, gradients = accumulate(loss, weights, batch, microbatches=self.microbatches, function="ZeroStep")
        total, count = lax.psum(cast_varying((total, count), self.data), self.data)
        of_shards = jax.tree.map(lambda g, p: mean_of(self._scattered(g), count).astype(p.dtype), gradients, params)
        shards = jax.tree.map(self._shard, params)
        updates, state = self.optimiser.update(of_shards, state, shards)
        return jax.tree.map(self._gathered, apply_updates(shards, updates), params), state, mean_of(total, count)

    def _flat(self, x: Shaped[Array, "..."]) -> Flat:
        """The elements in a row, varying along `data`, and zeros, so that its participants divide them."""
        flat = jnp.pad(x.ravel(), (0, -x.size % lax.axis_size(self.data)))
        return cast(Flat, cast_varying(flat, self.data))

    def _shard(self, x: Shaped[Array, "..."]) -> Flat:
        """This device's piece of what is the same on all participants."""
        flat = self._flat(x)
        size = flat.shape[0] // lax.axis_size(self.data)
        return lax.dynamic_slice_in_dim(flat, axis_index(self.data) * size, size)

    def _scattered(self, gradient: Shaped[Array, "..."]) -> Flat:
        return lax.psum_scatter(self._flat(gradient), self.data, scatter_dimension=0, tiled=True)

    def _gathered(self, shard: Flat, like: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        whole = lax.all_gather(shard, self.data, axis=0, tiled=True, to="invarying")
        return whole[: like.size].reshape(like.shape)

    def _params_specs(self, params: Tree) -> Any:
        specs = self.layouts(params, self.data, self.model)[0]
        each = jax.tree.map(lambda _: specs, params) if isinstance(specs, P) else specs
        every: list[P] = jax.tree.leaves(each, is_leaf=lambda s: isinstance(s, P))
        shared = [spec for spec in every if {*_axes_of(spec)} & {*self.data}]
        if shared:
            raise ValueError(
                f"ZeroStep: layouts: {shared[0]}: expected parameters that are not sharded over data={self.data}, on "
                f"the mesh {shown(self.mesh)}"
            )
        return each

    def _state_specs(self, params: Tree, specs: Any) -> Any:
        def like_nothing(leaf: jax.ShapeDtypeStruct) -> Any:
            if leaf.shape:
                raise ValueError(
                    f"ZeroStep: optimiser: keeps {leaf.dtype}{list(leaf.shape)}: expected numbers, and arrays that are "
                    f"like the parameters, on the mesh {shown(self.mesh)}"
                )
            return P()

        flat = jax.tree.map(lambda x: jax.ShapeDtypeStruct((math.prod(x.shape),), x.dtype), params)
        rows = jax.tree.map(lambda s: P((*_axes_of(s), *self.data)), specs, is_leaf=lambda s: isinstance(s, P))
        return like_parameters(self.optimiser, flat, rows, like_nothing)


def _axes_of(spec: P) -> tuple[str, ...]:
    """The axes that shard anything."""
    return tuple(name for entry in spec for name in as_axes(entry or ()))
