"""Floating-point formats: how a double is rounded to one of them, at random, and to which one operations are."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import (
    exact_limit,
    flush_error,
    half_spacing,
    is_float,
    largest_finite,
    real_of,
    smallest_normal,
    tiny,
    unit_roundoff,
)
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.programs.implementations import Implementation

Numbers = Any
"""An array, or the scalar that NumPy gives in place of one of rank 0."""

FORMATS = {(5, 10): "float16", (8, 7): "bfloat16", (8, 23): "float32", (11, 52): "float64"}
"""The dtypes by the bits of their exponents and mantissas."""

COARSE = 4.0
"""The width, in steps of a format, of the numbers to which a sample may be rounded: what is right is rounded to the
nearest, or one of two, and so it may err by four times as much as a sum of roundings that have nothing in common."""

LARGER = math.sqrt(8.0)
"""The ratio of errors in samples of up to two steps to those of one: their variances are 16/12 and 1/6."""

EXPONENT = 0x7FF << 52
"""The bits of a double's exponent."""

NO_DIGITS = 2**8
"""In a dtype that holds whole numbers up to here, and no further, having few digits says nothing of a number."""


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Arguments:
        digits: the bits of its mantissa, the leading one included.
        smallest: its smallest positive number.
        normal: below this, backends may take a number for zero; 0: they do not.
        largest: its largest finite number.
        certain: a number with no more digits was not rounded; 0: as many as the mantissa has.
    """

    digits: int
    smallest: float
    normal: float
    largest: float
    certain: int = 0

    @property
    def unit(self) -> float:
        """The unit roundoff."""
        return 2.0**-self.digits


@functools.cache
def format_of(dtype: np.dtype) -> Format:
    """The format of a float dtype, or of the parts of a complex one."""
    real = real_of(dtype)
    if real == np.float64:
        return DOUBLE
    digits = round(-math.log2(unit_roundoff(real)))
    normal = smallest_normal(real) if flush_error(real) == smallest_normal(real) else 0.0
    return Format(digits, 2 * tiny(real), normal, largest_finite(real))


DOUBLE = Format(50, 2.0**-1000, 0.0, float(np.finfo(np.float64).max), certain=32)
"""The format in place of doubles where samples of them are rounded, which are doubles themselves: one in eight has no
more digits by coincidence, though it was rounded where it was computed."""

NEARLY_DOUBLE = dataclasses.replace(DOUBLE, digits=42)
"""The format of doubles where it is asked what their own roundings may come to: 2,000 times as coarse as they."""


def round_at_random(
    x: Numbers, to: Format, chance: Callable[[Numbers], Numbers], *, numbers: range | None = None
) -> Numbers:
    """Doubles as numbers of a format: what is none of its numbers becomes one nearby, by chance.

    Arguments:
        x: `[*lead, *block]`.
        to: the format: a number may be off by half of `COARSE` of its steps.
        chance: gives numbers of [0, 1) that broadcast to an array, or to more samples; 1/2 rounds to the nearest.
        numbers: those of the samples, of which every fourth is moved as far, and stays between two numbers; None: of
            those from zero on, where none does.

    Of each four samples the last two take what is below the normal range for zero, if backends do.
    """
    if x.dtype.kind == "c":
        parts = np.ascontiguousarray(x).view(np.float64).reshape((*x.shape, 2))
        rounded = np.ascontiguousarray(round_at_random(parts, to, chance, numbers=numbers))
        return rounded.view(np.complex128).reshape(rounded.shape[:-1])
    found = _survey(x, to) if x.size <= BLOCK else None
    if found is None and (x.size <= BLOCK or not any(_survey(part, to) for (part,) in in_blocks(x))):
        return x
    drawn, first = chance(x), 0 if numbers is None else numbers.start
    samples = max(len(x), len(drawn))
    place = _places(first, samples, x.ndim)
    if found is not None:
        return _move(x, drawn, place, to, found, numbers is not None)
    result = np.empty((samples, *x.shape[1:]))
    for target, part, chances, places in in_blocks(result, x, drawn, place):
        target[...] = _move(part, chances, places, to, _survey(part, to), numbers is not None)
    return result


@functools.lru_cache
def _places(first: int, samples: int, rank: int) -> np.ndarray:
    """The places of samples among four, `[samples, 1, ...]`."""
    return ((first + np.arange(samples)) % 4).reshape(-1, *(1,) * (rank - 1))


Survey = tuple[Numbers, Numbers, Numbers]
"""Of doubles, the steps of a format there, where they are finite and may be rounded, and where below its range."""


def _survey(x: Numbers, to: Format) -> Survey | None:
    """What is to be rounded, or None if nothing is."""
    step, size = _step(x, to), np.abs(x)
    whole = x / (step * 2.0 ** (to.digits - to.certain) if to.certain else step)
    rounds = np.rint(whole) != whole
    rounds &= size < np.inf
    small = (size < to.normal) & (size > 0)
    if not (np.count_nonzero(rounds) or np.count_nonzero(small) or np.count_nonzero(size > to.largest)):
        return None
    return step, rounds, small


def _move(x: Numbers, drawn: Numbers, place: Numbers, to: Format, found: Survey | None, stays: bool) -> Numbers:
    """Doubles as `round_at_random` moves them, by chance, given their places among four samples.

    Arguments:
        stays: whether those of the places 1 stay between two numbers.
    """
    if found is None:
        return x
    step, rounds, small = found
    near = (drawn - 0.5) * step
    near *= COARSE
    near += x
    if np.count_nonzero(rounds) < rounds.size:
        near = np.where(rounds, near, x)
    step = _step(near, to)
    result = near / step
    np.rint(result, out=result)
    result *= step
    finite = np.isfinite(x)
    if np.count_nonzero(finite) < finite.size:
        result = np.where(finite, result, x)
    if stays:
        between = slice((1 - int(place.flat[0])) % 4, None, 4)
        result[between] = near[between]
    beyond = np.abs(result) > to.largest
    if np.count_nonzero(beyond):
        result = np.where(beyond, np.copysign(np.inf, result), result)
    return np.where(small & (place > 1), 0.0, result) if np.count_nonzero(small) else result


BLOCK = 2**15
"""The most numbers that are computed at once where each takes many steps: they stay in the caches from step to step."""


def in_blocks(first: Numbers, *others: Numbers) -> Iterator[tuple[Numbers, ...]]:
    """Parts of an array of at most `BLOCK` elements, with those of others that broadcast to it."""
    if first.size <= BLOCK:
        yield first, *others
        return
    d = next(d for d, n in enumerate(first.shape) if n > 1)
    step = max(1, BLOCK * first.shape[d] // first.size)
    for start in range(0, first.shape[d], step):
        part = (*(slice(None),) * d, slice(start, start + step))
        yield from in_blocks(first[part], *(x[part] if x.shape[d] > 1 else x for x in others))


def with_noise(x: Numbers, drawn: Numbers, unit: float, size: Numbers, where: Numbers) -> Numbers:
    """Doubles that are off by up to `unit` times a size in some places, as chances in [0, 1) say.

    What is not finite stays, as where the size is not. Complex chances are those of both parts.
    """
    result = np.empty(np.broadcast(x, drawn, size, where).shape, np.result_type(x, drawn))
    for target, part, chances, most, some in in_blocks(result, x, drawn, size, where):
        reach = unit * np.abs(most) * some
        off = (2 * chances - (1 + 1j if drawn.dtype.kind == "c" else 1)) * _where_finite(reach, reach, 0.0)
        target[...] = _where_finite(part, off + part, part)
    return result


def _where_finite(of: Numbers, x: Numbers, other: Numbers) -> Numbers:
    finite = np.isfinite(of)
    return x if np.count_nonzero(finite) == finite.size else np.where(finite, x, other)


def _binade(x: Numbers) -> Numbers:
    """The largest power of two that is no larger; zero for zero, and infinite for what is not finite."""
    return (x.view(np.int64) & EXPONENT).view(np.float64)


def _step(x: Numbers, to: Format) -> Numbers:
    """The distance of numbers of a format there."""
    step = _binade(x)
    step *= 2.0 ** (1 - to.digits)
    return np.maximum(step, to.smallest, out=step)


def are_numbers(x: Numbers, digits: int) -> Numbers:
    """True, elementwise, where doubles have no more than `digits` digits."""
    if x.dtype.kind == "c":
        return are_numbers(x.real, digits) & are_numbers(x.imag, digits)
    return (x.view(np.int64) & (1 << 53 - digits) - 1) == 0


def lowest_bit(x: Numbers, kept: int) -> Numbers:
    """The largest power of two of which all finite numbers are multiples; infinite where all are zero.

    One for each index of the first `kept` dimensions.
    """
    if x.dtype.kind == "c":
        return np.minimum(lowest_bit(x.real, kept), lowest_bit(x.imag, kept))
    least = np.full(x.shape[:kept] + (1,) * (x.ndim - kept), np.inf)
    for part, found in in_blocks(x, least):
        values = np.abs(part)
        bits = values.view(np.int64) | 1 << 52
        bits &= -bits
        bit = bits * 2.0**-52
        bit *= _binade(values)  # infinite for what is not finite
        np.copyto(bit, np.inf, where=values == 0)
        np.minimum(found, bit.min(axis=tuple(range(kept, x.ndim)), initial=np.inf, keepdims=True), out=found)
    return least


def literal_error(value: Numbers, dtype: np.dtype) -> Numbers:
    """The distance of a constant from the number that the source may have: one rounding, unless its digits are few.

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


