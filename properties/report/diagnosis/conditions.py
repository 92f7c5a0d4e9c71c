"""Bugs that show on numbers of one kind only: rounding, NaN, infinities, negative or large ones."""

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_float, is_integer, is_signed, smallest_normal, unit_roundoff, wide
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.precision.numbers import largest_of
from shardproof.properties.programs.violation import ROUNDINGS, Difference
from shardproof.properties.report.diagnosis.scene import Scene

ENOUGH = 3
"""How many right elements of the other kind there are, at least, before a kind is called the condition."""

SMALL = 1 / 16
"""How large an error may be, as a part of the largest number about, to be one of rounding."""

MOSTLY = 0.5
"""Which part of the numbers of a kind is wrong, at least, for their sign or size to be called the condition."""

CIRCUMSTANCES = ("negative numbers", "positive numbers", "large numbers")
"""How a condition begins that is about signs and sizes, which many mistakes show on and few are of."""

Kind = Callable[[np.ndarray], np.ndarray]


def rounding(
    scenes: Sequence[Scene],
    difference: Difference,
    *,
    entered: bool = False,
    by: Callable[[], str] = lambda: "",
) -> str | None:
    """Says how much too coarsely results are rounded, if all errors are small, and none is one of small integers.

    Small are those that are a small part of results, or with `entered` some roundings of the numbers that went in. They
    are told from what was right before it was rounded, as the difference has it of the first scene, like the bound.
    `by` says what rounds them, if that is known.
    """
    scene = scenes[0]
    if not is_float(scene.actual.dtype) or not scene.devices:
        return None
    if any(_roundings(s) > ROUNDINGS if entered else _error(s) > SMALL for s in scenes):
        return None
    right = _exact(scene.expected)[scene.wrong]
    whole = all((_exact(s.expected)[s.wrong] == np.round(_exact(s.expected)[s.wrong])).all() for s in scenes)
    if whole and not any(s.expected.size and np.abs(_exact(s.expected)).max() <= 64 for s in scenes[1:]):
        return None  # of whole numbers, a neighbour is another value
    exact = right if difference.exact is None else _at(difference.exact, scene)
    off = np.abs(_exact(scene.actual)[scene.wrong] - exact)
    units = off / _spacing(right, scene.actual.dtype)
    at = int(np.argmax(off))
    count = "over a million" if units[at] > 1e6 else f"{units[at]:,.0f}" if units[at] >= 10 else f"{units[at]:.2g}"
    last = f"{count} {'unit' if count == '1' else 'units'} in the last place of {scene.actual.dtype}"
    last = last if right[at] else "where 0 is right"  # next to which the last place is as small as any
    bound = difference.bound
    limit = "there is nothing to round" if bound is None else f"the bound is {abs(_at(bound, scene)[at]):.2g}"
    how = by()
    if not how and (through := _through(scenes)):
        how = f"all wrong values are {through}"
    return "; ".join(filter(None, (f"rounded too much: off by up to {off[at]:.2g}, {last}", limit, how)))


def another_formula(scenes: Sequence[Scene]) -> str:
    """Of what is small, and no rounding, since it is wrong in double precision: by how much, or how many times."""
    scene = scenes[0]
    right = _exact(scene.expected)[scene.wrong]
    off = np.abs(_exact(scene.actual)[scene.wrong] - right)
    at = int(np.argmax(off))
    told = f"another formula: off by up to {off[at]:.2g} where {right[at]:.3g} is right, in double precision as well"
    factor = _factor(scenes)
    if factor is None:
        return told
    sign, more = "+-"[factor < 1], abs(factor - 1)
    times = f"(1 {sign} {more:.2g})" if more < 1e-3 else f"{factor:.5g}"
    return f"{told}; all wrong values are about {times} times the right ones"


def _factor(scenes: Sequence[Scene]) -> float | None:
    """How many times the right values all wrong ones are, if there are several of different size."""
    held = np.concatenate([_exact(s.actual)[s.wrong] for s in scenes])
    right = np.concatenate([_exact(s.expected)[s.wrong] for s in scenes])
    if held.dtype.kind == "c" or len(np.unique(np.abs(right))) < ENOUGH or not (np.isfinite(held) & (right != 0)).all():
        return None
    factors = held / right
    middle = float(np.median(factors))
    return middle if np.abs(factors - middle).max() <= abs(middle - 1) / 8 else None


def _at(numbers: np.ndarray, scene: Scene) -> np.ndarray:
    """Those of the wrong elements, of one for every element."""
    return np.asarray(numbers.reshape(scene.wrong.shape)[scene.wrong])


def _exact(block: np.ndarray) -> np.ndarray:
    return block.astype(wide(block.dtype))


