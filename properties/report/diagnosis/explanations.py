"""The ways in which a block can be wrong, the most specific first.

Each is a function of a scene and a device that gives every phrase (`holds the block of (dp=1, tp=0)`)
that describes the block of that device, the likeliest first. One is told if it describes the block in
all scenes: the run that failed, and those on data that tells one phrase from another.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.report.diagnosis.contributions import contributions
from shardproof.properties.report.diagnosis.pieces import elements, pieces
from shardproof.properties.report.diagnosis.scene import CLEAR, Scene

Phrases = Callable[[Scene, int], Iterable[str]]


@dataclass(frozen=True)
class Explanation:
    """A way to be wrong: its word, what it means, and the function that says it of a device, given all scenes."""

    name: str
    sentence: str
    phrase: Callable[[Sequence[Scene], int], str | None]


def agreed(phrases: Phrases, *, exclusive: bool = True) -> Callable[[Sequence[Scene], int], str | None]:
    """The first phrase that holds in every scene; of a single scene, the only one, if they exclude each other."""

    def phrase(scenes: Sequence[Scene], device: int) -> str | None:
        left = list(phrases(scenes[0], device))
        if exclusive and len(scenes) == 1 and len(left) > 1:
            return None
        for scene in scenes[1:]:
            if not left:
                return None
            here = set(phrases(scene, device))
            left = [p for p in left if p in here]
        return left[0] if left else None

    return phrase


def _missing(scene: Scene, device: int) -> Iterable[str]:
    if scene.holds(device, np.zeros_like(scene.held(device))):
        yield "holds zeros"


def _stale(scene: Scene, device: int) -> Iterable[str]:
    own = scene.own
    if own is not None and own.shape == scene.actual.shape and scene.holds(device, scene.part(device, own[device])):
        yield f"holds its own {_input(scene)}, unchanged"


def _permuted(scene: Scene, device: int) -> Iterable[str]:
    for source in _nearest(scene, device, scene.expected):
        yield f"holds the block that belongs to {scene.name(source)}"


def _stale_elsewhere(scene: Scene, device: int) -> Iterable[str]:
    for source in [] if scene.own is None else _nearest(scene, device, scene.own, itself=True):
        yield f"holds the {_input(scene)} of {scene.name(source)}, unchanged"


def _input(scene: Scene) -> str:
    return "input" if scene.went_in == "block" else scene.went_in


def _nearest(scene: Scene, device: int, blocks: np.ndarray, *, itself: bool = False) -> list[int]:
    """The other devices whose block this one holds: those that the collective connects first, and wrong ones last."""
    names, mine = scene.case.mesh.axis_names, scene.coordinates(device)

    def distance(other: int) -> tuple[int, bool]:
        pairs = zip(names, mine, scene.coordinates(other), strict=True)
        return sum(a != b for name, a, b in pairs if name not in scene.case.axes), other not in scene.devices

    return sorted((d for d in scene.holders(device, blocks) if itself or d != device), key=distance)


def _multiple(scene: Scene, device: int) -> Iterable[str]:
    expected, held = scene.right(device), scene.held(device)
    if expected.dtype == bool or (not expected.any() and held.any()):
        return
    right, exact = expected.astype(wide(expected.dtype)), held.astype(wide(held.dtype))
    mesh, p = scene.case.mesh, scene.case.participants
    sizes = sorted({*range(2, 17), *mesh.sizes, mesh.size, p} - {1})
    candidates: list[tuple[str, float, float]] = [("minus", -1, 1)]
    candidates += [(f"{k} times", k, 1) for k in sizes] + [(f"1/{k} of", 1, k) for k in sizes]
    candidates += [(f"{a}/{b} of", a, b) for a, b in ((p, p - 1), (p - 1, p), (p + 1, p)) if p > 2]
    for k in sorted({*mesh.sizes, mesh.size, p} - {1}):
        candidates += [(f"the root of {k} times", math.sqrt(k), 1), (f"1 by the root of {k} times", 1, math.sqrt(k))]
    for n_is, n in _lengths(scene):
        candidates += [(f"n times; {n_is}", n, 1), (f"1/n of; {n_is}", 1, n)]
        candidates += [(f"n/(n - 1) of; {n_is}", n, n - 1), (f"(n - 1)/n of; {n_is}", n - 1, n)]
    for words, times, parts in candidates:
        with np.errstate(all="ignore"):
            scaled = right * times if parts == 1 else right * times / parts
            rounded = np.asarray(scaled).astype(expected.dtype)
            if (np.isfinite(right) & ~np.isfinite(rounded.astype(right.dtype))).any():
                continue  # infinity is many times anything
            # a division may be rounded before or after a sum, and the tolerance is that of the right values
            slack = 8 * unit_roundoff(expected.dtype) * np.abs(scaled) + scene.tolerance * max(times / parts, 1)
            near = (np.abs(exact - scaled) <= slack).all() and (np.abs(scaled - right) > CLEAR * scene.tolerance).any()
        whole = times == int(times) if parts == 1 else times == 1 and math.frexp(parts)[0] == 0.5
        inexact = is_float(expected.dtype) and (scene.tolerance or not whole)
        if scene.holds(device, rounded) or (inexact and near):
            factor, _, n_is = words.partition("; ")
            yield f"holds {factor} the right values{f' ({n_is})' if n_is else _size(scene, max(times, parts))}"


def _lengths(scene: Scene) -> Iterator[tuple[str, int]]:
    """The lengths of the operands' dimensions, which are others in other scenes."""
    for operand, name in zip(scene.case.operands, CONTRACTS[scene.case.contract].names(scene.case), strict=False):
        yield from ((f"n is the length of dimension {i} of {name}", n) for i, n in enumerate(operand.block) if n > 1)


