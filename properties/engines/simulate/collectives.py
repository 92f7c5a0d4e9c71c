"""Collectives: what they mean is in `shardproof.oracles.collectives`; here they find their operands."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardproof.oracles import collectives, ragged
from shardproof.oracles.collectives import Groups
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.divergence import COLLECTIVE_KINDS, axes_of, check_agreement
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.errors import SimulationError
from shardproof.properties.engines.simulate.location import location
from shardproof.properties.engines.simulate.record import Collective, Traffic, bytes_of, participants
from shardproof.properties.engines.simulate.rules import rule

Oracle = Callable[..., np.ndarray]


def executed(env: Env, equation: Any, traffic: Traffic = ()) -> tuple[tuple[str, ...], Groups]:
    """Checks that a collective can run, writes it to the record, and returns its axes and groups.

    Raises:
        CollectiveMismatch: if only a part of a process group executes it.
    """
    axes, groups = axes_of(equation), equation.params.get("axis_index_groups")
    check_agreement(env, equation, axes, groups)
    if env.recorder is not None and axes:
        name, perm = equation.primitive.name, equation.params.get("perm")
        env.recorder.executed(
            Collective(
                kind=COLLECTIVE_KINDS[name],
                primitive=name,
                axes=axes,
                mesh=env.mesh,
                groups=None if groups is None else tuple(tuple(group) for group in groups),
                perm=None if perm is None else tuple((int(source), int(target)) for source, target in perm),
                operand_bytes=sum(bytes_of(v.aval) for v in equation.invars[: len(equation.outvars)]),
                result_bytes=sum(bytes_of(v.aval) for v in equation.outvars),
                location=location(equation),
                devices=participants(env.active, env.mesh),
                traffic=traffic,
            )
        )
    return axes, groups


def connected(env: Env, x: np.ndarray, axes: Sequence[str]) -> tuple[np.ndarray, MeshCase]:
    """`x` held by every device along `axes`, and the mesh of the devices that hold it."""
    sizes = tuple(n if name in axes else x.shape[i] for i, (name, n) in enumerate(env.mesh.shape.items()))
    mesh = env.mesh if sizes == env.mesh.sizes else MeshCase(env.mesh.axis_names, sizes)
    return np.broadcast_to(x, (*sizes, *x.shape[len(sizes) :])), mesh


def same_for_all(env: Env, result: np.ndarray, axes: Sequence[str], groups: Groups) -> np.ndarray:
    """A result that all participants hold alike, held once."""
    if groups is not None:
        return result
    once = tuple(slice(1) if name in axes else slice(None) for name in env.mesh.axis_names)
    return result[once].copy()


def through(env: Env, x: np.ndarray, axes: Sequence[str], oracle: Oracle, **parameters: Any) -> np.ndarray:
    """What an oracle says that the devices receive."""
    blocks, mesh = connected(env, x, axes)
    return oracle(blocks, mesh, tuple(axes), **parameters)


def all_reduce(env: Env, equation: Any, operands: Sequence[np.ndarray], op: str) -> list[np.ndarray]:
    """Reduces every operand over mesh axes and, where a number stands among the axes, over that dimension."""
    axes, groups = executed(env, equation)
    names = equation.params["axes"]
    positional = tuple(env.lead + name for name in names if isinstance(name, int))
    results = []
    for x, variable in zip(operands, equation.outvars, strict=True):
        if positional:
            function: Any = {"sum": np.sum, "max": np.max, "min": np.min}[op]
            x = np.asarray(function(x.astype(wide(x.dtype)), axis=positional)).astype(x.dtype)
        if axes:
            x = same_for_all(env, through(env, x, axes, collectives.all_reduce, op=op, groups=groups), axes, groups)
        results.append(x.astype(variable.aval.dtype, copy=False))
    return results


@rule("psum", "psum_invariant", "unreduced_psum")
def psum(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The sum over the participants."""
    return all_reduce(env, equation, operands, "sum")


