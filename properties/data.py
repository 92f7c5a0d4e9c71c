"""The data that a case runs on, generated from a kind and a seed.

- *exact*: small integers, held in the dtype, such that sums of `terms` of them are exactly
  representable at every step, in any order: results are compared bit for bit.
- *distinct*: every element of the global array is different (as far as the dtype has values), so
  that any misplacement shows. Exact under every operation that only moves data.
- *real*: normal floats, compared within a bound derived from the dtype and the number of terms.
- *special*: what implementations forget: negative zeros and infinities among small integers in
  floats; the extremes of the range in integers, whose sums wrap around.
- *nan*: NaN among small integers, in floats.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from oracles.dtypes import exact_limit, is_float, is_integer, is_signed

KINDS = ("exact", "distinct", "real", "special", "nan")


@dataclass(frozen=True)
class Data:
    """One data set: its kind, one of `KINDS`, and the seed of its generator."""

    kind: str
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: expected one of {', '.join(KINDS)}")


def generate(data: Data, shape: tuple[int, ...], dtype: np.dtype, *, terms: int = 1, degree: int = 1) -> np.ndarray:
    """The array of a data set; a result may add up `terms` products of `degree` elements."""
    rng = np.random.default_rng([KINDS.index(data.kind), data.seed, len(shape), *shape])
    dtype = np.dtype(dtype)
    if dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == np.complex64:
        parts = [Data(data.kind, 2 * data.seed + i) for i in (0, 1)]
        result = np.empty(shape, np.complex64)
        result.real, result.imag = (
            generate(part, shape, np.dtype(np.float32), terms=terms, degree=degree) for part in parts
        )
        return result
    largest = largest_exact(dtype, terms, degree)
    if data.kind == "real" and is_float(dtype):
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)
    if data.kind in ("special", "nan"):
        return _special(rng, shape, dtype, largest, data)
    if data.kind == "distinct":
        return _distinct(data.seed, shape, dtype)
    return _small_integers(rng, shape, dtype, largest)


def largest_exact(dtype: np.dtype, terms: int, degree: int) -> int:
    """The largest integer, up to 9, of which `terms` products of `degree` are exact; 1 where none is."""
    limit = exact_limit(dtype) // max(terms, 1)
    return max([n for n in range(1, 10) if n**degree <= limit], default=1)


def _small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, largest: int) -> np.ndarray:
    return rng.integers(-largest if is_signed(dtype) else 0, largest + 1, shape).astype(dtype)


def _distinct(seed: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    limit = exact_limit(dtype)
    lowest = -limit if is_signed(dtype) else 0
    size = int(np.prod(shape))
    values = np.arange(seed % 7, seed % 7 + size)
    if seed % 7 + size > limit + 1:
        values = lowest + values % (limit - lowest + 1)
    return np.reshape(values, shape).astype(dtype)


def _special(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, largest: int, data: Data) -> np.ndarray:
    values = _small_integers(rng, shape, dtype, largest)
    if is_float(dtype):
        choices = np.array([np.nan] if data.kind == "nan" else [-0.0, np.inf, -np.inf], np.float32).astype(dtype)
        if data.kind == "special":  # a dtype without infinities turns them into NaN
            choices = choices[choices == choices]
    elif is_integer(dtype):
        info = ml_dtypes.iinfo(dtype)
        choices = np.array([info.min, info.max, info.max - 1]).astype(dtype)
    else:
        return values
    picked = choices[rng.integers(0, len(choices), shape)]
    result = np.where(rng.random(shape) < 0.3, picked, values).astype(dtype)
    if result.size:  # at least one, which stays what and where it is when the array gets smaller
        result.flat[-(data.seed % 2)] = choices[data.seed % len(choices)]
    return result
