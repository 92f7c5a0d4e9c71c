"""The layouts that results of single operations are typed with on explicit axes.

A result is typed dimension by dimension: where several dimensions of operands become one, it has the axes on which
those that are sharded agree (JAX, "Explicit sharding"). No axis may be in two dimensions. Where that leaves no type, or
more than one, the operation is refused unless the type of its result is given.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardproof.properties.conformance.operations import OPERATIONS
from shardproof.properties.conformance.program import Input, Program, Spec

Entry = Any
"""The axes that shard a dimension, or None."""


class Refused(Exception):
    """There is no type for the result, or more than one."""


class Ambiguous(Refused):
    """A sum over a dimension that both operands shard equally: the result may be sharded over these axes, or not."""


def expected(program: Program) -> Spec | None:
    """The layout of the result of a program of one operation; None where no rule is known.

    Raises:
        Refused: if the operation is to be refused.
    """
    if len(program.steps) != 1 or program.derivative or program.axes != "explicit":
        return None
    (step,) = program.steps
    if len(step.results) != 1 or program.batch or any(one.reduced for one in program.inputs):
        return None
    if step.params.get("to") is not None:
        return step.params["to"]
    inputs = {one.name: one for one in program.inputs}
    spec = _typed(OPERATIONS[step.op].keeps, [inputs[name] for name in step.operands], step.params, program.mesh)
    axes = [axis for entry in spec or () for axis in entry or ()]
    if len({*axes}) != len(axes):
        raise Refused(f"an axis shards two dimensions of {spec}")
    return spec


def _typed(rule: str, operands: Sequence[Input], params: Mapping[str, Any], mesh: Mapping[str, int]) -> Spec | None:
    specs = [one.spec for one in operands]
    if rule == "all":  # each dimension, from the back, as in those operands that shard it
        rank = max(map(len, specs))
        padded = ([None] * (rank - len(spec)) + spec for spec in specs)
        return [_agreed(entries) for entries in zip(*padded, strict=True)]
    if rule == "order":
        return [specs[0][i] for i in params["order"]]
    if rule == "dims":
        return [entry for i, entry in enumerate(specs[0]) if i not in params["dims"]]
    if rule == "spec":
        return params["spec"]
    if rule == "product":
        return _product(specs[0], specs[1], params["contracted"], params["batch"])
    if rule == "sizes" and all(operands[0].shape):
        return _reshaped(specs[0], operands[0].shape, params["sizes"], mesh)
    return None


def _agreed(entries: Sequence[Entry]) -> Entry:
    """The axes of those that are sharded, if they are all the same: no layout is nearer to one than to another."""
    sharded = [entry for entry in entries if entry is not None]
    if any(entry != sharded[0] for entry in sharded):
        raise Refused(f"{entries}: expected dimensions that are sharded equally, or not at all")
    return sharded[0] if sharded else None


def _product(left: Spec, right: Spec, contracted: Sequence[Sequence[int]], batch: Sequence[Sequence[int]]) -> Spec:
    """The type of a product of arrays: batch dimensions, what is left of the left operand, then of the right one.

    A contracted dimension that one operand shards is no obstacle: the sum is whole. Where both are sharded equally,
    every device has a part of the sum: that is Ambiguous, and needs `out_sharding`.

    JAX 0.12 refuses a batch dimension that one operand shards alone as well; JAX 0.10 takes the axes of the left one.
    """
    both, summed = ([(left[i], right[j]) for i, j in zip(*dims, strict=True)] for dims in (batch, contracted))
    types = [_agreed(pair) for pair in (*both, *summed)]
    if any(one and one == other for one, other in summed):
        raise Ambiguous("both operands shard what is contracted")
    kept = [entry for i, entry in enumerate(left) if i not in (*contracted[0], *batch[0])]
    others = [entry for i, entry in enumerate(right) if i not in (*contracted[1], *batch[1])]
    return [*types[: len(both)], *kept, *others]


def _reshaped(spec: Spec, shape: Sequence[int], sizes: Sequence[int], mesh: Mapping[str, int]) -> Spec:
    """The type of an array that is reshaped.

    Dimensions of one element aside, one dimension is split, or several adjacent ones are merged; else it is refused.
    Other dimensions are sharded as before. The axes of a dimension that is split are divided among the parts in their
    order, so that every device holds the elements that it held. A merged dimension has the axes of all in their order,
    if none that is not sharded is in front of one that is. What is not sharded at all may be reshaped to anything.
    """
    if not any(spec):
        return [None] * len(sizes)
    entries = iter([entry for entry, n in zip(spec, shape, strict=True) if n != 1])
    runs = [*_runs([n for n in shape if n != 1], [n for n in sizes if n != 1])]
    if sum((len(old), len(new)) != (1, 1) for old, new in runs) > 1:
        raise Refused(f"{shape} to {sizes}: expected one dimension to be split, or several to be merged into one")
    found: list[Entry] = []
    for old, new in runs:
        those = [next(entries) for _ in old]
        if len(old) == 1:
            found += _split(those[0], new, mesh)
        elif len(new) == 1 and [*map(bool, those)] == sorted(map(bool, those), reverse=True):
            found.append([axis for entry in those for axis in entry or ()] or None)
        else:
            raise Refused(f"{shape} to {sizes}: {old} sharded over {those} become {new}")
    left = iter(found)
    return [None if n == 1 else next(left) for n in sizes]


def _runs(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The shortest runs of dimensions, from the front, that hold as many elements."""
    if not old and not new:
        return
    lengths = ((i, j) for i in range(1, len(old) + 1) for j in range(1, len(new) + 1))
    i, j = min((i, j) for i, j in lengths if math.prod(old[:i]) == math.prod(new[:j]))
    yield old[:i], new[:j]
    yield from _runs(old[i:], new[j:])


def _split(entry: Entry, sizes: Sequence[int], mesh: Mapping[str, int]) -> list[Entry]:
    left, found = [*(entry or ())], []
    for size in sizes:
        taken = []
        while left and size > 1:
            if size % mesh[left[0]]:
                raise Refused(f"{entry} among parts of {sizes}: expected every element to stay where it is")
            size //= mesh[left[0]]
            taken.append(left.pop(0))
        found.append(taken or None)
    return found


def plain(spec: object) -> list[tuple[str, ...]]:
    """A layout in one way: the axes of each dimension, to the last that is sharded."""
    entries = [() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in spec]  # type: ignore[attr-defined] # a PartitionSpec, too, is a sequence
    while entries and not entries[-1]:
        entries.pop()
    return entries