@rule("pmax")
def pmax(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The maximum over the participants."""
    return all_reduce(env, equation, operands, "max")


@rule("pmin")
def pmin(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The minimum over the participants."""
    return all_reduce(env, equation, operands, "min")


@rule("all_gather", "all_gather_invariant", "all_gather_reduced")
def all_gather(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """All participants' blocks in logical order."""
    axes, groups = executed(env, equation)
    parameters = {
        "axis": equation.params["all_gather_dimension"],
        "tiled": equation.params["tiled"],
        "groups": groups,
    }
    results = [through(env, x, axes, collectives.all_gather, **parameters) for x in operands]
    return [same_for_all(env, result, axes, groups) for result in results]


@rule("reduce_scatter", "unreduced_reduce_scatter")
def reduce_scatter(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Each participant's piece of the sum."""
    axes, groups = executed(env, equation)
    parameters = {
        "scatter_dimension": equation.params["scatter_dimension"],
        "tiled": equation.params["tiled"],
        "groups": groups,
    }
    return [through(env, x, axes, collectives.reduce_scatter, **parameters) for x in operands]


@rule("all_to_all")
def all_to_all(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Piece i of every participant's block, on participant i.

    Where `lax.all_to_all` is not tiled, it gives the primitive a new dimension to concatenate along.
    """
    axes, groups = executed(env, equation)
    parameters = {
        "split_axis": equation.params["split_axis"],
        "concat_axis": equation.params["concat_axis"],
        "tiled": True,
        "groups": groups,
    }
    return [through(env, x, axes, collectives.all_to_all, **parameters) for x in operands]


@rule("ppermute")
def ppermute(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Each source's block, on its destination; zeros where nothing arrives.

    The pairs number the participants in mesh order, whatever the order of the tuple: so does JAX 0.10,
    and later versions refuse any other tuple.

    Raises:
        SimulationError: for a tuple whose participants are not in mesh order, where JAX refuses it.
    """
    axes = axes_of(equation)
    ordered = env.mesh.in_mesh_order(axes)
    # in another order than the mesh's, axes of several devices have participants in another order than devices
    if jax.__version_info__ >= (0, 11) and axes != ordered and env.mesh.longer(axes) != env.mesh.longer(ordered):
        raise SimulationError(
            f"ppermute over {axes} on the mesh {env.mesh}: this version of JAX lowers no axis tuple that is not in "
            f"mesh order, {ordered}, at {location(equation)}"
        )
    executed(env, equation)
    return [through(env, x, ordered, collectives.permute, perm=equation.params["perm"]) for x in operands]


@rule("pbroadcast")
def pbroadcast(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The block of one participant, on all of them."""
    axes, groups = executed(env, equation)
    root = equation.params["source"]
    results = [through(env, x, axes, collectives.broadcast, root=root) for x in operands]
    return [same_for_all(env, result, axes, groups) for result in results]


@rule("axis_index")
def axis_index(env: Env, equation: Any) -> np.ndarray:
    """The logical index of every device."""
    axes = axes_of(equation)
    index = collectives.axis_index(env.mesh, axes)
    once = tuple(slice(None) if name in axes else slice(1) for name in env.mesh.axis_names)
    return index[once].reshape(index[once].shape + (1,) * (env.lead - index.ndim))


@rule("pvary", "preduced", "vary_unreduced_cast", "reduced_vary_cast")
@rule("vary_unreduced_cast_p", "reduced_vary_cast_p")  # their names in JAX 0.10
def cast(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """The operands: only their types change."""
    return list(operands)


@rule("ragged_all_to_all")
def ragged_all_to_all(env: Env, equation: Any, *operands: np.ndarray) -> np.ndarray:
    """Rows to where each sender says that they go in the receiver's output.

    Raises:
        RaggedMismatch: if the participants' offsets and sizes contradict each other, or are of several dtypes: of those
            XLA makes no program.
    """
    if len(kinds := dict.fromkeys(x.dtype.name for x in operands[2:])) > 1:
        raise ragged.RaggedMismatch(
            f"ragged_all_to_all: input_offsets, send_sizes, output_offsets and recv_sizes are {' and '.join(kinds)}: "
            "expected one dtype; XLA takes no others"
        )
    axes, groups = axes_of(equation), equation.params["axis_index_groups"]
    check_agreement(env, equation, axes, groups)
    blocks = [env.everywhere(x) for x in operands]
    if env.active is not None:  # the others' metadata means nothing: nothing of theirs is sent
        sending = env.active[..., None]
        blocks[3], blocks[5] = np.where(sending, blocks[3], 0), np.where(sending, blocks[5], 0)
    result = ragged.ragged_all_to_all(*blocks, mesh=env.mesh, axes=axes, groups=groups)
    sent: dict[tuple[int, int], int] = {}
    if env.recorder is not None:
        row = bytes_of(equation.invars[0].aval) // max(1, equation.invars[0].aval.shape[0])
        for s in ragged.slices(*blocks[2:], mesh=env.mesh, axes=axes, groups=groups):
            sent[s.source, s.destination] = sent.get((s.source, s.destination), 0) + s.size * row
    executed(env, equation, traffic=tuple((*pair, size) for pair, size in sent.items() if size))
    return result
