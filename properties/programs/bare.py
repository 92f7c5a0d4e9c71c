"""A function of blocks that has no contract, as a program."""

import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.programs.program import Argument, Program, partition_spec


def parse_arrays(text: str, mesh: MeshCase, dtype: str) -> tuple[Argument, ...]:
    """The whole arrays that `512@dp@tpx2048,int32:2048` lists: sides with the axes that shard each, and dtypes.

    Raises:
        RequestError: if one cannot be read, names no axis of the mesh, or does not divide.
    """
    found = []
    names = "|".join(sorted(mesh.axis_names, key=len, reverse=True))  # which may have an x
    side = re.compile(rf"([1-9]\d*)((?:@(?:{names}))*)(?:x(?=\d)|$)")
    for part in text.split(","):
        own, _, sides = part.strip().rpartition(":")
        matches = [*side.finditer(sides)]
        if not sides or "".join(match[0] for match in matches) != sides:
            example = f"512x2048@{mesh.axis_names[-1]},int32:2048"
            raise RequestError(
                f"--shape={text}: expected the sides of whole arrays and axes of {mesh}, as in {example}"
            )
        shape = tuple(int(match[1]) for match in matches)
        entries = tuple(tuple(match[2].split("@")[1:]) for match in matches)
        for size, entry in zip(shape, entries, strict=True):
            if size % mesh.axis_size(entry):
                raise RequestError(f"--shape={text}: expected {'@'.join(entry)} of {mesh} to divide {size}")
        try:
            found.append(Argument(shape, as_dtype(own or dtype), entries))
        except ValueError as error:
            raise RequestError(f"--shape={text}: {error}") from error
    if math.prod(size for one in found for size in one.shape) > 2**128:
        raise RequestError(f"--shape={text}: expected smaller arrays")
    return tuple(found)


def bare(function: Callable[..., Any], arguments: Sequence[Argument], mesh: MeshCase, axes: tuple[str, ...]) -> Program:
    """The program that calls `function(*blocks, axis_name)` inside `shard_map`, or `function(*blocks)`.

    The axis tuple is left out if it is empty, or if the function takes no more than the blocks.
    """
    more = (axes if len(axes) > 1 else axes[0],) if axes and takes(function, len(arguments) + 1) else ()

    def local(*blocks: jax.Array) -> list[jax.Array]:
        found: list[jax.Array] = jax.tree.leaves(function(*blocks, *more))
        return [cast_varying(y, mesh.axis_names).reshape(1, *y.shape) for y in found]

    def build(on: Any) -> Any:
        specs = tuple(partition_spec(argument.spec) for argument in arguments)
        return jax.jit(jax.shard_map(local, mesh=on, in_specs=specs, out_specs=PartitionSpec(mesh.axis_names)))

    return Program(build, tuple(arguments))


def takes(function: Callable[..., Any], count: int) -> bool:
    """True if a function can be called with `count` arguments by position, and nothing else."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
