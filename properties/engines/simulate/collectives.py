"""The rules of collectives, on the operations of `exchange`, and the check for deadlocks.

Devices that take different branches may miss a collective that others wait in.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from shardproof.properties.engines.simulate import exchange
from shardproof.properties.engines.simulate.env import Env, Rule, bytes_of, rule
from shardproof.properties.engines.simulate.errors import CollectiveMismatch, RaggedMetadata, SimulationError, location
from shardproof.properties.engines.simulate.exchange import Groups, device_name, process_groups
from shardproof.properties.engines.simulate.jaxprs import equations, subjaxprs

COLLECTIVE_KINDS: dict[str, str] = {
    "psum": "all_reduce",
    "psum_invariant": "all_reduce",
    "unreduced_psum": "all_reduce",
    "unreduced_pmax": "all_reduce",
    "unreduced_pmin": "all_reduce",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "unreduced_reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "ppermute": "permute",
    "pbroadcast": "broadcast",
    "ragged_all_to_all": "ragged_all_to_all",
}


def may_diverge(jaxpr: Any) -> bool:
    """True if a collective is inside a branch or loop, in which devices may diverge."""
    branching = (equation for equation in equations(jaxpr) if equation.primitive.name in ("cond", "while"))
    inner = (one for equation in branching for body in subjaxprs(equation) for one in equations(body))
    return any(one.primitive.name in COLLECTIVE_KINDS for one in inner)


def axes_of(equation: Any) -> tuple[str, ...]:
    """The mesh axes of a collective, as the program gave them."""
    names = equation.params.get("axes", equation.params.get("axis_name", ()))
    names = (names,) if isinstance(names, str | int) else names
    return tuple(name for name in names if isinstance(name, str))


def check_agreement(env: Env, equation: Any, axes: tuple[str, ...], groups: Groups) -> None:
    """Raises CollectiveMismatch unless every process group executes the collective as a whole, or not at all."""
    if env.active is None:
        return
    active = np.asarray(env.active).reshape(-1)
    members = [(devices, active[devices]) for devices in process_groups(env.mesh, axes, groups)]
    partly = [group for devices, on in members for group in devices[on.any(axis=1) & ~on.all(axis=1)]]
    if not partly:
        return
    here, there = min((int(g[active[g]].min()), int(g[~active[g]].min())) for g in partly)
    raise CollectiveMismatch(
        f"{equation.primitive.name} over {axes} on the mesh {env.mesh}: devices of one group disagree about their "
        f"next collective, a deadlock on hardware: device {device_name(env.mesh, here)} is at "
        f"{equation.primitive.name} ({location(equation)}), device {device_name(env.mesh, there)} "
        f"{whereabouts(env, there, axes)}"
    )


def whereabouts(env: Env, device: int, axes: tuple[str, ...]) -> str:
    """The next collective over one of `axes` of an inactive device, or the end of its branch, for messages."""
    for elsewhere in reversed(env.elsewhere):
        if elsewhere.devices.reshape(-1)[device]:
            place = f"{elsewhere.name} ({location(elsewhere.equation)})"
            if elsewhere.jaxpr is not None:
                for equation in equations(elsewhere.jaxpr):
                    if equation.primitive.name in COLLECTIVE_KINDS and set(axes_of(equation)) & set(axes):
                        return f"is at {equation.primitive.name} ({location(equation)}), in {place}"
            return f"reaches the end of {place} without one"
    return "does not execute it"


def record_execution(env: Env, equation: Any) -> tuple[tuple[str, ...], Groups]:
    """Checks a collective (see `check_agreement`), records it, and returns its axes and groups."""
    axes, groups = axes_of(equation), equation.params.get("axis_index_groups")
    check_agreement(env, equation, axes, groups)
    if env.recorder is not None and axes:
        perm = equation.params.get("perm")
        env.recorder.executed(
            kind=COLLECTIVE_KINDS[equation.primitive.name],
            axes=axes,
            mesh=env.mesh,
            groups=None if groups is None else tuple(tuple(group) for group in groups),
            perm=None if perm is None else tuple((int(source), int(target)) for source, target in perm),
            operand_bytes=sum(bytes_of(v.aval) for v in equation.invars[: len(equation.outvars)]),
            devices=env.mesh.size if env.active is None else int(np.count_nonzero(env.active)),
        )
    return axes, groups


def all_reduce(op: str) -> Rule:
    """The rule of a reduction over mesh axes, and over the dimensions that are numbers among them."""

    def run(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
        axes, groups = record_execution(env, equation)
        positional = tuple(env.lead + name for name in equation.params["axes"] if isinstance(name, int))
        results = []
        for x, variable in zip(operands, equation.outvars, strict=True):
            if positional:
                x = exchange.REDUCTIONS[op].reduce(x, axis=positional, dtype=env.exact(x.dtype)).astype(x.dtype)
            if axes:
                x = exchange.exchange(x, env.mesh, axes, groups, partial(exchange.all_reduce, op=op, exact=env.exact))
            results.append(x.astype(variable.aval.dtype, copy=False))
        return results

    return run


rule("psum", "psum_invariant", "unreduced_psum")(all_reduce("sum"))
rule("pmax", "unreduced_pmax")(all_reduce("max"))
rule("pmin", "unreduced_pmin")(all_reduce("min"))


def collective_rule(collective: str, *, adds: bool = False, **names: str) -> Rule:
    """The rule of a collective of `exchange`, with the equation's parameters of these names as arguments."""

    def run(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
        axes, groups = record_execution(env, equation)
        arguments = {argument: equation.params[name] for argument, name in names.items()}
        arguments |= {"exact": env.exact} if adds else {}
        run_in_groups = partial(getattr(exchange, collective), **arguments)
        return [exchange.exchange(x, env.mesh, axes, groups, run_in_groups) for x in operands]

    return run


rule("all_gather", "all_gather_invariant", "all_gather_reduced")(
    collective_rule("all_gather", dimension="all_gather_dimension", tiled="tiled")
)
rule("reduce_scatter", "unreduced_reduce_scatter")(
    collective_rule("reduce_scatter", adds=True, dimension="scatter_dimension", tiled="tiled")
)
# where `lax.all_to_all` is not tiled, it gives the primitive a new dimension to concatenate along
rule("all_to_all")(collective_rule("all_to_all", split_dimension="split_axis", concat_dimension="concat_axis"))
rule("pbroadcast")(collective_rule("broadcast", root="source"))


@rule("ppermute")
def ppermute(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Each source's block, on its destination; zeros where nothing arrives.

    The pairs number the participants in mesh order, whatever the order of the tuple, as in JAX 0.10; where later
    versions refuse a tuple in another order, it raises SimulationError.
    """
    axes = axes_of(equation)
    ordered = env.mesh.in_mesh_order(axes)
    # axes of one device do not change the order of the participants
    if jax.__version_info__ >= (0, 11) and axes != ordered and env.mesh.longer(axes) != env.mesh.longer(ordered):
        raise SimulationError(
            f"ppermute over {axes} on the mesh {env.mesh}: this version of JAX lowers no axis tuple that is not in "
            f"mesh order, {ordered}, at {location(equation)}"
        )
    record_execution(env, equation)
    send = partial(exchange.permute, pairs=equation.params["perm"])
    return [exchange.exchange(x, env.mesh, ordered, None, send) for x in operands]


@rule("axis_index")
def axis_index(env: Env, equation: Any) -> np.ndarray:
    """The index of every device along the axes."""
    axes = axes_of(equation)
    own = tuple((name, size if name in axes else 1) for name, size in env.mesh.shape.items())
    index = exchange.axis_index(own, axes)
    return index.reshape(*(size for _, size in own), *(1,) * (env.lead - len(own)))


@rule("ragged_all_to_all")
def ragged_all_to_all(env: Env, equation: Any, *operands: np.ndarray) -> np.ndarray:
    """Rows, each at the offset in the receiver's output that its sender states; raises RaggedMetadata."""
    if len(kinds := dict.fromkeys(x.dtype.name for x in operands[2:])) > 1:
        raise RaggedMetadata(
            f"ragged_all_to_all: input_offsets, send_sizes, output_offsets and recv_sizes are {' and '.join(kinds)}: "
            "expected one dtype; XLA takes no others"
        )
    axes, groups = axes_of(equation), equation.params["axis_index_groups"]
    check_agreement(env, equation, axes, groups)
    rank = len(env.mesh.sizes)
    operand, output, *lists = (x.reshape(env.mesh.size, *x.shape[rank:]) for x in map(env.everywhere, operands))
    if env.active is not None:  # the others send nothing
        sending = env.active.reshape(-1, 1)
        lists[1], lists[3] = np.where(sending, lists[1], 0), np.where(sending, lists[3], 0)
    slices = exchange.Slices(lists, env.mesh, axes, groups)
    over = f"ragged_all_to_all over {axes} on the mesh {env.mesh}"
    result = exchange.ragged_all_to_all(operand, output, slices, env.mesh, over)
    record_execution(env, equation)
    return result.reshape(*env.mesh.sizes, *result.shape[1:])
