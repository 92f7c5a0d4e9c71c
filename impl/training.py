"""A training step of any loss with any optimiser: jitted, with parameters and the optimiser's state donated.

A loss is a function of global arrays, `(params, batch, *, mesh, data, model) -> scalar`, with a `shard_map` of its own
or none; how it is parallel is for it to say. An optimiser is a pair of functions as in optax (see
`shardproof.impl.optimisers`, which has two that need no optax). Parameters and the optimiser's state keep the layout
that they come in, so that the new ones take the memory of the old: a step needs no second copy of either.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, PyTree

from shardproof.impl.arguments import AxisName, mesh_text
from shardproof.impl.optimisers import Optimiser, Tree, apply_updates

Scalar: TypeAlias = Float[Array, ""]
Stepped: TypeAlias = tuple[Tree, Tree, Scalar]
Loss: TypeAlias = Callable[..., Scalar]
"""`(params, batch, *, mesh, data, model)`, all arrays global, to a scalar."""

Layouts: TypeAlias = PyTree[NamedSharding | P]
"""A tree of shardings, or of PartitionSpecs."""


class Step:
    """A step `(params, state, batch) -> (params, state, loss)`, jitted, its first two arguments donated.

    Donated arrays are deleted, and using one of them raises. `function` is the step as it can be traced, and
    differentiated, anywhere: neither jitted nor donating. All arrays are on the mesh. On an abstract one, which has no
    devices, only `function` and `init_traceable` can be traced.
    """

    mesh: Mesh | AbstractMesh

    def __init__(self, mesh: Mesh | AbstractMesh) -> None:
        self.mesh = mesh
        self._jitted: dict[Any, Any] = {}

    def init(self, params: Tree) -> Tree:
        """The optimiser's state for parameters on the mesh, laid out as in the step."""
        check_devices(type(self).__name__, self.mesh)
        check_placed(type(self).__name__, "params", params, self.mesh)
        return jax.jit(self.init_traceable, out_shardings=self.state_shardings(params))(params)

    def state_shardings(self, params: Tree) -> Any:
        """The layout of the optimiser's state for these parameters."""
        raise NotImplementedError

    def init_traceable(self, params: Tree) -> Tree:
        """The optimiser's state, traceable."""
        raise NotImplementedError

    def function(self, params: Tree, state: Tree, batch: Tree) -> Stepped:
        """The step, traceable."""
        raise NotImplementedError

    def __call__(self, params: Tree, state: Tree, batch: Tree) -> Stepped:
        """New parameters and a new state, laid out as the old ones, and the loss before the step."""
        jitted, arguments = self._prepared(params, state, batch)
        return jitted(*arguments)

    def lower(self, params: Tree, state: Tree, batch: Tree) -> jax.stages.Lowered:
        """The step lowered for these arguments, as of `jax.jit`: nothing is run or donated."""
        jitted, arguments = self._prepared(params, state, batch)
        lowered: jax.stages.Lowered = jitted.lower(*arguments)
        return lowered

    def _prepared(self, params: Tree, state: Tree, batch: Tree) -> tuple[Any, tuple[Tree, Tree, Tree]]:
        check_devices(type(self).__name__, self.mesh)
        for argument, tree in (("params", params), ("state", state), ("batch", batch)):
            check_placed(type(self).__name__, argument, tree, self.mesh)
        layouts = jax.tree.map(lambda x: x.sharding, (params, state))
        leaves, structure = jax.tree.flatten(layouts)
        known = (structure, tuple(leaves))
        if known not in self._jitted:
            # without these, a compiler would choose, and what is laid out otherwise cannot take the old one's memory
            out = (*layouts, NamedSharding(self.mesh, P()))
            self._jitted[known] = jax.jit(self.function, donate_argnums=(0, 1), out_shardings=out)
        return self._jitted[known], (params, state, batch)


