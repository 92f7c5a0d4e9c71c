"""What the wrong result would be right for: another axis order, offset or dimension, other parts that meet."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import is_float, rounded, unit_roundoff
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.batches import oracle_blocks
from shardproof.properties.precision.numbers import is_moved, largest_of, operands
from shardproof.properties.programs.violation import SuiteError
from shardproof.properties.report.diagnosis.alternatives import (
    Made,
    alone,
    constant,
    mistaken,
    replaced,
    together,
    unfed,
)
from shardproof.properties.report.diagnosis.conversions import as_wide, numbers_instead, results_instead
from shardproof.properties.report.diagnosis.products import PARTS
from shardproof.properties.report.diagnosis.scene import CLEAR, Scene
from shardproof.properties.runner.violation import LawViolation

MOST = 64
"""The largest mesh on which other arguments are tried."""

MISTAKEN: dict[str, Callable[[int, int], int]] = {
    "i - j": lambda i, j: i - j,
    "j - i": lambda i, j: j - i,
    "2i - j": lambda i, j: 2 * i - j,
    "j + 1": lambda i, j: j + 1,
    "j - 1": lambda i, j: j - 1,
    "i": lambda i, j: i,
    "0": lambda i, j: 0,
}
"""Which part may have met block j on participant i, instead of part j."""


MOST_CAUSES = 3
"""So many mistakes are told of the same results, at most."""

Sources = Callable[[Scene], Iterator[tuple[str, Made]]]
"""What the blocks of a scene may be, by what is said of them."""

COARSER = 4
"""So many roundings may lie between a wrong result and what explains it, where right ones are rounded as well."""


def right_for(scenes: Sequence[Scene], *, numbers: bool) -> list[str]:
    """One line that says for what else these would be the right blocks, if there is such a thing.

    Arguments:
        scenes: the run that failed, and others.
        numbers: whether other numbers are tried as well, not just other arguments.
    """
    scene = scenes[0]
    if not scene.inputs or scene.case.mesh.size > MOST or scene.actual[0].size == 0:
        return []
    shows = any(np.isfinite(as_wide(s.actual)[s.wrong]).any() for s in scenes)  # of NaN it cannot be told whose it is
    usual: tuple[Sources, ...] = (mistaken, constant, unfed, *((_arguments,) if shows else ()), _meetings)
    tried = (alone, *usual, together, replaced, numbers_instead, results_instead) if numbers and shows else usual
    for sources in tried:
        # of results that are those of two mistakes, either may be the cause; of derivatives, what has no other result
        most = MOST_CAUSES if sources is mistaken and scene.went_in == "block" else 1
        found = [*itertools.islice(_fitting(sources, scenes), most)]
        if not found:
            continue
        # on a single data set that fits two explanations, one of them does by coincidence
        guesses = [g for g in (alone, mistaken, together, replaced) if g in tried]
        fitting = itertools.chain.from_iterable(_fitting(guess, scenes) for guess in guesses)
        if len(scenes) > 1 or sources not in guesses or len([*itertools.islice(fitting, 2)]) == 1:
            first, *rest = found
            return [", or ".join([f"the blocks {first}", *(text.removeprefix("are the right ones ") for text in rest)])]
    return []


def _fitting(sources: Sources, scenes: Sequence[Scene]) -> Iterator[str]:
    """What fits in all scenes."""
    return (text for text, _ in sources(scenes[0]) if _fits([(s, dict(sources(s)).get(text)) for s in scenes]))


def _fits(pairs: Sequence[tuple[Scene, Made | None]]) -> bool:
    """Whether the implementation's blocks are these in all scenes, and clearly not the right ones in some of them."""
    clear = False
    for scene, made in pairs:
        blocks = None if made is None else _blocks(scene, made)
        if blocks is None or not _holds(scene, blocks):
            return False
        clear |= not scene.same(blocks, scene.expected, CLEAR * scene.tolerance)[scene.wrong].all()
    return clear


def _blocks(scene: Scene, made: Made) -> np.ndarray | None:
    try:
        with np.errstate(all="ignore"):
            blocks = made()
    except (SuiteError, ValueError, IndexError, ZeroDivisionError, TypeError):  # arguments that do not fit these blocks
        return None
    if scene.went_in != "block":  # derivatives are exact
        blocks = rounded(blocks, scene.actual.dtype)
    return blocks.reshape(-1, *blocks.shape[len(scene.case.mesh.sizes) :])


def _holds(scene: Scene, blocks: np.ndarray) -> bool:
    if blocks.shape != scene.actual.shape or blocks.dtype != scene.actual.dtype:
        return False
    same = scene.same(blocks, scene.actual)
    right = is_float(blocks.dtype) and not scene.devices and not is_moved(scene.case)
    if scene.tolerance or right:
        # the tolerance is that of the right values, of which larger ones have another; of right blocks it is not known
        size = np.abs(as_wide(blocks))
        scale = np.where(np.isfinite(size), size, 0)
        if right:
            scale = np.maximum(scale, max(_largest(x) for x in [scene.actual, *scene.inputs]))
        with np.errstate(invalid="ignore"):
            same |= np.abs(as_wide(blocks) - as_wide(scene.actual)) <= COARSER * unit_roundoff(blocks.dtype) * scale
    return bool(same.all())


def _largest(x: np.ndarray) -> float:
    """The largest finite magnitude of floats; 0 of other numbers."""
    return largest_of(x) if is_float(x.dtype) else 0.0


def _arguments(scene: Scene) -> Iterator[tuple[str, Made]]:
    if scene.went_in != "block" and not scene.actual.any():
        return  # derivatives are zero for many a reason, and for others there is none in some argument
    for text, case in variants(scene.case):
        yield f"are the right ones for {text}", partial(scene.oracle, case, scene.inputs)


