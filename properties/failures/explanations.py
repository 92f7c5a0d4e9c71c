"""The ways in which a block can be wrong, the most specific first.

Each is a function of the scene and a device that gives a phrase (`holds the block of (dp=1, tp=0)`)
if it explains the block of that device, and None if it does not.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oracles.dtypes import is_float, is_signed, wide
from properties.failures.scene import Scene
from properties.failures.sums import partial_sum

Phrase = Callable[[Scene, int], str | None]


@dataclass(frozen=True)
class Explanation:
    """A way to be wrong: its word, what it means, and the function that recognises it."""

    name: str
    sentence: str
    phrase: Phrase


def _exact(block: np.ndarray) -> np.ndarray:
    return block.astype(wide(block.dtype))


def _around(scene: Scene, kind: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Elementwise, whether the right value or, where the shapes agree, the device's input is of this kind."""
    found = kind(scene.expected)
    own = scene.own
    if own is not None and own.shape == scene.expected.shape:
        found = found | kind(own)
    return np.asarray(found)


def _only_where(scene: Scene, device: int, kind: Callable[[np.ndarray], np.ndarray], what: str) -> str | None:
    """Only elements of this kind are wrong, and others are there, which are right."""
    found, wrong = _around(scene, kind), scene.wrong
    if not found[device].any() or (wrong & ~found).any():
        return None
    became = np.unique(scene.actual[device][wrong[device]].astype(np.complex128))
    return f"is wrong only {what}" + (f", where it holds {scene.actual[device][wrong[device]][0]}" * (len(became) == 1))


def _negative(scene: Scene, device: int) -> str | None:
    if not is_signed(scene.expected.dtype) or scene.expected.dtype.kind == "c":
        return None
    if (_around(scene, lambda a: _exact(a) < 0)).all():  # no other numbers are there, which would be right
        return None
    return _only_where(scene, device, lambda a: _exact(a) < 0, "where the right value or the input is negative")


def _nan(scene: Scene, device: int) -> str | None:
    if not is_float(scene.expected.dtype):
        return None
    return _only_where(scene, device, lambda a: a != a, "where the right value or the input is NaN")


def _infinite(scene: Scene, device: int) -> str | None:
    if not is_float(scene.expected.dtype):
        return None
    return _only_where(scene, device, lambda a: np.isinf(_exact(a)), "where the right value or the input is infinite")


def _becomes_nan(scene: Scene, device: int) -> str | None:
    held = scene.actual[device][scene.wrong[device]]
    return "holds NaN where the right value is none" if (held != held).all() else None


def _imprecise(scene: Scene, device: int) -> str | None:
    """Off by a little, on numbers that are not whole: of whole ones, a neighbour is another value."""
    if not is_float(scene.expected.dtype):
        return None
    right, held = _exact(scene.expected[device]), _exact(scene.actual[device])
    with np.errstate(all="ignore"):
        error = (np.abs(held - right) / np.abs(right))[scene.wrong[device]]
        whole = (right == np.round(right)).all()
    return (
        f"is rounded too much: off by up to {error.max():.2g} of the value" if not whole and error.max() < 0.1 else None
    )


def _complex(scene: Scene, device: int) -> str | None:
    expected, actual = scene.expected[device], scene.actual[device]
    if expected.dtype.kind != "c":
        return None
    if scene.same(expected.conj(), actual).all():
        return "holds the complex conjugate of the right values"
    real = expected.real.astype(expected.dtype)
    return "has lost its imaginary part" if scene.same(real, actual).all() else None


def _starts_from_zero(scene: Scene, device: int) -> str | None:
    """A maximum (or minimum) is zero where all values are on one side of zero."""
    op = scene.case.keywords.get("op")
    if op not in ("max", "min") or scene.expected.dtype.kind == "c":
        return None
    wrong = scene.wrong[device]
    right, held = _exact(scene.expected[device])[wrong], _exact(scene.actual[device])[wrong]
    beyond = right < 0 if op == "max" else right > 0
    return f"holds zero where the right {op} is {right[0]}" if beyond.all() and not held.any() else None


def _missing(scene: Scene, device: int) -> str | None:
    block = scene.actual[device]
    return "holds zeros" if not block.any() else None


def _stale(scene: Scene, device: int) -> str | None:
    own = scene.own
    return "holds its own input, unchanged" if own is not None and scene.holds(device, own[device]) else None


def _permuted(scene: Scene, device: int) -> str | None:
    sources = [d for d in scene.holders(device, scene.expected) if d != device]
    if not sources:
        return None
    return f"holds the block that belongs to {scene.name(min(sources, key=lambda d: _distance(scene, device, d)))}"


def _distance(scene: Scene, device: int, other: int) -> tuple[int, bool]:
    """Where several devices have the same block: the nearest that the collective connects, and a wrong one."""
    names = scene.case.mesh.axis_names
    pairs = zip(names, scene.coordinates(device), scene.coordinates(other), strict=True)
    return sum(a != b for name, a, b in pairs if name not in scene.case.axes), other not in scene.devices


def _stale_elsewhere(scene: Scene, device: int) -> str | None:
    sources = [] if scene.own is None else scene.holders(device, scene.own)
    if not sources:
        return None
    return f"holds the input of {scene.name(min(sources, key=lambda d: _distance(scene, device, d)))}, unchanged"


