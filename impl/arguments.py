"""Checks of arguments, before anything runs; each docstring says what must hold. See `shardproof.impl` for errors."""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, Mesh

AxisName = str | Sequence[str]
Axes = tuple[str, ...]


def as_axes(name: AxisName) -> Axes:
    """An axis name, or several in a tuple or list, as a tuple, which may be empty."""
    return (name,) if isinstance(name, str) else tuple(name)


def mesh_text(mesh: Mesh | AbstractMesh | None = None) -> str:
    """A mesh for messages, `(dp=2, tp=4)`; None: the one that the function runs under."""
    shape = (jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape
    return "(" + ", ".join(f"{name}={size}" for name, size in shape.items()) + ")"


def refuse(function: str, argument: str, value: object, expected: str) -> NoReturn:
    """Raises the ValueError that says what is wrong with an argument."""
    raise ValueError(f"{function}: {argument}={value!r}: expected {expected}, on the mesh {mesh_text()}")


def raise_unsupported(function: str, argument: str, value: object, expected: str) -> NoReturn:
    """Raises the NotImplementedError that says what this function does not support."""
    raise NotImplementedError(f"{function}: {argument}={value!r}: expected {expected}, on the mesh {mesh_text()}")


def check_axes(function: str, axis_name: AxisName, *, argument: str = "axis_name") -> Axes:
    """`axis_name` names one axis at least, all of them bound, each once; returns the axis tuple."""
    axes = as_axes(axis_name)
    if not axes:
        refuse(function, argument, axis_name, "at least one mesh axis")
    if len(set(axes)) != len(axes):
        refuse(function, argument, axis_name, "each mesh axis at most once")
    for name in axes:
        try:
            lax.axis_size(name)
        except NameError:
            refuse(function, argument, axis_name, f"bound axis names ({name!r} is not one)")
    return axes


def is_integer(value: object) -> bool:
    """True if a value is an integer that is known before tracing, Python's or NumPy's; bools are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_dimension(function: str, argument: str, dimension: int, rank: int) -> int:
    """`dimension` is in [-rank, rank); returns it counted from the front."""
    if not -rank <= dimension < rank:
        refuse(function, argument, dimension, f"a dimension in [{-rank}, {rank})")
    return dimension % rank


def check_divides(function: str, argument: str, dimension: int, size: int, parts: int, tiled: bool) -> None:
    """The dimension, as it was given, divides into one piece per participant (`tiled`), or has one entry for each."""
    if tiled and size % parts:
        refuse(function, argument, dimension, f"a dimension whose size is a multiple of {parts} (it has size {size})")
    if not tiled and size != parts:
        refuse(function, argument, dimension, f"a dimension of size {parts} when not tiled (it has size {size})")


def check_index(function: str, argument: str, index: int, size: int) -> None:
    """`index` is the logical index of a participant, in [0, size)."""
    if not 0 <= index < size:
        refuse(function, argument, index, f"a logical index in [0, {size})")


def check_permutation(function: str, perm: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """`perm` has pairs (source, destination) of logical indices in [0, size), each once on its side; returns a list."""
    pairs = [(int(source), int(destination)) for source, destination in perm]
    for side in zip(*pairs, strict=True):
        if any(not 0 <= index < size for index in side):
            refuse(function, "perm", pairs, f"logical indices in [0, {size})")
        if len(set(side)) != len(side):
            refuse(function, "perm", pairs, "each source and each destination at most once")
    return pairs


def check_groups(
    function: str, groups: Sequence[Sequence[int]] | None, size: int, *, even: bool = True
) -> list[list[int]] | None:
    """`axis_index_groups` partition range(size), into equal lengths if they have to be `even`; returns lists."""
    if groups is None:
        return None
    lists = [list(group) for group in groups]
    partition = all(lists) and sorted(index for group in lists for index in group) == list(range(size))
    if not partition or (even and len({len(g) for g in lists}) != 1):
        length = " of equal length" if even else ", none of them empty"
        refuse(function, "axis_index_groups", groups, f"a partition of range({size}) into groups{length}")
    return lists


def check_op(function: str, op: str, known: Iterable[str]) -> None:
    """`op` is one of the reductions known."""
    if op not in known:
        refuse(function, "op", op, f"one of {', '.join(known)}")


def check_varies(function: str, x: jax.Array, axes: tuple[str, ...]) -> None:
    """`x` varies along all of the axis tuple or none of it: a sum over a part of it would mean something else."""
    along = set(jax.typeof(x).manual_axis_type.varying) & set(axes)
    if along and along != set(axes):
        refuse(function, "x", str(jax.typeof(x)), f"a value varying along all of {axes} or none of them")


def check_power_of_two(function: str, axes: Axes) -> None:
    """The participants are a power of two."""
    p, axis_name = lax.axis_size(axes), axes[0] if len(axes) == 1 else axes
    if p & (p - 1):
        raise_unsupported(function, "axis_name", axis_name, f"a power of two of participants (it has {p})")


def check_rank(function: str, argument: str, x: jax.Array, rank: int) -> None:
    """`x` has `rank` dimensions."""
    if x.ndim != rank:
        refuse(function, argument, str(jax.typeof(x)), f"an array of {rank} dimension{'s' * (rank != 1)}")


def check_shape(function: str, argument: str, x: jax.Array, shape: tuple[int, ...], text: str) -> None:
    """`x` has the shape that `text` describes."""
    if x.shape != shape:
        refuse(function, argument, str(jax.typeof(x)), f"an array of shape {shape}, {text}")


def check_kind(function: str, argument: str, x: jax.Array, kind: Any, text: str) -> None:
    """`x` has a dtype of the kind that `text` names."""
    if not jnp.issubdtype(x.dtype, kind):
        refuse(function, argument, str(jax.typeof(x)), f"an array of {text}")


def check_floating(function: str, **arrays: jax.Array) -> None:
    """All arrays are of a floating-point dtype."""
    for argument, x in arrays.items():
        check_kind(function, argument, x, jnp.floating, "real floating-point numbers")


def check_count(function: str, argument: str, value: object, *, optional: bool = False) -> None:
    """`value` is an integer of at least 0, known before tracing; None as well if it is `optional`."""
    if not (optional and value is None) and not (is_integer(value) and value >= 0):  # type: ignore[operator]
        expected = f"an integer of at least 0, known before tracing{', or None' if optional else ''}"
        refuse(function, argument, value, expected)


def refuse_batches(function: str, argument: str, value: object, expected: str, *operands: Any) -> None:
    """No operand is mapped by `jax.vmap`; raises NotImplementedError."""

    @jax.custom_batching.custom_vmap
    def unmapped(*operands: Any) -> jax.Array:
        return jnp.zeros(())

    @unmapped.def_vmap
    def _(size: int, batched: object, *operands: Any) -> tuple[jax.Array, bool]:
        raise_unsupported(function, argument, value, expected)

    unmapped(*lax.stop_gradient(operands))
