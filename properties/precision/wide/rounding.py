"""What each operation of a program may be off by, if it is right."""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardproof.oracles.dtypes import (
    exact_limit,
    flushed,
    half_spacing,
    largest_finite,
    real_of,
    smallest_normal,
    unit_roundoff,
)
from shardproof.properties.precision.wide.held import Numbers

NO_DIGITS = 2**8
"""In a dtype that holds whole numbers up to here, and no further, having few digits says nothing of a number."""

DOUBLE = unit_roundoff(np.dtype(np.float64))
FLOAT = np.dtype(np.float32)

ACROSS_DEVICES = ("psum", "psum_invariant", "unreduced_psum", "reduce_scatter", "unreduced_reduce_scatter")
"""Sums over devices."""

STEP_BY_STEP = (*ACROSS_DEVICES, "reduce_sum", "cumsum", "scatter-add", "scatter-sub")
"""Sums whose additions a backend may round to the operands' dtype, one after the other: XLA:CPU adds up bfloat16 so."""


class Limits(NamedTuple):
    """The numbers that say what rounding to a dtype does.

    Arguments:
        unit: the unit roundoff, and that of the double in which a wide run holds the same number.
        normal: the smallest number that has all digits.
        floor: how far a smaller one may be off: by itself, where a backend takes it for zero.
        largest: the largest finite number.
        terms: the unit of every addition within a sum: that of float32, if it is not smaller, in a matrix product.
        whole: whether that is smaller, so that a sum is rounded once more in the end.
        exact: up to where all whole numbers are numbers of the dtype.
    """

    unit: float
    normal: float
    floor: float
    largest: float
    terms: float
    whole: bool
    exact: int


@dataclass(frozen=True)
class Rounding:
    """By which dtype each operation of a program is charged.

    Arguments:
        least: floats that are narrower count as this one; empty: every operation is charged by its own dtype.
        own: the primitives that are charged by their own dtype in spite of that.
        floor: floats that are narrower than this one count as it even there; empty: none do.
        literals: whether a constant may be what a number of the source was rounded to, and is off by that.
        moved: if not 0, constants are moved by as much, one way or the other: 1 and 2 all of them away from zero, and
            towards it, further ones some, each pair others; equal ones together. So it shows what comes of it, also
            where they cancel.
        split: whether a compiler may divide any sum over devices, as in a program of global arrays: its parts are then
            sent in the dtype of the sum.
        leeway: by how many roundings each is charged: more than one, where it is compared with another formula.
        decided: whether the data leaves no comparison, order or integer to roundings: numbers are far apart, or equal.
    """

    least: str = ""
    own: frozenset[str] = frozenset()
    floor: str = ""
    literals: bool = False
    moved: int = 0
    split: bool = False
    leeway: float = 1.0
    decided: bool = False

    def charged(self, dtype: np.dtype, primitive: str) -> np.dtype:
        """The dtype by which a result of a traced one is charged."""
        real, least = real_of(dtype), self.floor if primitive in self.own else self.least
        return np.dtype(least) if least and unit_roundoff(real) > unit_roundoff(np.dtype(least)) else real


OWN = Rounding()
"""What the program does in the dtypes that were traced."""

DOUBLES = Rounding("float64", literals=True, leeway=16.0)
"""What the wide run itself may be off by, from another formula for the same in doubles."""


WAYS = (1, 2, 3, 4, 5, 6, 7, 8)
"""The ways to move constants; of eight pairs of two of them one moves alike in all."""


@functools.cache
def limits(rounding: Rounding, dtype: np.dtype, primitive: str) -> Limits:
    """What a primitive's result of a traced dtype is charged."""
    charged = rounding.charged(dtype, primitive)
    unit, normal = unit_roundoff(charged), smallest_normal(charged)
    terms = unit if rounding.split or primitive in STEP_BY_STEP else min(unit, unit_roundoff(FLOAT))
    return Limits(
        rounding.leeway * unit + DOUBLE,
        normal,
        flushed(charged),
        largest_finite(charged),
        rounding.leeway * terms + DOUBLE,
        terms < unit,
        exact_limit(charged),
    )


def literal_error(value: Numbers, dtype: np.dtype) -> Numbers:
    """How far a constant may be from the number that the source has: one rounding, unless its digits are few.

    Half of the digits of its dtype are few: one number in thousands of float32 is rounded to such a one. Of an array
    all elements must have no more: where one was rounded, others may have few by chance. In bfloat16 and below that
    says nothing, since 0.999 is 1. Below the normal range all numbers have few; and where not every whole number is one
    of the dtype, any may be what a count was rounded to: the size of an axis of 257 devices is 256 in bfloat16.
    """
    size = np.asarray(np.abs(value), np.float64)
    digits, _ = np.frexp(size)
    few = 2.0 ** (math.log2(exact_limit(dtype)) // 2)
    certain = (size >= smallest_normal(dtype)) & (size < exact_limit(dtype)) | (size == 0)
    short = (exact_limit(dtype) > NO_DIGITS) & (digits * few == np.rint(digits * few)) & certain | ~np.isfinite(value)
    return np.where(short.all() | (size == 0) | ~np.isfinite(value), 0.0, half_spacing(size, dtype))


def moved(value: Numbers, dtype: np.dtype, way: int) -> Numbers:
    """A constant that is moved by how far it may be from the number that the source has; one and its negative alike."""
    size = np.asarray(np.abs(value), np.float64)
    hashed = size.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    some = (hashed >> np.uint64(64 - (way - 1) // 2) & np.uint64(1)).astype(bool) if way > 2 else True
    away = np.where(some, 1.0, -1.0) * (1 if way % 2 else -1)
    return value + np.sign(value) * away * literal_error(value, dtype)
