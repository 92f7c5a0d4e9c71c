"""Which devices a collective connects: the three spellings of replica groups, and source-target pairs."""

import itertools
import math

import numpy as np

from shardproof.properties.communication.text import HloError, closing, split

Groups = tuple[tuple[int, ...], ...]


def lists(text: str) -> Groups:
    """`{{0,1},{2,3}}` as tuples; `{}` is the empty one.

    Raises:
        HloError: if it is not of this form.
    """
    text = text.strip()
    if not (text.startswith("{") and closing(text) == len(text) - 1):
        raise HloError(f"groups {text!r}: expected lists in braces")
    parts = split(text[1:-1])
    if parts and not parts[0].startswith("{"):  # one list stands alone
        parts = [text]
    try:
        return tuple(tuple(int(number) for number in split(part[1:-1])) for part in parts)
    except ValueError as error:
        raise HloError(f"groups {text!r}: expected numbers in braces") from error


def numbers(text: str) -> tuple[int, ...]:
    """`[2,4]` or `(1,0)` without its brackets, as numbers."""
    return tuple(int(number) for number in split(text[1:-1]))


def replica_groups(text: str) -> Groups:
    """The groups of a collective, in any of the three spellings.

    `{{0,1},{2,3}}` lists them. `[2,4]<=[8]` is iota: the numbers below 8, as 2 groups of 4; with
    `T(1,0)` they are shaped as on the right, transposed, and then cut. `mesh['a'=2,'b'=4] {'a'}` names
    the axes of a mesh over which devices are connected, the last one varying fastest; which devices these are
    may be said in between, as in `mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}`, or `device_ids=(0,2,1,3)`.

    Raises:
        HloError: for any other text.
    """
    text = text.strip()
    try:
        if text.startswith("mesh["):
            return _of_mesh(text)
        if text.startswith("["):
            return _of_iota(text)
    except (ValueError, IndexError, KeyError) as error:
        raise HloError(f"replica_groups={text}: {error}") from error
    return lists(text)


def _iota(text: str) -> np.ndarray:
    """`[8]`, `[2,4]T(1,0)`: the numbers below the product, shaped and transposed."""
    end = closing(text)
    shape = numbers(text[: end + 1])
    result = np.arange(math.prod(shape)).reshape(shape)
    order = text[end + 1 :].strip()
    if order:
        if not order.startswith("T("):
            raise ValueError(f"expected a transpose, found {order!r}")
        result = result.transpose(numbers(order[1:]))
    return result


def _of_iota(text: str) -> Groups:
    shape, arrow, source = text.partition("<=")
    if not arrow:
        raise ValueError("expected '<='")
    table = _iota(source.strip()).reshape(numbers(shape.strip()))
    return tuple(tuple(map(int, row)) for row in table)


def _devices(text: str, count: int) -> np.ndarray:
    """`device_ids=([2,2]T(1,0))`, `device_ids=(0,2,1,3)`, or nothing: the devices of a mesh, in its order."""
    if not text:
        return np.arange(count)
    if not text.startswith("device_ids=("):
        raise ValueError(f"expected the axes in braces, found {text!r}")
    listed = text.removeprefix("device_ids=")
    return _iota(listed[1:-1]) if listed.startswith("([") else np.array(numbers(listed))


def _of_mesh(text: str) -> Groups:
    end = closing(text, 4)
    axes = [part.partition("=") for part in split(text[5:end])]
    sizes = {name.strip().strip("'\""): int(size) for name, _, size in axes}
    rest = text[end + 1 :].strip().removeprefix(",").strip()
    opens = rest.rindex("{")
    devices = _devices(rest[:opens].strip(), math.prod(sizes.values()))
    named = [_part(part, sizes) for part in split(rest[opens + 1 : closing(rest, opens)])]
    pieces = _pieces(sizes, named)
    chosen = [i for name, start, end in named for i, p in enumerate(pieces) if p[0] == name and start <= p[1] < end]
    kept = [i for i in range(len(pieces)) if i not in chosen]
    table = devices.reshape([end // start for _, start, end in pieces])
    participants = table.transpose(*kept, *chosen).reshape(-1, math.prod(end // start for _, start, end in named))
    return tuple(tuple(map(int, row)) for row in participants)


def _part(text: str, sizes: dict[str, int]) -> tuple[str, int, int]:
    """An axis and the products of sizes between which the part of it is: `'dp':(2)4` is dp from 2 to 8."""
    name, of_one, part = text.partition(":")
    name = name.strip().strip("'\"")
    if not of_one:
        return name, 1, sizes[name]
    before, _, size = part.strip().removeprefix("(").partition(")")
    start = int(before)
    end = start * int(size)
    if sizes[name] % end:
        raise ValueError(f"expected a part of an axis of size {sizes[name]}, found {text!r}")
    return name, start, end


def _pieces(sizes: dict[str, int], named: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """All axes, cut where parts of them begin and end, as such parts."""
    found = []
    for name, size in sizes.items():
        edges = sorted({1, size, *(edge for other, *both in named if other == name for edge in both)})
        found += [(name, start, end) for start, end in itertools.pairwise(edges)] or [(name, 1, 1)]
    return found
