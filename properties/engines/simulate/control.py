"""Calls, loops and branches. Devices may disagree about a predicate: then each goes its own way."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardproof.properties.engines.simulate.env import Elsewhere, Env, common_lead, spread
from shardproof.properties.engines.simulate.interpreter import evaluate
from shardproof.properties.engines.simulate.rules import rule


@rule("jit", "eval_jaxpr", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "composite")
@rule("linear_call", "closed_call")
def call(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The results of the function that is called."""
    (name,) = {"jaxpr", "call_jaxpr", "call", "callee"} & set(equation.params)
    return evaluate(env, equation.params[name], operands, env.operand_rounds)


@rule("call_hi_primitive")
def call_hi_primitive(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """What a composite operation expands to, per device."""
    (operation,) = equation.params.values()
    return evaluate(env, expanded(operation, tuple((v.aval.shape, v.aval.dtype) for v in equation.invars)), operands)


@functools.lru_cache(maxsize=256)
def expanded(operation: Any, types: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    """The jaxpr of a composite operation on arrays of the given shapes and dtypes."""
    avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types]
    return jax.make_jaxpr(lambda *args: jax.tree.leaves(operation.expand(*args)))(*avals)


@rule("debug_callback", "debug_print")
def debug_callback(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Nothing: it is for people to look at."""
    return []


@rule("pure_callback")
def pure_callback(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """What a function outside of JAX makes of every device's own blocks: called once for those that are held once."""
    lead = common_lead(env, *operands)
    whole = [spread(env, lead, x) for x in operands]
    results = [np.empty(lead + v.aval.shape, v.aval.dtype) for v in equation.outvars]
    for device in np.ndindex(lead):
        returned = equation.params["callback"](*(jnp.asarray(x[device]) for x in whole))
        for result, block in zip(results, returned, strict=True):
            result[device] = block
    return results


@rule("platform_index")
def platform_index(env: Env, equation: Any) -> np.ndarray:
    """The branch for the CPU, or the default one."""
    platforms = equation.params["platforms"]
    index = next((i for i, names in enumerate(platforms) if names is None or "cpu" in names), len(platforms) - 1)
    return np.full((1,) * env.lead, index, np.int32)


def scan_counts(equation: Any) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in equation.params:
        return equation.params["num_consts"], equation.params["num_carry"]
    constants, carried, _ = equation.params["ft_in"].unpack()
    return len(list(constants)), len(list(carried))


@rule("scan")
def scan(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Carries a state along the first dimension of the inputs, and stacks what each step puts out."""
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
        stack_steps(env, values[::-1] if equation.params["reverse"] else values, variable)
        for values, variable in zip(outputs, equation.outvars[carried:], strict=True)
    ]
    return [*state, *stacked]


def stack_steps(env: Env, values: Sequence[np.ndarray], variable: Any) -> np.ndarray:
    """What the steps of a loop put out, along a new first dimension of the block."""
    if not values:
        return np.zeros((1,) * env.lead + tuple(variable.aval.shape), variable.aval.dtype)
    lead = common_lead(env, *values)
    return np.stack([spread(env, lead, v) for v in values], axis=env.lead)


def chosen(env: Env, mask: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    """`yes` on the devices in `mask` (`[*lead]`, broadcast), `no` on the others."""
    rank = max(yes.ndim, no.ndim)
    return np.where(mask.reshape(mask.shape + (1,) * (rank - mask.ndim)), yes, no)


def acting(env: Env, mask: np.ndarray) -> np.ndarray:
    """`mask` on the active devices, False on the others."""
    if env.active is None:
        return mask
    return np.asarray(mask & env.active.reshape(env.active.shape + (1,) * (mask.ndim - env.active.ndim)))


def unanimous(env: Env, mask: np.ndarray) -> bool:
    """Whether all active devices are in `mask`, which is `[*lead]`, or of a mapped predicate `[*lead, *batch]`."""
    return bool((acting(env, np.ones((1,) * mask.ndim, bool)) <= mask).all())


def narrowed(env: Env, mask: np.ndarray, equation: Any, jaxpr: Any, name: str) -> Env:
    """The environment of the devices in `mask`, which is `[*lead]`; the others execute `jaxpr`."""
    rank = len(env.mesh.sizes)
    if rank == 0 or unanimous(env, mask):
        return env
    everywhere = np.broadcast_to(mask, (*env.mesh.sizes, *mask.shape[rank:]))
    devices = np.asarray(everywhere.reshape(*env.mesh.sizes, -1).any(axis=-1))
    before = np.ones(env.mesh.sizes, bool) if env.active is None else env.active
    return env.diverged(devices & before, Elsewhere(before & ~devices, jaxpr, name, equation))


@rule("while")
def while_loop(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Repeats the body on every device for as long as its own predicate holds."""
    params = equation.params
    cond_consts = operands[: params["cond_nconsts"]]
    body_consts = operands[params["cond_nconsts"] : params["cond_nconsts"] + params["body_nconsts"]]
    state = list(operands[params["cond_nconsts"] + params["body_nconsts"] :])
    inner = env
    running: Any = np.ones((1,) * env.lead, bool)
    while True:
        (holds,) = evaluate(inner, params["cond_jaxpr"], [*cond_consts, *state])
        decided = holds if env.arithmetic is None else env.arithmetic.decided(inner, holds, equation)
        running = np.asarray(acting(env, np.asarray(decided)) & running)
        if not running.any():
            return state
        inner = narrowed(env, running, equation, None, "the loop")
        results = evaluate(inner, params["body_jaxpr"], [*body_consts, *state])
        if not unanimous(env, running):
            results = [chosen(env, running, new, old) for new, old in zip(results, state, strict=True)]
        state = results


@rule("custom_linear_solve")
def custom_linear_solve(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """What the program's own function says is the solution of the linear system."""
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    constants, right = operands[first : first + lengths.solve], operands[sum(lengths) :]
    return evaluate(env, jaxprs.solve, [*constants, *right])


@rule("cond")
def cond(env: Env, equation: Any, index: np.ndarray, *operands: np.ndarray) -> list[np.ndarray]:
    """The results of the branch that each device's own index names."""
    branches = equation.params["branches"]
    everyone: Any = acting(env, np.ones(index.shape, bool))
    index = np.clip(index.astype(np.int64), 0, len(branches) - 1)
    taken = np.unique(np.broadcast_to(index, everyone.shape)[everyone]).tolist() or [0]
    if len(taken) == 1:
        return evaluate(env, branches[taken[0]], operands)
    results: list[np.ndarray] = []
    for number in taken:
        inside = env
        for other in taken:
            if other != number:
                staying = acting(inside, np.asarray(index != other))
                inside = narrowed(inside, staying, equation, branches[other], f"branch {other} of the cond")
        values = evaluate(inside, branches[number], operands)
        mask = np.asarray(index == number)
        if results:
            values = [chosen(env, mask, new, old) for new, old in zip(values, results, strict=True)]
        results = values
    return results