def telling(phrases: Phrases) -> Callable[[Sequence[Scene], int], str | None]:
    """As `agreed`, of the scenes alone in which a multiple is told from the right values, for all their tolerance."""

    def tells(scene: Scene, device: int, tolerance: float) -> bool:
        right = np.abs(scene.right(device).astype(wide(scene.expected.dtype)))
        return not tolerance or bool((right > 2 * CLEAR * tolerance).any())

    def phrase(scenes: Sequence[Scene], device: int) -> str | None:
        most = max(scene.tolerance for scene in scenes)  # for a scene that is right, of which none is known
        left = [s for s in scenes if tells(s, device, s.tolerance if s.devices else most)]
        return agreed(phrases)(left, device) if left else None

    return phrase


def _doubled(scene: Scene, device: int) -> Iterable[str]:
    return (phrase for phrase in _multiple(scene, device) if phrase.startswith("holds 2 times"))


def _size(scene: Scene, factor: float) -> str:
    """What has that size, where something has."""
    axes = [name for name, size in scene.case.mesh.shape.items() if size == factor > 1]
    if axes:
        return f" ({' or '.join(axes)} {'has' if len(axes) == 1 else 'have'} that size)"
    return " (as many devices take part)" if factor == scene.case.participants > 1 else ""


def _complex(scene: Scene, device: int) -> Iterable[str]:
    expected = scene.right(device)
    if expected.dtype.kind != "c":
        return
    if scene.holds(device, expected.conj()):
        yield "holds the complex conjugate of the right values"
    if scene.holds(device, expected.real.astype(expected.dtype)):
        yield "has lost its imaginary part"


def _turned(scene: Scene, device: int) -> Iterable[str]:
    expected, actual = scene.right(device), scene.held(device)
    for dimension in range(expected.ndim):
        if expected.shape[dimension] > 1 and scene.holds(device, np.flip(expected, dimension)):
            yield f"is reversed along {scene.dimension(dimension)}"
    for order in list(itertools.permutations(range(expected.ndim)))[1:25]:
        long = [i for i in order if expected.shape[i] > 1]
        turned = expected.transpose(order)
        # dimensions of size one that move change nothing
        if long != sorted(long) and turned.shape == actual.shape and scene.holds(device, turned):
            yield f"has its dimensions in the order {', '.join(map(str, order))}"
    for dimension, size in enumerate(expected.shape):
        for by in sorted(range(1, size), key=lambda n: min(n, size - n))[:16]:
            if size > 2 and scene.holds(device, np.roll(expected, by, dimension)):
                step = by if by <= size // 2 else by - size
                yield f"is shifted along {scene.dimension(dimension)} by {step}, wrapping round"


def _shifted(scene: Scene, device: int) -> Iterable[str]:
    right, held = (b.astype(wide(b.dtype)) for b in (scene.right(device), scene.held(device)))
    if scene.actual.dtype == bool:
        return
    with np.errstate(all="ignore"):
        apart = (held - right).ravel()
        if len(set(apart.tolist())) == 1 and np.isfinite(apart[0]):
            yield f"is off by {apart[0]} everywhere"


def shifted(scenes: Sequence[Scene], device: int) -> str | None:
    """Says by which number all elements are off, if they should be several."""
    right = {value for scene in scenes for value in scene.right(device).ravel().tolist()}
    return agreed(_shifted)(scenes, device) if len(right) > 1 else None


def _missing_somewhere(scene: Scene, device: int) -> Iterable[str]:
    if not scene.held(device)[scene.wrongly(device)].any():
        yield "holds zeros wherever it is wrong"


def _left_over_somewhere(scene: Scene, device: int) -> Iterable[str]:
    right, wrong = scene.right(device), scene.wrongly(device)
    if wrong.any() and not right[wrong].any():
        yield "holds something wherever it is wrong, where zeros should be"


