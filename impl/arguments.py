"""Checks of what a collective is called with, before anything runs.

Every message names the function, the argument, its value, what was expected, and the mesh.
"""

from collections.abc import Iterable, Sequence
from typing import NoReturn

import jax
from jax import lax

AxisName = str | Sequence[str]


def mesh_text() -> str:
    """The mesh that the function runs under, as messages show it: `(dp=2, tp=4)`."""
    shape = jax.sharding.get_abstract_mesh().shape
    return "(" + ", ".join(f"{name}={size}" for name, size in shape.items()) + ")"


def refuse(function: str, argument: str, value: object, expected: str) -> NoReturn:
    """Raises the ValueError that says what is wrong with an argument."""
    raise ValueError(f"{function}: {argument}={value!r}: expected {expected}, on the mesh {mesh_text()}")


def check_axes(function: str, axis_name: AxisName) -> tuple[str, ...]:
    """The axis tuple that `axis_name` names.

    Raises:
        ValueError: if a name is unbound or appears twice, or there is none.
    """
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if not axes:
        refuse(function, "axis_name", axis_name, "at least one mesh axis")
    if len(set(axes)) != len(axes):
        refuse(function, "axis_name", axis_name, "each mesh axis at most once")
    for name in axes:
        try:
            lax.axis_size(name)
        except NameError:
            refuse(function, "axis_name", axis_name, f"bound axis names ({name!r} is not one)")
    return axes


def check_dimension(function: str, argument: str, dimension: int, rank: int) -> int:
    """`dimension` counted from the front.

    Raises:
        ValueError: unless -rank <= dimension < rank.
    """
    if not -rank <= dimension < rank:
        refuse(function, argument, dimension, f"a dimension in [{-rank}, {rank})")
    return dimension % rank


def check_divides(function: str, argument: str, dimension: int, size: int, parts: int, tiled: bool) -> None:
    """The dimension, as it was given, divides into one piece per member (`tiled`), or has one entry per member.

    Raises:
        ValueError: if it does not.
    """
    if tiled and size % parts:
        refuse(function, argument, dimension, f"a dimension whose size is a multiple of {parts} (it has size {size})")
    if not tiled and size != parts:
        refuse(function, argument, dimension, f"a dimension of size {parts} when not tiled (it has size {size})")


def check_index(function: str, argument: str, index: int, size: int) -> None:
    """`index` is the logical index of a member.

    Raises:
        ValueError: unless 0 <= index < size.
    """
    if not 0 <= index < size:
        refuse(function, argument, index, f"a logical index in [0, {size})")


def check_permutation(function: str, perm: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """`perm` as a list of (source, destination) pairs of logical indices.

    Raises:
        ValueError: if an index is out of range, or a source or a destination appears twice.
    """
    pairs = [(int(source), int(destination)) for source, destination in perm]
    for side in zip(*pairs, strict=True):
        if any(not 0 <= index < size for index in side):
            refuse(function, "perm", pairs, f"logical indices in [0, {size})")
        if len(set(side)) != len(side):
            refuse(function, "perm", pairs, "each source and each destination at most once")
    return pairs


def check_groups(function: str, groups: Sequence[Sequence[int]] | None, size: int) -> list[list[int]] | None:
    """`axis_index_groups` as lists.

    Raises:
        ValueError: unless the groups partition range(size) into lists of equal length.
    """
    if groups is None:
        return None
    lists = [list(group) for group in groups]
    if sorted(index for group in lists for index in group) != list(range(size)) or len({len(g) for g in lists}) != 1:
        refuse(function, "axis_index_groups", groups, f"a partition of range({size}) into groups of equal length")
    return lists