def _multiple(scene: Scene, device: int) -> str | None:
    expected, actual = scene.expected[device], scene.actual[device]
    if expected.dtype == bool or not expected.any():
        return None
    right, held = _exact(expected), _exact(actual)
    sizes = {*range(2, 17), *scene.case.mesh.sizes, scene.case.mesh.size} - {1}
    candidates = [(f"{k} times", float(k), 1.0) for k in sorted(sizes)]
    candidates += [(f"1/{k} of", 1.0, float(k)) for k in sorted(sizes)] + [("minus", -1.0, 1.0)]
    for a in candidates:
        with np.errstate(all="ignore"):
            scaled = np.asarray(right * a[1] / a[2]).astype(actual.dtype)
        if scene.same(scaled, actual).all() or (scene.tolerance and np.allclose(held, right * a[1] / a[2], rtol=0.01)):
            axes = [name for name, size in scene.case.mesh.shape.items() if size in (a[1], a[2]) and size > 1]
            why = f" ({' or '.join(axes)} has that size)" if axes else ""
            return f"holds {a[0]} the right values{why}"
    return None


def _transposed(scene: Scene, device: int) -> str | None:
    expected, actual = scene.expected[device], scene.actual[device]
    for dimension in range(expected.ndim):
        if expected.shape[dimension] > 1 and scene.same(np.flip(expected, dimension), actual).all():
            return f"is reversed along dimension {dimension}"
    for order in list(itertools.permutations(range(expected.ndim)))[1:25]:
        turned = expected.transpose(order)
        if turned.shape == actual.shape and scene.same(turned, actual).all():
            return f"has its dimensions in the order {', '.join(map(str, order))}"
    return None


def _pieces(scene: Scene, device: int) -> str | None:
    """The right pieces along a dimension, in another order: a gather that counts its members otherwise."""
    expected, actual = scene.expected[device], scene.actual[device]
    for dimension, size in enumerate(expected.shape):
        for count in sorted({c for c in (scene.case.members, size) if 1 < c <= size and size % c == 0}):
            right, held = (np.split(a, count, axis=dimension) for a in (expected, actual))
            order: list[int] = []
            for piece in held:  # equal pieces are told apart by taking each once
                fits = (j for j, r in enumerate(right) if j not in order and scene.same(piece, r).all())
                order.append(next(fits, -1))
            if sorted(order) == list(range(count)):
                return f"has the pieces along dimension {dimension} in the order {', '.join(map(str, order))}"
    return None


def _tail(scene: Scene, device: int) -> str | None:
    wrong = scene.wrong[device].ravel()
    return "has only its first element right" if wrong.size > 1 and not wrong[0] and wrong[1:].all() else None


def _offset(scene: Scene, device: int) -> str | None:
    if scene.expected.dtype == bool or scene.expected[device].size < 2:
        return None
    with np.errstate(all="ignore"):
        apart = _exact(scene.actual[device]) - _exact(scene.expected[device])
    first = apart.ravel()[0]
    return f"is off by {first} everywhere" if (apart == first).all() else None


def _replicas(scene: Scene, device: int) -> str | None:
    """Right blocks that are all equal, held by some devices and not by others."""
    equal = [d for d in scene.holders(device, scene.actual) if d != device]
    alike = scene.same(scene.expected, np.broadcast_to(scene.expected[device], scene.expected.shape))
    twins = [d for d in np.flatnonzero(alike.reshape(len(alike), -1).all(axis=1)) if d != device]
    if not twins or set(equal) >= {int(d) for d in twins}:
        return None
    other = next(int(d) for d in twins if int(d) not in equal)
    return f"should hold the same as {scene.name(other)} and does not"


EXPLANATIONS = (
    Explanation("starts from zero", "the reduction has zero among its values", _starts_from_zero),
    Explanation("NaN", "only NaN goes wrong", _nan),
    Explanation("infinities", "only infinities go wrong", _infinite),
    Explanation("NaN", "NaN spreads", _becomes_nan),
    Explanation("missing", "nothing arrived", _missing),
    Explanation("stale", "nothing was exchanged", _stale),
    Explanation("permuted", "each wrong block is the right one of another device", _permuted),
    Explanation("doubled", "each wrong block is a multiple of the right one", _multiple),
    Explanation("complex", "the parts of complex numbers go wrong", _complex),
    Explanation("partial sum", "not every member is in it, or one too often", partial_sum),
    Explanation("stale", "the blocks are those that were put in", _stale_elsewhere),
    Explanation("transposed", "the values are right, the dimensions are not", _transposed),
    Explanation("permuted", "the pieces of each wrong block are in another order", _pieces),
    Explanation("off by a constant", "each wrong block is shifted", _offset),
    Explanation("imprecise", "each wrong block is rounded too much", _imprecise),
    Explanation("negative numbers", "only negative numbers go wrong", _negative),
    Explanation("beyond the first element", "the first element of each block is right, and no other", _tail),
    Explanation("replicas disagree", "devices that should hold the same block do not", _replicas),
)
"""The most specific first: the first that explains all wrong blocks is told."""
