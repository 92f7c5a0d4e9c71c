"""`shard_map`: from global arrays to the blocks of all devices, and back."""

import dataclasses
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.env import SETS, Env
from shardproof.properties.engines.simulate.errors import InterpreterLimit
from shardproof.properties.engines.simulate.exchange import REDUCTIONS
from shardproof.properties.engines.simulate.interpreter import evaluate
from shardproof.properties.engines.simulate.layout import divide, first_replica, join
from shardproof.properties.engines.simulate.memory import peak_bytes
from shardproof.properties.engines.simulate.reductions import extreme
from shardproof.properties.engines.simulate.rules import rule


def widened(env: Env, mesh: Any, manual: frozenset[str]) -> tuple[Env, MeshCase, list[int]]:
    """The environment with more manual axes, the mesh of those axes alone, and where they stand among all.

    The axes that are not manual stay in global view: no device of theirs is told apart.
    """
    sets = {name: size for name, size in env.mesh.shape.items() if name == SETS}
    if sets.keys() & mesh.shape.keys():
        raise InterpreterLimit(f"the mesh {dict(mesh.shape)} names {SETS}", f"a mesh axis called {SETS}")
    sizes = {**sets, **mesh.shape}
    names = [name for name in sizes if name in manual or name in env.mesh.axis_names]
    whole = MeshCase(tuple(names), tuple(sizes[name] for name in names))
    fresh = [name for name in names if name not in env.mesh.axis_names]
    placed = [env.mesh.shape.get(name, 1) for name in names]

    def spread(devices: np.ndarray) -> np.ndarray:
        return np.broadcast_to(devices.reshape(placed), whole.sizes)

    active = None if env.active is None else spread(env.active)
    elsewhere = tuple(dataclasses.replace(e, devices=spread(e.devices)) for e in env.elsewhere)
    inner = dataclasses.replace(env, mesh=whole, lead=len(names), active=active, elsewhere=elsewhere)
    return inner, MeshCase(tuple(fresh), tuple(sizes[name] for name in fresh)), [names.index(name) for name in fresh]


def entries(env: Env, spec: Any) -> list[tuple[str, ...]]:
    """The axes that split the dimensions of a global array `[*lead, *global]`, as far as the spec says.

    A PartitionSpec refuses to be iterated where it says more than those.
    """
    told = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec.partitions]
    return [()] * env.lead + told


def unreduced_axes(spec: Any) -> tuple[frozenset[str], str]:
    """The mesh axes over which the value is still to be reduced, and how: `sum`, `max` or `min`."""
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    return getattr(spec, "unreduced", frozenset()), kind


def identity(shape: tuple[int, ...], dtype: np.dtype, kind: str) -> np.ndarray:
    """What adds nothing to a sum, or to a maximum or minimum."""
    result = np.zeros(shape, dtype)
    if kind != "sum":
        numbers = result if dtype.names is None else result["value"]  # beside them is how far they may be off
        numbers[...] = extreme(numbers.dtype, largest=kind == "min")
    return result


def divided(env: Env, x: np.ndarray, mesh: MeshCase, places: list[int], spec: Any) -> np.ndarray:
    """`[*lead, *global]` as `[*lead', *block]`: one leading dimension more for each axis of `mesh`, at `places`.

    A replica is held once. Of a sum or maximum that is left unreduced, the first device holds everything.
    """
    blocks = divide(x, mesh, entries(env, spec))
    unreduced, kind = unreduced_axes(spec)
    for dimension, name in enumerate(mesh.axis_names):
        if name in unreduced:
            others = (*blocks.shape[:dimension], mesh.shape[name] - 1, *blocks.shape[dimension + 1 :])
            blocks = np.concatenate([blocks, identity(others, blocks.dtype, kind)], axis=dimension)
    return np.moveaxis(blocks, range(len(places)), places)


def assembled(
    env: Env, x: np.ndarray, mesh: MeshCase, places: list[int], spec: Any, check_replicas: bool
) -> np.ndarray:
    """`[*lead', *block]` as `[*lead, *global]`: what `divided` took apart.

    Along an axis that `spec` does not name, the devices must agree; without `check_replicas`, the first one
    is believed. What is left unreduced is reduced.
    """
    x = np.moveaxis(x, places, range(len(places)))
    (unreduced, kind), split = unreduced_axes(spec), entries(env, spec)
    for dimension, (name, size) in enumerate(mesh.shape.items()):
        whole = np.broadcast_to(x, (*x.shape[:dimension], size, *x.shape[dimension + 1 :]))
        if name in unreduced:
            x = REDUCTIONS[kind].reduce(whole.astype(wide(x.dtype)), axis=dimension, keepdims=True).astype(x.dtype)
        elif any(name in axes for axes in split):
            x = whole
        elif env.arithmetic is not None:  # in the program's own arithmetic they have been compared
            x = env.arithmetic.replica(x, dimension)
        else:
            x = first_replica(x, mesh, dimension) if check_replicas else x.take([0], axis=dimension)
    return join(x, mesh, split)


@rule("shard_map")
def shard_map(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Divides the operands by `in_specs`, interprets the body on blocks, and assembles by `out_specs`.

    Raises:
        UnequalReplicas: if a result that is typed invariant along an axis differs along it. With
            `check_vma=False` nothing is typed, so the first device's block is taken, as it is for an array
            whose replicas differ.
    """
    params = equation.params
    inner, mesh, places = widened(env, params["mesh"], frozenset(params["newly_manual_axes"]))
    blocks = [divided(env, x, mesh, places, spec) for x, spec in zip(operands, params["in_specs"], strict=True)]
    if env.recorder is not None:
        env.recorder.held(peak_bytes(params["jaxpr"]))
    results = evaluate(inner, params["jaxpr"], blocks, env.operand_rounds)
    if env.left is not None:
        env.left.extend((inner.mesh, x) for x in results)
    check = bool(params["check_vma"])
    return [assembled(env, x, mesh, places, spec, check) for x, spec in zip(results, params["out_specs"], strict=True)]
