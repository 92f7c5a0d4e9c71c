"""What is wrong with the blocks, in words: the most specific explanation of all of them, or one for each group.

A statement is made only if it is true of all runs of the function that there are (see `witnesses`), and if
the right blocks, which are always the first alternative, are clearly others.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.diagnosis.conditions import (
    CIRCUMSTANCES,
    another_formula,
    condition,
    flushed,
    overflows,
    rounding,
    starts_from_zero,
)
from shardproof.properties.report.diagnosis.explanations import EXPLANATIONS, LAST, Explanation
from shardproof.properties.report.diagnosis.narrowing import narrowed, rounded_constant, rounds_at
from shardproof.properties.report.diagnosis.regions import boxes, words
from shardproof.properties.report.diagnosis.repairs import repaired
from shardproof.properties.report.diagnosis.roles import partial_results
from shardproof.properties.report.diagnosis.scene import Scene
from shardproof.properties.report.diagnosis.variants import right_for, right_shape_for
from shardproof.properties.report.diagnosis.witnesses import scenes_of
from shardproof.properties.runner.violation import LawViolation

LISTED = 6
"""How many devices are named one by one."""

LOOKED_AT = 64
"""How many wrong blocks are explained: those of a large mesh are wrong in the same way."""


SMALL = "  in blocks this small; in larger ones it is otherwise"
"""What is added to what is said of whole blocks, and contradicted by larger ones on which the function was run."""


def diagnose(violation: LawViolation) -> list[str]:
    """Lines that say what is wrong, the details indented; none where blocks were not compared."""
    difference = violation.difference
    if difference is None:
        return []
    if difference.of == "replica":
        return ["replicas disagree: devices that are typed to hold the same block hold different ones"]
    if not difference.comparable:
        return [*_not_comparable(difference, len(violation.case.mesh.sizes)), *right_shape_for(violation)]
    if difference.of == "array":  # one array that was put together, not one block per device
        wrong = int(difference.wrong[(0,) * len(violation.case.mesh.sizes)].sum())
        return [f"other values: the array that out_specs puts together is wrong at {wrong} places"]
    scenes = scenes_of(violation)
    if small := flushed(scenes):
        return [small]
    if violation.in_doubles:
        return (
            right_for(scenes, numbers=False)
            or repaired(violation)
            or [_formula(difference, rounded_constant(violation))]
        )
    by = partial(rounds_at, violation)
    coarse = None if difference.by_formula else rounding(scenes, difference, by=by)
    if coarse is not None:
        return right_for(scenes, numbers=False) or [coarse, *_claim(violation)]
    special = starts_from_zero(scenes) or partial_results(scenes)
    if special is not None:
        return [special]
    devices = scenes[0].devices[:LOOKED_AT]
    lines, left = _explain(scenes, devices)
    also = repaired(violation, numbers=True) or right_for(scenes, numbers=bool(left))
    if left and (special := condition(scenes)) is not None:
        # where it shows is no cause where there is one
        return also if also and special.startswith(CIRCUMSTANCES) else [special, *also]
    # what holds of blocks of this shape may be another thing for larger ones
    alike = [s for s in scenes if s.actual.shape == scenes[0].actual.shape]
    parts = boxes(alike, left)
    for some, explanations in (
        (alike, EXPLANATIONS),
        ([s.within(parts) for s in alike], EXPLANATIONS),
        (alike, LAST),
    ):
        if left and not also:
            more, left = _explain(some, left, explanations)
            lines += more
            if more and some is alike and explanations is EXPLANATIONS and len(alike) < len(scenes):
                lines.append(SMALL)
    if left and not also:
        rest = np.isin(np.arange(len(scenes[0].wrong)), left).reshape(-1, *[1] * (scenes[0].wrong.ndim - 1))
        some = [dataclasses.replace(s, wrong=s.wrong & rest) for s in alike]
        coarse = rounding(some, difference, by=by) or rounding(some, difference, entered=True, by=by)
        if coarse and difference.by_formula:
            coarse = another_formula(alike)
        found = coarse or overflows(some)
        lines += [found] if found else narrowed(violation) or repaired(violation) or [_other(alike, left)]
    return [*lines, *also]


def _formula(difference: Difference, constant: str) -> str:
    """Of what is too little to show in the case's own dtypes: by how much it is wrong, or which constant may be."""
    off = np.abs(difference.actual - difference.expected)[difference.wrong]
    at = int(np.argmax(off))
    if difference.bound is None or not np.isfinite(off[at]):
        return "another formula: in double precision the values are others"
    what = f"constant: {constant};" if constant else "formula:"
    return (
        f"another {what} in double precision off by up to {off[at]:.2g}, where roundings of doubles and of constants "
        f"explain {np.abs(difference.bound[difference.wrong][at]):.2g}"
    )


