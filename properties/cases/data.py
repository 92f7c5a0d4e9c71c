"""The data that a case runs on, generated from a kind and a seed.

- *exact*: small integers, held in the dtype, such that sums of `terms` of them are exactly
  representable at every step, in any order: results are compared bit for bit.
- *distinct*: every element of the global array is different (as far as the dtype has values), so
  that any misplacement shows. Exact under every operation that only moves data.
- *real*: normal floats, compared as nearly as samples of the program's roundings show.
- *special*: what implementations forget: negative zeros and infinities among small integers in
  floats; the extremes of the range in integers, whose sums wrap around.
- *nan*: NaN among small integers, in floats.
  Of the terms of a product few are special or NaN, so that most sums have none, and next to one that is not finite
  there is one that is.
- *scaled*: exact data times a power of two, up to near the largest finite number of the dtype or down to
  near the smallest with all its digits: sums and products are exact where the dtype has their range. Of integers they
  are up to near the largest, and never wrap around.
- *partial*: integers as large as one participant's own sum of products permits: that is exact in the dtype,
  and the whole sum only in a wider accumulator, so that a dtype which is too narrow shows in one rounding.
- *large*: in floats, numbers whose power of e exceeds the largest finite number of the dtype, or is smaller than any,
  among small integers.
- *zeros*: nothing else in every second data set, and among real numbers in the others. No derivative is checked.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import ml_dtypes
import numpy as np
from msgspec import Meta

from shardproof.oracles.dtypes import (
    exact_limit,
    is_float,
    is_integer,
    is_signed,
    largest_finite,
    real_of,
    smallest_normal,
)

KINDS = ("exact", "distinct", "real", "special", "nan", "scaled", "partial", "zeros", "large")
"""In this order, which is part of what seeds a generator: a new kind comes last, and old data stay what they are."""

MOST_SEED = 2**32
"""The largest seed that is read from a file."""


@dataclass(frozen=True)
class Data:
    """One data set: its kind, one of `KINDS`, and the seed of its generator."""

    kind: str
    seed: Annotated[int, Meta(ge=0, le=MOST_SEED)]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: expected one of {', '.join(KINDS)}")


def generate(data: Data, shape: tuple[int, ...], dtype: np.dtype, *, terms: int = 1, degree: int = 1) -> np.ndarray:
    """The array of a data set; a result may add up `terms` products of `degree` elements."""
    # without dimensions NumPy makes a scalar, and not an array
    return np.asarray(_generate(data, shape, dtype, terms, degree))


def _generate(data: Data, shape: tuple[int, ...], dtype: np.dtype, terms: int, degree: int) -> np.ndarray:
    rng = np.random.default_rng([KINDS.index(data.kind), data.seed, len(shape), *shape])
    dtype = np.dtype(dtype)
    if dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    if data.kind == "scaled" and is_float(dtype):
        exact = generate(Data("exact", data.seed), shape, dtype, terms=terms, degree=degree)
        return (exact * np.exp2(_exponent(rng, dtype, terms, degree)).astype(dtype)).astype(dtype)
    if data.kind == "scaled" and is_integer(dtype):
        small, total = largest_exact(dtype, terms, degree), max(terms, 1)
        power = max(0, int(math.log2(ml_dtypes.iinfo(dtype).max / (total * small**degree)) / degree))
        exact = generate(Data("exact", data.seed), shape, dtype, terms=terms, degree=degree)
        return (exact * np.asarray(2 ** rng.choice((power, power, 0)), dtype)).astype(dtype)
    if dtype.kind == "c":
        parts = [Data(data.kind, 2 * data.seed + i) for i in (0, 1)]
        result = np.empty(shape, dtype)
        result.real, result.imag = (generate(part, shape, real_of(dtype), terms=terms, degree=degree) for part in parts)
        return result
    largest = largest_exact(dtype, terms, degree)
    if data.kind == "real" and is_float(dtype):
        values = rng.standard_normal(shape)  # of the narrower dtypes, those of float32
        return values if dtype == np.float64 else values.astype(np.float32).astype(dtype)
    if data.kind in ("special", "nan", "large") and (data.kind != "large" or is_float(dtype)):
        share = 0.5 / max(terms, 1) if degree > 1 and is_float(dtype) else 0.3
        return _special(rng, shape, dtype, largest, data, share)
    if data.kind == "zeros":
        kept = rng.random(shape) < 0.5 * (data.seed % 2)
        return np.where(kept, generate(Data("real", data.seed), shape, dtype), np.zeros((), dtype))
    if data.kind == "distinct":
        return _distinct(data.seed, shape, dtype, terms if degree == 1 else 1)
    if data.kind == "partial":
        largest = max(1, math.floor((exact_limit(dtype) / max(terms, 1)) ** (1 / degree)))
    return _small_integers(rng, shape, dtype, largest)


def largest_exact(dtype: np.dtype, terms: int, degree: int) -> int:
    """The largest integer, up to 9, of which `terms` products of `degree` are exact; 1 where none is."""
    limit = exact_limit(dtype) // max(terms, 1)
    return max([n for n in range(1, 10) if n**degree <= limit], default=1)


def _exponent(rng: np.random.Generator, dtype: np.dtype, terms: int, degree: int) -> int:
    """The exponent of a power of two to scale with: the largest, the smallest, or one between them.

    No sum of `terms` products overflows, and neither they nor their mean leave the range of normal numbers, below
    which a backend may round to zero. It is 0 where a dtype has no such range.
    """
    total = 4 * max(terms, 1) * largest_exact(dtype, terms, degree) ** degree  # 4: the parts of a complex product
    highest = math.floor((math.log2(largest_finite(dtype)) - math.log2(total)) / degree)
    lowest = math.ceil((math.log2(smallest_normal(dtype)) + math.log2(max(terms, 1))) / degree)
    if lowest > highest:
        return 0
    return (highest, lowest, int(rng.integers(lowest, highest + 1)))[rng.integers(3)]


def _small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, largest: int) -> np.ndarray:
    return rng.integers(-largest if is_signed(dtype) else 0, largest + 1, shape).astype(dtype)


def _distinct(seed: int, shape: tuple[int, ...], dtype: np.dtype, terms: int) -> np.ndarray:
    """Different numbers, as far as the dtype has them: a sum of `terms` of them overflows in no order."""
    limit = exact_limit(dtype)
    if is_float(dtype):
        limit = min(limit, max(1, int(largest_finite(dtype) // max(terms, 1))))
    lowest = -limit if is_signed(dtype) else 0
    size = int(np.prod(shape))
    values = np.arange(seed % 7, seed % 7 + size)
    if seed % 7 + size > limit + 1:
        values = lowest + values % (limit - lowest + 1)
    return np.reshape(values, shape).astype(dtype)


def _special(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, largest: int, data: Data, share: float
) -> np.ndarray:
    values = _small_integers(rng, shape, dtype, largest)
    if is_float(dtype):
        overflows = math.ceil(1.5 * math.log(largest_finite(dtype)))
        of_kind = {"nan": [np.nan], "special": [-0.0, np.inf, -np.inf], "large": [overflows, -overflows]}
        choices = np.array(of_kind[data.kind], np.float32).astype(dtype)
        if data.kind == "special":  # a dtype without infinities turns them into NaN
            choices = choices[choices == choices]
    elif is_integer(dtype):
        info = ml_dtypes.iinfo(dtype)
        holding = np.uint64 if info.max >= 2**63 else np.int64  # by itself NumPy takes a float for such a large one
        choices = np.array([info.min, info.max, info.max - 1], holding).astype(dtype)
    else:
        return values
    picked = choices[rng.integers(0, len(choices), shape)]
    result = np.where(rng.random(shape) < share, picked, values).astype(dtype)
    if result.size:  # at least one, the same at the same place when the array shrinks
        result.flat[-(data.seed % 2)] = choices[data.seed % len(choices)]
    return result