def _meetings(scene: Scene) -> Iterator[tuple[str, Made]]:
    if len(scene.inputs) != len(scene.case.operands) or scene.went_in != "block":
        return
    for text, inputs in meetings(scene):
        yield f"are the right ones if {text}", partial(scene.oracle, scene.case, inputs)


def right_shape_for(violation: LawViolation) -> list[str]:
    """One line that says for what other arguments blocks of this shape would be right, if for any."""
    case, data, difference = violation.case, violation.data, violation.difference
    if data is None or difference is None or difference.of not in ("result", "array") or case.mesh.size > MOST:
        return []
    if difference.of == "array" or case.tree:
        return []
    blocks = [case.blocks(i, a) for i, a in enumerate(operands(case, data))]
    for text, other in variants(case):
        try:
            right = oracle_blocks(other, blocks)[0]
        except (SuiteError, ValueError, IndexError, ZeroDivisionError):  # arguments that do not fit these blocks
            continue
        alike = right.shape == difference.actual.shape and right.dtype == difference.actual.dtype
        if alike and right.size and nan_equal(right, difference.actual).all():
            return [f"the blocks are the right ones for {text}"]
    return []


def meetings(scene: Scene) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Operands of a product of which each device has the parts in the order in which a mistaken index takes them."""
    case = scene.case
    if case.contract not in PARTS:
        return
    moving, position, kind, stays, dimension = PARTS[case.contract]
    p, operand = case.participants, scene.inputs[position]
    participants = axis_index(case.mesh, case.axes)
    for text, part in MISTAKEN.items():
        taken = operand.copy()
        for device in np.ndindex(case.mesh.sizes):
            parts = np.split(operand[device], p, axis=dimension)
            order = [part(int(participants[device]), j) % p for j in range(p)]
            taken[device] = np.concatenate([parts[j] for j in order], axis=dimension)
        inputs = [taken if i == position else x for i, x in enumerate(scene.inputs)]
        yield (
            f"block j of {moving} met {kind} ({text}) mod {p} of {stays} on participant i, instead of {kind} j",
            inputs,
        )


def variants(case: Case) -> Iterator[tuple[str, Case]]:
    """The same case with one argument changed the way it is mistaken, the likeliest first."""
    long = case.mesh.longer(case.axes)  # where the others stand changes nothing
    in_order = list(case.mesh.in_mesh_order(long))
    orders = [o for o in map(list, itertools.permutations(long)) if o != long]
    for order in sorted(orders, key=lambda o: o != in_order):
        left = iter(order)
        axes = tuple(next(left) if name in long else name for name in case.axes)
        why = " (the order of the mesh)" if order == in_order else ""
        yield f"axis_name={axes}{why}", dataclasses.replace(case, axis_name=axes)
    for name, value in _other_values(case):
        yield f"{name}={value!r}", case.with_params(**{name: value})
    params = case.keywords
    for (name, value), (other, its) in itertools.combinations(params.items(), 2):
        if type(value) is type(its) is int and value != its:
            yield f"{name}={its}, {other}={value}", case.with_params(**{name: its, other: value})
    if "perm" in params:
        turned = tuple((to, source) for source, to in params["perm"])
        if set(turned) != set(params["perm"]):
            yield "perm with source and destination swapped", case.with_params(perm=turned)
        if params["perm"]:
            yield "perm without its last pair", case.with_params(perm=params["perm"][:-1])
            yield "perm without its first pair", case.with_params(perm=params["perm"][1:])
    if "axis_index_groups" in params:
        yield "no axis_index_groups", case.with_params(axis_index_groups=None)
        return
    if "perm" in params or "root" in params:  # their numbers mean other devices over other axes
        return
    shorter: Iterator[tuple[str, ...]] = (
        axes for n in range(len(long) - 1, 0, -1) for axes in itertools.combinations(long, n)
    )
    varying = frozenset[str]().union(*(o.placement.axes for o in case.operands))  # over others, sums are multiples
    more = [n for n in case.mesh.longer(case.mesh.axis_names) if n in varying - set(case.axes)]
    wider: Iterator[tuple[str, ...]] = (
        (*case.axes, *names) for n in range(1, len(more) + 1) for names in itertools.combinations(more, n)
    )
    for axes in [*shorter, *wider]:
        yield f"axis_name={axes}", dataclasses.replace(case, axis_name=axes)


def _other_values(case: Case) -> Iterator[tuple[str, object]]:
    rank = len(case.operands[0].block)
    for name, value in case.params:
        if name == "offset":
            others = {other % case.participants: other for other in (1, value - 1, value + 1, 0, -value)}
            yield from ((name, other) for rest, other in reversed(others.items()) if rest != value % case.participants)
        elif name in ("axis", "scatter_dimension", "split_axis", "concat_axis"):
            sides = rank + (name == "axis" and not case.keywords.get("tiled", True))
            yield from ((name, other) for other in range(sides) if other != value % max(sides, 1))
        elif name == "root":
            yield from ((name, other) for other in range(case.participants) if other != value)
        elif name == "op" and case.participants > 1:
            yield from ((name, other) for other in ("sum", "mean", "max", "min") if other != value)
        elif type(value) is bool:
            yield name, not value
        elif type(value) is float and value:
            yield name, 0.0
        elif type(value) is int:
            option = CONTRACTS[case.contract].options.get(name)
            others = dict.fromkeys((0, -1, -value, value - 1, value + 1, 1))
            yield from ((name, n) for n in others if n != value and option is not None and option.accepts(case, n))