def moved(value: Numbers, dtype: np.dtype, samples: int) -> Numbers:
    """A constant `[...]` as what it may have been rounded from, `[samples, ...]`, or twice as far off.

    Equal ones, and negatives, are moved together; in samples of single steps, which count `LARGER` times, less far.
    Both halves of the samples are stratified, so that one is beyond what the source may have, to either side.
    """
    if value.dtype.kind == "c":
        return np.asarray(moved(value.real, dtype, samples) + 1j * moved(value.imag, dtype, samples))
    off = literal_error(value, dtype)
    if not off.any():
        return value[None]
    size = np.asarray(np.abs(value), np.float64)
    each = np.arange(1, samples + 1, dtype=np.uint64).reshape(-1, *(1,) * value.ndim)
    mixed = (size.view(np.uint64) ^ each * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(31)) * np.uint64(0x94D049BB133111EB)
    half = (samples + 1) // 2
    strata = (each // np.uint64(2) + (mixed[:1] >> np.uint64(32))) % np.uint64(half)
    share = COARSE / 2 * ((strata + (mixed >> np.uint64(11)) * 2.0**-53) / half * 2 - 1)
    share[::2] /= LARGER
    return value + np.sign(value) * share * off


ACCUMULATED_BY_JAX = frozenset(
    {"convert_element_type", "reduce_precision", "add_any", "reduce_sum", "scatter-add", "dot_general"}
    | {"psum", "psum_invariant", "unreduced_psum", "reduce_scatter", "unreduced_reduce_scatter"}
)
"""Primitives of JAX's derivatives in the operands' dtype: the cotangents of several uses, and of replicas, add up."""


@dataclass(frozen=True)
class Charges:
    """The dtype to which each operation is rounded.

    Arguments:
        least: floats that are narrower count as this one; empty: every operation is rounded to its own dtype.
        own: the primitives that are rounded to their own dtype in spite of that.
        floor: floats that are narrower than this one count as it even there; empty: none do.
        split: whether a compiler may divide any sum over devices, as in a program of global arrays: its parts are then
            sent in the dtype of the sum.
        sums: the dtype in which sums of narrower floats are carried, whatever the program writes; empty: its own.
        on_the_way: whether that is so of what goes into a product, or a sum over devices, as well.
    """

    least: str = ""
    own: frozenset[str] = frozenset()
    floor: str = ""
    split: bool = False
    sums: str = ""
    on_the_way: bool = False

    def format(self, dtype: np.dtype, primitive: str, *, own: bool = False) -> Format:
        """The format to which a result of a traced dtype is rounded; `own`: as those of the primitives in `own`."""
        real, least = real_of(dtype), self.floor if own or primitive in self.own else self.least
        coarse = least and unit_roundoff(real) > unit_roundoff(np.dtype(least))
        return format_of(np.dtype(least) if coarse else real)


def charges_of(implementation: Implementation, case: Case, *, derivative: bool) -> Charges:
    """The dtypes to which the operations of an implementation are rounded in a case."""
    if "narrow_accumulation" in implementation.features:
        return Charges()
    contract, whole = case.contract, implementation.whole
    given, moving = [operand.numpy_dtype for operand in case.operands], contract.call.moving(case)
    met = [
        dtype
        for dtype in (*given, *contract.oracle.result_dtypes(case, given), *contract.oracle.casts)
        if is_float(dtype)
    ]
    sums = "" if derivative else implementation.accumulator  # cotangents JAX adds up in dtypes of its own
    if not moving:  # of integers alone nothing is rounded to 16 bits but what the program rounds
        return Charges("" if any(dtype.itemsize < 4 for dtype in met) else "float32", split=whole, sums=sums)
    floats = list(filter(is_float, given if contract.oracle.generic or case.tree else [given[moving[0]]]))
    if not floats:
        return Charges(split=whole, sums=sums)
    held = max(floats, key=unit_roundoff)
    # of a user's own, the narrowest; of global arrays a compiler may send parts of sums in their dtype
    carried = float32_accumulator(held) if contract.accumulator and not whole else held
    least = max([carried, *contract.oracle.casts], key=unit_roundoff)
    if not derivative:
        on_the_way = contract.accumulator == "float32 on a device"
        floor = real_of(held).name
        return Charges(real_of(least).name, floor=floor, split=whole, sums=sums, on_the_way=on_the_way)
    # JAX adds up in dtypes of the case: what is narrower was written
    narrowest = max(map(real_of, met), key=unit_roundoff)
    return Charges(real_of(least).name, ACCUMULATED_BY_JAX, narrowest.name, split=whole)