def left_over(scenes: Sequence[Scene], device: int) -> str | None:
    """Says that what should be zero is not, if other elements should be something."""
    something = any(scene.right(device).any() for scene in scenes)
    return somewhere(_left_over_somewhere)(scenes, device) if something else None


def unless(
    other: Callable[[Sequence[Scene], int], str | None], phrase: Callable[[Sequence[Scene], int], str | None]
) -> Callable[[Sequence[Scene], int], str | None]:
    """The phrase, where another, which says more plainly what is wrong, does not hold as well."""
    return lambda scenes, device: None if other(scenes, device) else phrase(scenes, device)


def _stale_somewhere(scene: Scene, device: int) -> Iterable[str]:
    wrong, held = scene.wrongly(device), scene.held(device)
    if scene.went_in != "block" or scene.case.tree:
        return
    lead = len(scene.case.mesh.sizes)
    for name, blocks in zip(CONTRACTS[scene.case.contract].names(scene.case), scene.inputs, strict=False):
        if blocks.shape[lead:] != scene.actual.shape[1:] or blocks.dtype != scene.actual.dtype:
            continue
        own = scene.part(device, blocks.reshape(-1, *blocks.shape[lead:])[device])
        if scene.same(own, held)[wrong].all():
            yield f"holds what its own {name} has there, wherever it is wrong"


def somewhere(phrases: Phrases) -> Callable[[Sequence[Scene], int], str | None]:
    """What is true of all wrong elements, wherever those are, if there are several; a right block has none."""

    def phrase(scenes: Sequence[Scene], device: int) -> str | None:
        wrong = {i: int(scene.wrongly(device).sum()) for i, scene in enumerate(scenes)}
        return agreed(phrases)([scenes[i] for i, n in wrong.items() if n], device) if sum(wrong.values()) > 1 else None

    return phrase


def _replicas(scene: Scene, device: int) -> Iterable[str]:
    """A wrong block that should equal one that is right."""
    right = scene.right(device)
    blocks = scene.part(device, scene.expected)
    # replicas are the same to the bit, whatever the tolerance
    alike = nan_equal(blocks, np.broadcast_to(right, blocks.shape)).reshape(len(blocks), -1).all(axis=1)
    alike &= _may_hold_the_same(scene, device)
    held = np.asarray(scene.part(device, scene.wrong).reshape(len(blocks), -1).any(axis=1))
    if held[device]:
        for other in np.flatnonzero(alike & ~held):
            yield f"should hold the same as {scene.name(int(other))}, which is right, and does not"
    else:
        yield from (
            f"should hold the same as {scene.name(d)}, which is right, and does not" for d in range(len(blocks))
        )


def _may_hold_the_same(scene: Scene, device: int) -> np.ndarray:
    """Of each device, whether it may be a replica: not where the layout of the result says otherwise."""
    placed = CONTRACTS[scene.case.contract].placed
    if placed is None or scene.went_in == "cotangent":
        return np.ones(len(scene.expected), bool)
    sharding = placed(scene.case)[scene.leaf].axes
    along = [i for i, name in enumerate(scene.case.mesh.axis_names) if name in sharding]
    places = np.array([scene.coordinates(d) for d in range(len(scene.expected))])
    return np.asarray((places[:, along] == places[device, along]).all(axis=1))


EXPLANATIONS = (
    Explanation("missing", "nothing arrived", agreed(_missing)),
    Explanation("stale", "nothing was exchanged", agreed(_stale)),
    Explanation("permuted", "each wrong block is the right one of another device", agreed(_permuted)),
    Explanation("doubled", "each wrong block is twice the right one", telling(_doubled)),
    Explanation("multiple", "each wrong block is a multiple of the right one", telling(_multiple)),
    Explanation("complex", "the parts of complex numbers go wrong", agreed(_complex)),
    Explanation("partial sum", "terms are missing, or too many, or in the wrong place", contributions),
    Explanation("stale", "the blocks are those that were put in", agreed(_stale_elsewhere)),
    Explanation("transposed", "the values are right, the dimensions are not", agreed(_turned)),
    Explanation("permuted", "pieces of the wrong blocks are in the wrong place", unless(left_over, pieces)),
    Explanation("off by a constant", "each wrong block is shifted", shifted),
    Explanation(
        "replicas disagree", "devices that should hold the same block do not", agreed(_replicas, exclusive=False)
    ),
)
"""The most specific first: the first that explains all wrong blocks is told."""

LAST = (
    Explanation("left over", "what should be zeros is not", left_over),
    Explanation("missing", "some elements did not arrive", somewhere(_missing_somewhere)),
    Explanation("stale", "some elements were not exchanged", somewhere(_stale_somewhere)),
    Explanation("permuted", "single elements of the wrong blocks are in the wrong place", elements),
)
"""What is told of a block if nothing else explains the part of it that is wrong."""
