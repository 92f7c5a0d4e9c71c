"""Devices that take different ways through the program, and the collectives that they then miss."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.errors import CollectiveMismatch, location
from shardproof.properties.engines.simulate.groups import Groups, device_name, process_groups
from shardproof.properties.engines.simulate.liveness import equations, subjaxprs

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


def may_part(jaxpr: Any) -> bool:
    """Whether devices may take different ways to a collective: into a branch, or round a loop once more."""
    ways = (equation for equation in equations(jaxpr) if equation.primitive.name in ("cond", "while"))
    inner = (one for way in ways for body in subjaxprs(way) for one in equations(body))
    return any(one.primitive.name in COLLECTIVE_KINDS for one in inner)


def axes_of(equation: Any) -> tuple[str, ...]:
    """The mesh axes of a collective, as the program gave them."""
    names = equation.params.get("axes", equation.params.get("axis_name", ()))
    names = (names,) if isinstance(names, str | int) else names
    return tuple(name for name in names if isinstance(name, str))


def collectives_in(jaxpr: Any) -> Iterator[Any]:
    """The collectives of a jaxpr in program order, inner jaxprs included."""
    return (equation for equation in equations(jaxpr) if equation.primitive.name in COLLECTIVE_KINDS)


def check_agreement(env: Env, equation: Any, axes: tuple[str, ...], groups: Groups) -> None:
    """Every process group executes the collective as a whole, or not at all.

    Raises:
        CollectiveMismatch: naming two devices of one group, and where in the program each is.
    """
    if env.active is None:
        return
    active = np.asarray(env.active).reshape(-1)
    pair = parted(active, env.mesh, axes, groups)
    if pair is None:
        return
    here, there = pair
    raise CollectiveMismatch(
        f"{equation.primitive.name} over {axes} on the mesh {env.mesh}: devices of one group disagree about their "
        f"next collective, a deadlock on hardware: device {device_name(env.mesh, here)} is at "
        f"{equation.primitive.name} ({location(equation)}), device {device_name(env.mesh, there)} "
        f"{whereabouts(env, there, axes)}"
    )


def parted(active: np.ndarray, mesh: MeshCase, axes: tuple[str, ...], groups: Groups) -> tuple[int, int] | None:
    """The first active device of a process group that is active in part, and the first of the others in its group."""
    members = [(devices, active[devices]) for devices in process_groups(mesh, axes, groups)]
    partly = [group for devices, on in members for group in devices[on.any(axis=1) & ~on.all(axis=1)]]
    return min(((int(g[active[g]].min()), int(g[~active[g]].min())) for g in partly), default=None)


def whereabouts(env: Env, device: int, axes: tuple[str, ...]) -> str:
    """What an inactive device does meanwhile: its next collective over one of `axes`, or the end of its branch."""
    for elsewhere in reversed(env.elsewhere):
        if elsewhere.devices.reshape(-1)[device]:
            if elsewhere.jaxpr is not None:
                for equation in collectives_in(elsewhere.jaxpr):
                    if set(axes_of(equation)) & set(axes):
                        return f"is at {equation.primitive.name} ({location(equation)}), in {elsewhere.place}"
            return f"reaches the end of {elsewhere.place} without one"
    return "does not execute it"
