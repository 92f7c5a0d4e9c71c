"""Arrays that are too large to be written out in a script: made by a rule, or compared at some of their elements."""

from collections.abc import Iterable

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.data import KINDS
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.scripts.literals import array_text, dtype_text

WRITTEN = 5_000
"""The most elements of an array that is written out, compressed."""

ELEMENTS = 1_000
"""At how many elements a result is compared that is too large, beside those that are known to be wrong."""

KNOWN_WRONG = 200
"""The most elements compared of those that are known to be wrong."""

SPARSE = 0.01
"""The share of wrong elements below which some that are picked at random could all be right."""


def text_of(array: np.ndarray, seeds: Iterable[int] = ()) -> str:
    """An array as an expression, exact to the last bit: by a rule, if it is long and one is found that gives it.

    Arguments:
        array: the array.
        seeds: of the generators that may have made it.
    """
    if array.size <= WRITTEN:
        return array_text(array)
    by_rule = _ramp(array) or next((text for seed in seeds if (text := _random(array, seed))), "")
    return by_rule or array_text(array)


def _ramp(array: np.ndarray) -> str:
    """Numbers that follow one another and start again, if it is made of those."""
    flat = array.ravel()
    if flat.dtype.kind not in "iuf":
        return ""
    wide = flat.astype(np.float64)
    if not np.isfinite(wide).all():
        return ""
    falls = np.flatnonzero(np.diff(wide) != 1)
    highest = wide[falls[0]] if len(falls) else wide[-1]
    lowest = wide[falls[0] + 1] if len(falls) else wide[0]
    period = int(highest - lowest + 1)
    if period < 1 or not np.array_equal(lowest + (np.arange(flat.size) + (wide[0] - lowest)) % period, wide):
        return ""
    start, low = int(wide[0] - lowest), int(lowest)
    return f"({low} + np.arange({start}, {start + flat.size}) % {period}).reshape({array.shape}).astype({_name(array)})"


def _random(array: np.ndarray, seed: int) -> str:
    """What a generator makes of this seed, if that is the array."""
    if is_float(array.dtype):
        key = [KINDS.index("real"), seed, array.ndim, *array.shape]
        values = np.random.default_rng(key).standard_normal(array.shape).astype(np.float32)
        if np.array_equal(values.astype(array.dtype), array):
            normal = f"np.random.default_rng({key}).standard_normal({array.shape})"
            return f"{normal}.astype(np.float32).astype({_name(array)})"
    key = [KINDS.index("exact"), seed, array.ndim, *array.shape]
    wide = array.real.astype(np.float64)
    if not np.isfinite(wide).all():
        return ""
    low, high = int(wide.min()), int(wide.max()) + 1  # so many elements have them all
    drawn = np.random.default_rng(key).integers(low, high, array.shape)
    if np.array_equal(drawn.astype(array.dtype), array):
        integers = f"np.random.default_rng({key}).integers({low}, {high}, {array.shape})"
        return f"{integers}.astype({_name(array)})"
    return ""


def _name(array: np.ndarray) -> str:
    return dtype_text(array.dtype)


def compared_at(array: np.ndarray, difference: Difference | None) -> np.ndarray | None:
    """The elements, by their number, at which a long array is compared; None: at all of them."""
    if array.size <= WRITTEN:
        return None
    picked = np.random.default_rng(0).choice(array.size, ELEMENTS, replace=False)
    if difference is None:
        return np.sort(picked)
    if difference.wrong.shape == array.shape:
        return np.union1d(picked, np.flatnonzero(difference.wrong)[:KNOWN_WRONG])
    return np.sort(picked) if difference.wrong.mean() > SPARSE else None