def _error(scene: Scene) -> float:
    """The largest error, as a part of the largest of the right value and the numbers in its block."""
    if not scene.wrong.any():
        return 0.0
    right, held = _exact(scene.expected), _exact(scene.actual)
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(right), scene.tolerance)[scene.wrong]
        error = np.abs(held - right)[scene.wrong]
        typical = np.median(np.abs(right)) if scene.tolerance else 0.0
        part = error / np.maximum(scale, typical)
    return float(np.where(np.isfinite(part), part, np.inf).max())


def _roundings(scene: Scene) -> float:
    """The largest error, in roundings of the largest number that went in."""
    largest = max((largest_of(x) for x in scene.inputs if is_float(x.dtype)), default=0.0)
    with np.errstate(all="ignore"):
        error = np.abs(_exact(scene.actual) - _exact(scene.expected))[scene.wrong].max(initial=0)
    rounds = error / (unit_roundoff(scene.actual.dtype) * largest) if largest and np.isfinite(error) else np.inf
    return float(rounds) if scene.wrong.any() else 0.0


def _spacing(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance of each value to the next number of the dtype."""
    real = np.dtype(np.float32) if dtype == np.complex64 else dtype
    least = float(ml_dtypes.finfo(real).smallest_normal)
    _, exponent = np.frexp(np.maximum(np.abs(values), least))
    return np.asarray(2 * unit_roundoff(dtype) * np.exp2(exponent - 1.0))


def _through(scenes: Sequence[Scene]) -> str | None:
    """The coarser dtype whose numbers all wrong values are."""
    dtype = scenes[0].actual.dtype
    if dtype.kind == "c":
        return None
    held = np.concatenate([_exact(s.actual)[s.wrong] for s in scenes])
    for name in ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16"):
        coarse = np.dtype(getattr(ml_dtypes, name, None) or name)
        with np.errstate(all="ignore"):
            if unit_roundoff(coarse) > unit_roundoff(dtype) and np.array_equal(
                held.astype(coarse).astype(held.dtype), held
            ):
                return f"numbers of {name}"
    return None


def condition(scenes: Sequence[Scene]) -> str | None:
    """Says on which kind of numbers the blocks are wrong, if on no others: the kind that fits most closely."""
    scene = scenes[0]
    found: list[tuple[float, str]] = []
    several = len(scenes) > 1  # on a single data set one device may have the largest numbers, or the negative ones
    kinds = [(words, [_about(s, kind) for s in scenes]) for words, kind in _kinds(scene, several=several)]
    if several and is_integer(scene.expected.dtype) and scene.inputs and scene.went_in == "block":
        kinds.append(
            (f"overflow: wrong only where the result does not fit into {scene.expected.dtype} and wraps around",
             [_overflows(s) for s in scenes])
        )  # fmt: skip
    for words, masks in kinds:
        if any((s.wrong & ~mask).any() for s, mask in zip(scenes, masks, strict=True)):
            continue
        others = [~m & (_exact(s.expected) != 0) if words.startswith(CIRCUMSTANCES) else ~m
                  for s, m in zip(scenes, masks, strict=True)]  # fmt: skip
        if sum(int(m[scene.devices].sum()) for m in others) < ENOUGH:  # on other devices all may be right
            continue
        wrong, all_of_it = (sum(int(m.sum()) for m in ms) for ms in ([s.wrong for s in scenes], masks))
        if wrong / all_of_it >= MOSTLY or words.startswith(("NaN", "infinities", "overflow")):
            found.append((wrong / all_of_it, f"{words}{_became(scenes)}"))
    if not found and (spread := _spread(scenes)) is not None:
        return spread
    found += _large(scenes) if several else []
    return max(found, key=lambda f: f[0])[1] if found else None


def _kinds(scene: Scene, *, several: bool) -> list[tuple[str, Kind]]:
    dtype = scene.expected.dtype
    kinds: list[tuple[str, Kind]] = []
    if is_float(dtype):
        kinds += [
            ("NaN: wrong only where the right value or an input is NaN", lambda a: a != a),
            ("infinities: wrong only where the right value or an input is infinite", lambda a: np.isinf(_exact(a))),
        ]
    if several and is_signed(dtype) and dtype.kind != "c":
        kinds += [
            ("negative numbers: wrong only where the right value is negative", lambda a: _exact(a) < 0),
            ("positive numbers: wrong only where the right value is positive", lambda a: _exact(a) > 0),
        ]
    return kinds


def _about(scene: Scene, kind: Kind) -> np.ndarray:
    """Elementwise, whether the right value is of a kind or, for NaN and infinities, an input that takes part."""
    found = np.asarray(kind(scene.expected))
    probe = np.array([np.nan, np.inf, 1.0, -1.0], np.float32)
    if kind(probe)[2:].any() or len(scene.inputs) != 1 or scene.case.tree:
        return found
    entered = np.where(kind(scene.inputs[0]), 1, 0).astype(np.float32)
    case = scene.case
    if "op" in case.keywords:
        case = case.with_params(op="sum")
    reached = scene.oracle(case, [entered])
    return found | (reached.reshape(found.shape) != 0)


def _overflows(scene: Scene) -> np.ndarray:
    """Elementwise, whether the exact result is beyond the range of its dtype."""
    info = ml_dtypes.iinfo(scene.expected.dtype)
    moving = CONTRACTS[scene.case.contract].moving(scene.case)
    wide = [x.astype(np.float64) if i in moving else x for i, x in enumerate(scene.inputs)]
    exact = scene.oracle(scene.case, wide).reshape(scene.expected.shape)
    return np.asarray((exact < info.min) | (exact > info.max))


def _became(scenes: Sequence[Scene]) -> str:
    held = np.concatenate([s.actual[s.wrong].astype(np.complex128) for s in scenes])
    value = scenes[0].actual[scenes[0].wrong][0]
    return f", where it holds {value}" if len(np.unique(held)) == 1 else ""


def _spread(scenes: Sequence[Scene]) -> str | None:
    """NaN or infinities in place of numbers."""
    if not is_float(scenes[0].actual.dtype):
        return None
    held = np.concatenate([_exact(s.actual[s.wrong]) for s in scenes])
    right = np.concatenate([_exact(s.expected[s.wrong]) for s in scenes])
    if np.isnan(held).all():
        return "NaN: holds NaN where the right value is none"
    if np.isinf(held).all() and np.isfinite(right).all():
        return "overflow: holds infinities where the right value is finite"
    return None


def _large(scenes: Sequence[Scene]) -> list[tuple[float, str]]:
    """Wrong from some magnitude on, on both sides of zero or on one, and right below it."""
    if scenes[0].expected.dtype == bool or any(np.iscomplexobj(s.expected) for s in scenes):
        return []
    rows = scenes[0].devices
    if any(s.wrong.sum() != s.wrong[rows].sum() for s in scenes):
        return []
    values = np.concatenate([_exact(s.expected[rows]).astype(np.float64).ravel() for s in scenes])
    wrong = np.concatenate([s.wrong[rows].ravel() for s in scenes])
    found = []
    for sizes, words in (
        (np.abs(values), "{:g} or more in magnitude"),
        (values, "{:g} or more"),
        (-values, "-{:g} or less"),
    ):
        if not np.isfinite(sizes[wrong]).all():
            return []
        least = float(sizes[wrong].min())
        below = int((sizes[~wrong & (values != 0)] < least).sum())  # of zeros many things are right
        above = int((sizes[~wrong] >= least).sum())
        if least >= 2 and below >= 4 * ENOUGH:
            told = f"large numbers: wrong only where the right value is {words.format(least)}, and right elsewhere"
            found.append((float(wrong.sum() / (wrong.sum() + above)), told))
    return [(share, told) for share, told in found if share >= MOSTLY]


def overflows(scenes: Sequence[Scene]) -> str | None:
    """All that is wrong is infinite or NaN, though what went in and what should come out is finite."""
    scene = scenes[0]
    if not is_float(scene.actual.dtype) or not all(np.isfinite(_exact(x)).all() for x in scene.inputs):
        return None
    held = np.concatenate([_exact(s.actual)[s.wrong] for s in scenes])
    right = np.concatenate([_exact(s.expected)[s.wrong] for s in scenes])
    if np.isfinite(held).any() or not np.isfinite(right).all() or not np.isinf(held).any():
        return None
    return "overflow: holds infinities, or NaN that comes of them, where finite numbers are right"


def flushed(scenes: Sequence[Scene]) -> str | None:
    """All that is wrong is zero, where numbers below the smallest normal one are right."""
    scene = scenes[0]
    dtype = scene.actual.dtype
    if not is_float(dtype) or dtype.kind == "c":
        return None
    least = smallest_normal(dtype)
    for s in scenes:
        right = np.abs(_exact(s.expected)[s.wrong])
        if s.actual[s.wrong].any() or not ((right > 0) & (right < least)).all():
            return None
    return f"flushed to zero: holds zero where numbers below the smallest normal one of {dtype}, {least:.3g}, are right"


def starts_from_zero(scenes: Sequence[Scene]) -> str | None:
    """A maximum (or minimum) is zero where all values are on one side of zero."""
    scene = scenes[0]
    op = scene.case.keywords.get("op")
    if op not in ("max", "min") or scene.expected.dtype.kind == "c":
        return None
    for s in scenes:
        right, held = _exact(s.expected), _exact(s.actual)
        beyond = right < 0 if op == "max" else right > 0
        if (s.wrong & ~beyond).any() or held[s.wrong].any() or (beyond & ~s.wrong).any():
            return None
    right = scene.expected[scene.wrong][0]
    return f"starts from zero: holds zero where the right {op} is {right}, as if zero were among the values"
