"""The dtype to which each operation of a program is rounded in samples."""

from dataclasses import dataclass

import numpy as np

from shardproof.oracles.dtypes import is_float, real_of, unit_roundoff
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.precision.formats import Format, format_of
from shardproof.properties.programs.implementations import Implementation

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