class TrainingStep(Step):
    """The step of a loss of global arrays: its gradient, the optimiser's update, new parameters.

    Arguments:
        loss: `(params, batch, *, mesh, data, model)` to a scalar.
        optimiser: a pair `init`, `update`, of optax or of `shardproof.impl.optimisers`.
        mesh: see `Step`.
        data: the axis or axes over which the loss shards the batch.
        model: those over which it shards the layers.

    Example:
        step = TrainingStep(loss, optax.adam(1e-3), mesh=mesh, data="dp", model="tp")
        state = step.init(params)
        for batch in batches:
            params, state, loss = step(params, state, batch)
    """

    def __init__(
        self, loss: Loss, optimiser: Optimiser, *, mesh: Mesh | AbstractMesh, data: AxisName, model: AxisName = ()
    ) -> None:
        super().__init__(mesh)
        self.loss, self.optimiser, self.data, self.model = loss, optimiser, data, model

    def state_shardings(self, params: Tree) -> Any:
        """The layout of the parameter that a leaf is like; other leaves are on every device."""
        layouts = jax.tree.map(lambda x: x.sharding, params)
        everywhere = NamedSharding(self.mesh, P())
        return like_parameters(self.optimiser, params, layouts, lambda leaf: everywhere)

    def init_traceable(self, params: Tree) -> Tree:
        """The optimiser's state, traceable."""
        return self.optimiser.init(params)

    def function(self, params: Tree, state: Tree, batch: Tree) -> Stepped:
        """The step, traceable."""
        value, gradients = jax.value_and_grad(self.loss)(
            params, batch, mesh=self.mesh, data=self.data, model=self.model
        )
        updates, state = self.optimiser.update(gradients, state, params)
        return apply_updates(params, updates), state, value


def like_parameters(
    optimiser: Optimiser, params: Any, layouts: Layouts, other: Callable[[jax.ShapeDtypeStruct], Any]
) -> Layouts:
    """The layout of every leaf of an optimiser's state: that of the parameter that it is like, or of `other(leaf)`.

    A leaf is like a parameter that has its shape and whose path its own ends in, as `mu["w"]` does in `["w"]`. Where it
    ends in no parameter's, it is like those of its shape, if they all have the same layout. Scalars are like none.
    `params` are arrays, or their shapes and dtypes, and `layouts` a tree like them.
    """
    known: list[Any]
    structure: Any
    known, structure = jax.tree_util.tree_flatten_with_path(params)
    wanted = structure.flatten_up_to(layouts)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for _, x in known]
    state = jax.eval_shape(optimiser.init, jax.tree.unflatten(structure, shapes))

    def of(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        named = [i for i, (end, _) in enumerate(known) if path[len(path) - len(end) :] == end]
        candidates = [max(named, key=lambda i: len(known[i][0]))] if named else range(len(known))
        found = {wanted[i] for i in candidates if leaf.shape and shapes[i].shape == leaf.shape}
        return found.pop() if len(found) == 1 else other(leaf)

    return jax.tree_util.tree_map_with_path(of, state)


def check_devices(function: str, mesh: Mesh | AbstractMesh) -> None:
    """The mesh has devices."""
    if isinstance(mesh, Mesh):
        return
    wanted = "a mesh of devices; on an abstract one trace `function` and `init_traceable`"
    raise ValueError(f"{function}: mesh={shown(mesh)}: expected {wanted}")


def check_placed(function: str, argument: str, tree: Tree, mesh: Mesh | AbstractMesh) -> None:
    """Every array of a tree is there, on the devices of the mesh."""
    devices = set(mesh.devices.flat) if isinstance(mesh, Mesh) else None
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        here = isinstance(leaf, jax.Array) and not leaf.is_deleted()
        if here and leaf.sharding.device_set == devices:
            continue
        kind, why = type(leaf).__name__, ""
        if here:
            kind = f"{jax.typeof(leaf)} on devices {numbers(leaf.sharding.device_set)}"
        elif isinstance(leaf, jax.Array):
            kind = f"{jax.typeof(leaf)}, deleted"
            why = ": it was donated to an earlier step, whose results take its place"
        name = f"{argument}{jax.tree_util.keystr(path)}"
        raise ValueError(f"{function}: {name}={kind}: expected an array on the mesh {shown(mesh)}{why}")


def numbers(devices: Iterable[jax.Device]) -> list[int]:
    """The devices' numbers, in order."""
    return sorted(device.id for device in devices)


def shown(mesh: Mesh | AbstractMesh) -> str:
    """A mesh as messages show it: `(dp=2, tp=4)`, and its devices."""
    return mesh_text(mesh) + (f" of devices {numbers(np.ravel(mesh.devices))}" if isinstance(mesh, Mesh) else "")
