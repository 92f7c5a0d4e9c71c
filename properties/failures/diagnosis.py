"""What is wrong with the blocks, in words: the most specific explanation of all of them, or one for each group."""

from collections.abc import Sequence

import numpy as np

from properties.failures.explanations import EXPLANATIONS, Explanation
from properties.failures.scene import Scene, scene_of
from properties.failures.variants import right_for
from properties.laws.violation import Difference, LawViolation

LISTED = 6
"""How many devices are named one by one."""

LOOKED_AT = 64
"""How many wrong blocks are explained: those of a large mesh are wrong in the same way."""


def diagnose(violation: LawViolation) -> list[str]:
    """Lines that say what is wrong, the details indented; none where blocks were not compared."""
    difference = violation.difference
    if difference is None:
        return []
    if difference.what == "replica":
        return ["replicas disagree: devices that are typed to hold the same block hold different ones"]
    if not difference.comparable:
        return _not_comparable(difference, len(violation.case.mesh.sizes))
    scene = scene_of(violation)
    assert scene is not None
    if difference.what.startswith("result under"):  # one array that was put together, not one block per device
        return [f"other values: the array that out_specs puts together is wrong at {int(scene.wrong[0].sum())} places"]
    return [*_explain(scene, scene.devices[:LOOKED_AT]), *right_for(scene)]


def _not_comparable(difference: Difference, lead: int) -> list[str]:
    expected, actual = difference.expected, difference.actual
    if actual.shape == expected.shape:
        with np.errstate(all="ignore"):
            right = np.array_equal(actual.astype(expected.dtype), expected)
        values = "the values are right" if right else "the values are wrong as well"
        return [f"wrong dtype: {actual.dtype} where {expected.dtype} is right; {values}"]
    shapes = actual.shape[lead:], expected.shape[lead:]
    told = f"wrong shape: {shapes[0]} where {shapes[1]} is right"
    if len(shapes[0]) == len(shapes[1]) and sorted(shapes[0]) == sorted(shapes[1]):
        return [told, "transposed: the sizes are right, in another order"]
    if np.prod(shapes[0]) == np.prod(shapes[1]):
        same = actual.dtype == expected.dtype and np.array_equal(actual.reshape(expected.shape), expected)
        return [told, f"the number of elements is right, and {'so' if same else 'not'} are they in order"]
    return [told]


def _explain(scene: Scene, devices: Sequence[int]) -> list[str]:
    for explanation in EXPLANATIONS:
        phrases: dict[int, str] = {}
        for device in devices:
            phrase = explanation.phrase(scene, device)
            if phrase is None:
                break
            phrases[device] = phrase
        else:
            return _say(scene, explanation, phrases, everyone=True)
    lines: list[str] = []
    left = list(devices)
    for explanation in EXPLANATIONS:
        found = {d: p for d in left if (p := explanation.phrase(scene, d)) is not None}
        if found:
            lines += _say(scene, explanation, found, everyone=False)
            left = [d for d in left if d not in found]
    if left:
        names = ", ".join(scene.name(d) for d in left[:LISTED])
        more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
        lines.append(f"other values: on {names}{more}")
    return lines


def _say(scene: Scene, explanation: Explanation, phrases: dict[int, str], *, everyone: bool) -> list[str]:
    """One line where all devices have the same wrong, a line per device otherwise."""
    if len(set(phrases.values())) == 1:
        phrase = next(iter(phrases.values()))
        if len(phrases) == 1:
            return [f"{explanation.name}: {scene.name(next(iter(phrases)))} {phrase}"]
        if everyone:
            return [f"{explanation.name}: every wrong block {phrase}".replace("block holds its", "device holds its")]
    lines = [f"{explanation.name}: {explanation.sentence}"]
    lines += [f"  {scene.name(device)} {phrase}" for device, phrase in list(phrases.items())[:LISTED]]
    if len(phrases) > LISTED:
        lines.append(f"  … and {len(phrases) - LISTED} more")
    return lines