def _claim(violation: LawViolation) -> list[str]:
    """What to claim, where it may be that a function is meant to add up in 16 bits."""
    case, features = violation.case, violation.implementation.features
    known = CONTRACTS[case.contract].features
    short = any(operand.dtype in ("bfloat16", "float16") for operand in case.operands)
    if not short or "narrow_accumulation" not in known or "narrow_accumulation" in features:
        return []
    return [
        "16-bit floats are to be added up in float32: a function that adds up in 16 bits claims narrow_accumulation"
    ]


def _not_comparable(difference: Difference, lead: int) -> list[str]:
    expected, actual = difference.expected, difference.actual
    if actual.shape == expected.shape:
        with np.errstate(all="ignore"):
            right = np.array_equal(actual.astype(expected.dtype), expected)
        values = "the values are right" if right else "the values are wrong as well"
        return [f"wrong dtype: {actual.dtype} where {expected.dtype} is right; {values}"]
    shapes = actual.shape[lead:], expected.shape[lead:]
    told = f"wrong shape: {shapes[0]} where {shapes[1]} is right"
    if np.prod(shapes[0]) != np.prod(shapes[1]) or not actual.size:
        return [told]
    if actual.dtype == expected.dtype and np.array_equal(actual.reshape(expected.shape), expected, equal_nan=True):
        # of a single element nothing can be in another order
        return [told, "the elements are right, and in the right order"] if expected[0].size > 1 else [told]
    return [told, "the number of elements is right; they are not in order"]


def _explain(
    scenes: Sequence[Scene], devices: Sequence[int], explanations: Sequence[Explanation] = EXPLANATIONS
) -> tuple[list[str], list[int]]:
    """The explanation of all these devices, or one for each group, and the devices that have none."""
    first, groups = scenes[0], []
    for explanation in explanations:
        phrases: dict[int, str] = {}
        for device in devices:
            phrase = explanation.phrase(scenes, device)
            if phrase is not None:
                phrases[device] = phrase
        if len(phrases) == len(devices):
            return _say(first, explanation, phrases, everyone=list(devices) == first.devices[:LOOKED_AT]), []
        groups.append((explanation, phrases))
    lines: list[str] = []
    left = list(devices)
    for explanation, phrases in groups:
        found = {d: phrases[d] for d in left if d in phrases}
        if found:
            lines += _say(first, explanation, found, everyone=False)
            left = [d for d in left if d not in found]
    return lines, left


def _place(scene: Scene, device: int) -> str:
    """A device, and the part of its block that is looked at."""
    box = scene.boxes.get(device)
    return scene.name(device) if box is None else f"{scene.name(device)} at {words(box, scene.actual.shape[1:])}"


def _say(scene: Scene, explanation: Explanation, phrases: dict[int, str], *, everyone: bool) -> list[str]:
    """One line where all devices have the same wrong, a line per device otherwise."""
    parts = {words(scene.boxes[d], scene.actual.shape[1:]) if d in scene.boxes else "" for d in phrases}
    if len(set(phrases.values())) == 1 and len(parts) == 1:
        phrase, part = next(iter(phrases.values())), next(iter(parts))
        if len(phrases) == 1:
            return [f"{explanation.name}: {_place(scene, next(iter(phrases)))} {phrase}"]
        if everyone:
            whole = f"every wrong block{f' at {part}' if part else ''} {phrase}"
            return [f"{explanation.name}: {whole}".replace("block holds its", "device holds its")]
    lines = [f"{explanation.name}: {explanation.sentence}"]
    lines += [f"  {_place(scene, device)} {phrase}" for device, phrase in list(phrases.items())[:LISTED]]
    if len(phrases) > LISTED:
        lines.append(f"  … and {len(phrases) - LISTED} more")
    return lines


def _other(scenes: Sequence[Scene], devices: Sequence[int]) -> str:
    """What is certain where nothing explains it: on which devices, and in which part of their blocks."""
    scene = scenes[0]
    names = ", ".join(scene.name(d) for d in devices[:LISTED])
    more = f" and {len(devices) - LISTED} more" if len(devices) > LISTED else ""
    parts = boxes(scenes, devices)
    shape = scene.actual.shape[1:]
    where = {words(parts[d], shape) if d in parts else "" for d in devices}
    part = next(iter(where)) if len(where) == 1 else ""
    return f"other values: on {names}{more}{f', at {part} of each block' if part else ''}"
