"""What the wrong result would be right for: participants that compute alone, or other operands than were given."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from shardproof.oracles.dtypes import is_float, is_integer, is_signed
from shardproof.properties.cases.chain import FED
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.report.diagnosis.scene import Scene

Made = Callable[[], np.ndarray]

TOGETHER: dict[str, Callable[..., np.ndarray]] = {
    "sum": np.sum,
    "mean": np.mean,
    "maximum": np.max,
    "minimum": np.min,
}
"""What may be made of the results of parts of the axis tuple, in place of the result of all of it."""


def mistaken(scene: Scene) -> Iterator[tuple[str, Made]]:
    """What the operation would be if something were mistaken that its contract knows of."""
    for text, oracle in scene.mistakes.items():
        yield f"are the right ones if {text}", partial(oracle, scene.case, scene.inputs)


def constant(scene: Scene) -> Iterator[tuple[str, Made]]:
    """The tangents if one or two of the operands were constants, as behind a `stop_gradient`."""
    case, moving = scene.case, CONTRACTS[scene.case.contract].moving(scene.case)
    if scene.went_in != "tangent" or case.tree or len(scene.inputs) != len(moving):
        return
    names = CONTRACTS[case.contract].names(case)
    for count in (1, 2):
        for chosen in itertools.combinations(range(len(moving)), count):
            inputs = [np.zeros_like(x) if i in chosen else x for i, x in enumerate(scene.inputs)]
            held = " and ".join(names[moving[i]] for i in chosen)
            whose = "is a constant" if count == 1 else "are constants"
            yield f"are the right ones if {held} {whose} in the derivative", partial(scene.oracle, case, inputs)


def unfed(scene: Scene) -> Iterator[tuple[str, Made]]:
    """The first of calls that feed one another."""
    if FED in scene.case.chain:
        single = replace(scene.case, chain=tuple(name for name in scene.case.chain if name != FED))
        yield (
            "are the right ones of the first call, which feeds the second",
            partial(scene.oracle, single, scene.inputs),
        )


def alone(scene: Scene) -> Iterator[tuple[str, Made]]:
    """Each participant alone."""
    if _long(scene):
        yield (
            "are the right ones of each participant alone",
            partial(scene.oracle, replace(scene.case, axis_name=()), scene.inputs),
        )


def together(scene: Scene) -> Iterator[tuple[str, Made]]:
    """What the results of each participant, or of those along a part of the axis tuple, are together."""
    if scene.went_in == "cotangent":
        return
    long = _long(scene)
    for n in range(len(long)):
        for inner in itertools.combinations(long, n):
            whose = f"those for axis_name={inner}" if inner else "what each participant has alone"
            outer = tuple(name for name in long if name not in inner)
            for word, reduce in TOGETHER.items():
                yield f"are the {word} over {outer} of {whose}", partial(_together, scene, inner, outer, reduce)


def _long(scene: Scene) -> list[str]:
    """The axes of the tuple that have several devices; none where numbers would mean other devices over others."""
    case = scene.case
    if "perm" in case.keywords or "root" in case.keywords or "axis_index_groups" in case.keywords:
        return []
    return case.mesh.longer(case.axes)


def _together(
    scene: Scene, inner: tuple[str, ...], outer: tuple[str, ...], reduce: Callable[..., np.ndarray]
) -> np.ndarray:
    wide = [x.astype(np.float64) if is_float(x.dtype) and x.dtype.kind != "c" else x for x in scene.inputs]
    parts = scene.oracle(replace(scene.case, axis_name=inner), wide)
    over = tuple(scene.case.mesh.axis_names.index(name) for name in outer)
    return np.broadcast_to(reduce(parts, axis=over, keepdims=True), parts.shape).astype(scene.expected.dtype)


def replaced(scene: Scene) -> Iterator[tuple[str, Made]]:
    """Other numbers in place of one operand, by its name."""
    case = scene.case
    names = CONTRACTS[case.contract].names(case)
    if scene.went_in != "block" or case.tree or len(scene.inputs) != len(names):
        return

    def right(**others: np.ndarray) -> np.ndarray:
        return scene.oracle(case, [others.get(name, x) for name, x in zip(names, scene.inputs, strict=True)])

    held = dict(zip(names, scene.inputs, strict=True))
    named = [value for value in case.keywords.values() if type(value) is int]  # such as what is ignored
    leads = {name: len(case.mesh.sizes) + len(case.batch_of(i)) for i, name in enumerate(names)}
    for name, x in held.items():
        if x.dtype == bool:
            yield f"are the right ones with the opposite of {name}", partial(right, **{name: ~x})
        if x.ndim > leads[name] + 1 and x.shape[-1] == x.shape[-2] > 1:
            yield f"are the right ones with {name} transposed", partial(right, **{name: x.swapaxes(-1, -2)})
        for text, value in (("True", 1), ("False", 0)) if x.dtype == bool else (("zeros", 0), ("ones", 1)):
            yield f"are the right ones with {text} in place of {name}", partial(right, **{name: np.full_like(x, value)})
        for other, y in held.items():
            if x.dtype == bool and y.shape == x.shape and other != name:
                kept = {other: np.where(x, y, np.zeros((), y.dtype)), name: np.ones_like(x)}
                yield (
                    f"are the right ones with zeros in {other} where {name} is False, which count",
                    partial(right, **kept),
                )
            if is_integer(x.dtype) and not is_integer(y.dtype):
                lead = leads[other]
                for i in {0, y.ndim - lead - 1} if y.ndim > lead else ():
                    size = y.shape[lead + i] * case.participants
                    if is_signed(x.dtype) and size - 1 <= np.iinfo(x.dtype).max:
                        below = (x < 0) & ~np.isin(x, named)
                        turned = np.where(below, x.astype(np.int64) + size, x).astype(x.dtype)
                        text = f"are the right ones if negative {name} count from the back of dimension {i} of {other}"
                        yield text, partial(right, **{name: turned})
    for name, other in itertools.combinations(names, 2):
        x, y = held[name], held[other]
        if x.shape == y.shape and x.dtype == y.dtype:
            yield f"are the right ones with {name} and {other} exchanged", partial(right, **{name: y, other: x})
