"""Calls, loops and branches, and `shard_map`: from global arrays to the blocks of all devices, and back.

Where devices disagree about a predicate, each takes its own branch.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardproof.oracles.dtypes import real_of
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.blocks import extreme
from shardproof.properties.engines.simulate.env import (
    SETS,
    Elsewhere,
    Env,
    broadcast_leads,
    common_lead,
    mask_active,
    rule,
)
from shardproof.properties.engines.simulate.errors import InterpreterLimit, UnequalReplicas, location
from shardproof.properties.engines.simulate.exchange import REDUCTIONS, divide, first_replica, join
from shardproof.properties.engines.simulate.interpreter import called_jaxpr, evaluate
from shardproof.properties.engines.simulate.jaxprs import CALLS, is_jax, open_jaxpr, scan_counts


@rule(*CALLS)
def call(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The results of the function that is called."""
    jaxpr = called_jaxpr(equation)
    if env.choices is not None and env.caller is None and is_jax(jaxpr):
        env = dataclasses.replace(env, caller=equation)
    return evaluate(env, jaxpr, operands, env.operand_rounds)


@rule("call_hi_primitive")
def call_hi_primitive(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The results of the expansion of a composite operation."""
    (operation,) = equation.params.values()
    given, results = (tuple((v.aval.shape, v.aval.dtype) for v in of) for of in (equation.invars, equation.outvars))
    return evaluate(env, expand(operation, given, results), operands)


@functools.lru_cache(maxsize=256)
def expand(operation: Any, given: tuple[tuple[tuple[int, ...], Any], ...], results: tuple[Any, ...]) -> Any:
    """The jaxpr of a composite operation on arrays of the given shapes and dtypes, which may have 64 bits."""
    dtypes = [dtype for _, dtype in (*given, *results) if isinstance(dtype, np.dtype)]
    with jax.enable_x64(any(real_of(dtype).itemsize == 8 for dtype in dtypes)):
        avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in given]
        return jax.make_jaxpr(lambda *args: jax.tree.leaves(operation.expand(*args)))(*avals)


rule("debug_callback", "debug_print")(lambda env, equation, *operands: [])  # these have no effect on results


@rule("pure_callback")
def pure_callback(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The results of a function outside of JAX, called once for all devices with the same blocks."""
    whole, lead = broadcast_leads(env, operands), common_lead(env, *operands)
    results = [np.empty(lead + v.aval.shape, v.aval.dtype) for v in equation.outvars]
    for device in np.ndindex(lead):
        returned = equation.params["callback"](*(jnp.asarray(x[device]) for x in whole))
        for result, block in zip(results, returned, strict=True):
            result[device] = block
    return results


@rule("platform_index")
def platform_index(env: Env, equation: Any) -> np.ndarray:
    """The branch for the CPU, or the default."""
    platforms = equation.params["platforms"]
    index = next((i for i, names in enumerate(platforms) if names is None or "cpu" in names), len(platforms) - 1)
    return np.full((1,) * env.lead, index, np.int32)


@rule("scan")
def scan(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Carries a state along the first dimension of the inputs, and stacks the outputs of all steps."""
    consts, carried = scan_counts(equation)
    length, jaxpr = equation.params["length"], equation.params["jaxpr"]
    constants, inputs = operands[:consts], operands[consts + carried :]
    state = list(operands[consts : consts + carried])
    steps = range(length)[::-1] if equation.params["reverse"] else range(length)
    before: tuple[Any, ...] = (slice(None),) * env.lead
    outputs: list[list[np.ndarray]] = [[] for _ in equation.outvars[carried:]]
    rounds, latest = env.operand_rounds, [0] * len(outputs)
    if env.recorder is not None and rounds is not None:
        env.recorder.results = [*rounds[consts : consts + carried], *latest]  # of a scan that takes no step
    for i in steps:
        results = evaluate(env, jaxpr, [*constants, *state, *(np.asarray(x[*before, i]) for x in inputs)], rounds)
        state = results[:carried]
        if env.recorder is not None and rounds is not None:
            known = env.recorder.results
            rounds = [*rounds[:consts], *known[:carried], *rounds[consts + carried :]]
            latest = [max(pair) for pair in zip(latest, known[carried:], strict=True)]
            env.recorder.results = [*known[:carried], *latest]
        for collected, value in zip(outputs, results[carried:], strict=True):
            collected.append(value)
    stacked = [
        np.stack(broadcast_leads(env, values[::-1] if equation.params["reverse"] else values), axis=env.lead)
        if values
        else np.zeros((1,) * env.lead + tuple(variable.aval.shape), variable.aval.dtype)
        for values, variable in zip(outputs, equation.outvars[carried:], strict=True)
    ]
    return [*state, *stacked]


def select(env: Env, mask: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    """`yes` on the devices in `mask` (`[*lead]`, broadcast), `no` on the others."""
    rank = max(yes.ndim, no.ndim)
    return np.where(mask.reshape(mask.shape + (1,) * (rank - mask.ndim)), yes, no)


def unanimous(env: Env, mask: np.ndarray) -> bool:
    """True if all active devices are in `mask`, `[*lead]` or for a mapped predicate `[*lead, *batch]`."""
    return bool((mask_active(env, np.ones((1,) * mask.ndim, bool)) <= mask).all())


def restrict_env(env: Env, mask: np.ndarray, equation: Any, jaxpr: Any, name: str) -> Env:
    """The environment of the devices in `mask` `[*lead]`; the others execute `jaxpr`."""
    rank = len(env.mesh.sizes)
    if rank == 0 or unanimous(env, mask):
        return env
    devices = np.asarray(env.everywhere(mask).any(axis=tuple(range(rank, mask.ndim))))
    before = np.ones(env.mesh.sizes, bool) if env.active is None else env.active
    others = Elsewhere(before & ~devices, jaxpr, name, equation)
    return dataclasses.replace(env, active=devices & before, elsewhere=(*env.elsewhere, others))


@rule("while")
def while_loop(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Repeats the body on every device while its own predicate holds."""
    params = equation.params
    cond_consts = operands[: params["cond_nconsts"]]
    body_consts = operands[params["cond_nconsts"] : params["cond_nconsts"] + params["body_nconsts"]]
    state = list(operands[params["cond_nconsts"] + params["body_nconsts"] :])
    inner = env
    running: Any = np.ones((1,) * env.lead, bool)
    while True:
        (holds,) = evaluate(inner, params["cond_jaxpr"], [*cond_consts, *state])
        if env.choices is not None:
            env.choices.note(inner, equation, [holds])
        decided = holds if env.arithmetic is None else env.arithmetic.decided(inner, holds, equation)
        running = np.asarray(mask_active(env, np.asarray(decided)) & running)
        if not running.any():
            return state
        inner = restrict_env(env, running, equation, None, "the loop")
        results = evaluate(inner, params["body_jaxpr"], [*body_consts, *state])
        if not unanimous(env, running):
            results = [select(env, running, new, old) for new, old in zip(results, state, strict=True)]
        state = results


@rule("custom_linear_solve")
def custom_linear_solve(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The solution of the linear system by the program's own function."""
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    constants, right = operands[first : first + lengths.solve], operands[sum(lengths) :]
    return evaluate(env, jaxprs.solve, [*constants, *right])


@rule("cond")
def cond(env: Env, equation: Any, index: np.ndarray, *operands: np.ndarray) -> list[np.ndarray]:
    """The results of each device's own branch."""
    branches = equation.params["branches"]
    everyone: Any = mask_active(env, np.ones(index.shape, bool))
    index = np.clip(index.astype(np.int64), 0, len(branches) - 1)
    taken = np.unique(np.broadcast_to(index, everyone.shape)[everyone]).tolist() or [0]
    if len(taken) == 1:
        return evaluate(env, branches[taken[0]], operands)
    results: list[np.ndarray] = []
    for number in taken:
        inside = env
        for other in taken:
            if other != number:
                staying = mask_active(inside, np.asarray(index != other))
                inside = restrict_env(inside, staying, equation, branches[other], f"branch {other} of the cond")
        values = evaluate(inside, branches[number], operands)
        mask = np.asarray(index == number)
        if results:
            values = [select(env, mask, new, old) for new, old in zip(values, results, strict=True)]
        results = values
    return results


def enter_mesh(env: Env, mesh: Any, manual: frozenset[str]) -> tuple[Env, MeshCase, list[int]]:
    """The environment with more manual axes, the mesh of those axes alone, and their places among all.

    The axes that are not manual stay in global view.
    """
    sets = {name: size for name, size in env.mesh.shape.items() if name == SETS}
    if sets.keys() & mesh.shape.keys():
        raise InterpreterLimit(f"the mesh {dict(mesh.shape)} names {SETS}", f"a mesh axis called {SETS}")
    sizes = {**sets, **mesh.shape}
    names = [name for name in sizes if name in manual or name in env.mesh.axis_names]
    whole = MeshCase(tuple(names), tuple(sizes[name] for name in names))
    fresh = [name for name in names if name not in env.mesh.axis_names]
    outer = [env.mesh.shape.get(name, 1) for name in names]

    def to_all(devices: np.ndarray) -> np.ndarray:
        return np.broadcast_to(devices.reshape(outer), whole.sizes)

    active = None if env.active is None else to_all(env.active)
    elsewhere = tuple(dataclasses.replace(e, devices=to_all(e.devices)) for e in env.elsewhere)
    inner = dataclasses.replace(env, mesh=whole, lead=len(names), active=active, elsewhere=elsewhere)
    return inner, MeshCase(tuple(fresh), tuple(sizes[name] for name in fresh)), [names.index(name) for name in fresh]


def entries(env: Env, spec: Any) -> list[tuple[str, ...]]:
    """The axes that split the dimensions of a global array `[*lead, *global]`; the last ones may be left out."""
    axes = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec.partitions]
    return [()] * env.lead + axes


def unreduced_axes(spec: Any) -> tuple[frozenset[str], str]:
    """The mesh axes over which a value is unreduced, and the reduction: `sum`, `max` or `min`."""
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    return getattr(spec, "unreduced", frozenset()), kind


def split_operand(env: Env, x: np.ndarray, mesh: MeshCase, places: list[int], spec: Any) -> np.ndarray:
    """`[*lead, *global]` as `[*lead', *block]`: one leading dimension more for each axis of `mesh`, at `places`.

    A replica is held once. The first device along an unreduced axis holds everything.
    """
    blocks = divide(x, mesh, entries(env, spec))
    unreduced, kind = unreduced_axes(spec)
    for dimension, name in enumerate(mesh.axis_names):
        if name in unreduced:
            others = (*blocks.shape[:dimension], mesh.shape[name] - 1, *blocks.shape[dimension + 1 :])
            nothing = np.zeros((), blocks.dtype) if kind == "sum" else extreme(blocks.dtype, largest=kind == "min")
            blocks = np.concatenate([blocks, np.broadcast_to(nothing, others)], axis=dimension)
    return np.moveaxis(blocks, range(len(places)), places)


def join_result(
    env: Env, x: np.ndarray, mesh: MeshCase, places: list[int], spec: Any, check_replicas: bool
) -> np.ndarray:
    """`[*lead', *block]` as `[*lead, *global]`: the inverse of `split_operand`; what is unreduced is reduced.

    Along an axis that `spec` does not name, the devices must agree; without `check_replicas`, the first one counts.
    """
    x = np.moveaxis(x, places, range(len(places)))
    (unreduced, kind), split = unreduced_axes(spec), entries(env, spec)
    for dimension, (name, size) in enumerate(mesh.shape.items()):
        whole = np.broadcast_to(x, (*x.shape[:dimension], size, *x.shape[dimension + 1 :]))
        if name in unreduced:
            x = REDUCTIONS[kind].reduce(whole.astype(env.exact(x.dtype)), axis=dimension, keepdims=True).astype(x.dtype)
        elif any(name in axes for axes in split):
            x = whole
        elif check_replicas and env.arithmetic is None:  # elsewhere the program's own arithmetic has compared them
            x = first_replica(x, mesh, dimension)
        else:
            x = x.take([0], axis=dimension)
    return join(x, mesh, split)


@rule("shard_map")
def shard_map(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Divides the operands by `in_specs`, interprets the body on blocks, and assembles by `out_specs`.

    Raises:
        UnequalReplicas: if a result that is typed invariant along an axis differs along it. With `check_vma=False`
            nothing is typed, and the first device's block counts.
    """
    params = equation.params
    inner, mesh, places = enter_mesh(env, params["mesh"], frozenset(params["newly_manual_axes"]))
    blocks = [split_operand(env, x, mesh, places, spec) for x, spec in zip(operands, params["in_specs"], strict=True)]
    results = evaluate(inner, params["jaxpr"], blocks, env.operand_rounds)
    if env.left is not None:
        env.left.extend((inner.mesh, x) for x in results)
    check = bool(params["check_vma"])
    joined = []
    for x, spec, variable in zip(results, params["out_specs"], open_jaxpr(params["jaxpr"])[0].outvars, strict=True):
        try:
            joined.append(join_result(env, x, mesh, places, spec, check))
        except UnequalReplicas as error:
            made = [e for e in open_jaxpr(params["jaxpr"])[0].eqns if variable in e.outvars]
            where = f", made by {made[0].primitive.name} at {location(made[0])}" if made else ""
            raise UnequalReplicas(f"{error}{where}") from None
    return joined
