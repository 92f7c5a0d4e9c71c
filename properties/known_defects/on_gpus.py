"""The known defects of XLA:GPU, which its suite meets on one device already."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from shardproof.properties.cases.case import Case
from shardproof.properties.engines.simulate.liveness import equations, scan_counts, subjaxprs
from shardproof.properties.known_defects import faults, repairs
from shardproof.properties.known_defects.defect import BUFFER_MISSING, Defect, by_compiler, of_complex
from shardproof.properties.programs.violation import Broken

NARROW = {"int4": 4, "uint4": 4}
"""The dtypes whose elements are no whole bytes, and their bits, of those that cases have."""

STARTS = {"dynamic_slice": 1, "dynamic_update_slice": 2}
"""What reads or writes a part of an array, and where among its operands the indices of the part begin."""


def narrow_product(case: Case, program: Any) -> Any:
    """A product of floats of 16 bits that are added up in wider ones."""
    return faults.first(
        program,
        lambda e: (
            e.primitive.name == "dot_general"
            and all(v.aval.dtype.name in ("bfloat16", "float16") for v in e.invars)
            and e.outvars[0].aval.dtype.itemsize > 2
        ),
    )


def rows_of_bits(case: Case, program: Any) -> Any:
    """A loop that reads or writes parts of an array which are no whole number of bytes apart."""
    for loop in equations(program):
        if loop.primitive.name in ("scan", "while"):
            inside = (equation for body in subjaxprs(loop) for equation in equations(body))
            if any(_steps_over_bits(array, along) for e in (loop, *inside) for array, along in _indexed(e)):
                return loop.primitive
    return None


def _indexed(equation: Any) -> Iterator[tuple[Any, int]]:
    """The arrays of which an equation reads or writes a part, each with a dimension along which that may be anywhere.

    Of a gather or scatter these are all that are indexed.
    """
    name = equation.primitive.name
    dimensions: tuple[int, ...] = ()
    if name == "scan":
        consts, carried = scan_counts(equation)
        rows = (*equation.invars[consts + carried :], *equation.outvars[carried:])
        yield from ((each, 0) for each in rows)
    elif name in STARTS:
        array, part = equation.invars[0], equation.invars[1] if STARTS[name] == 2 else equation.outvars[0]
        starts = enumerate(equation.invars[STARTS[name] :])
        moving = (d for d, start in starts if not (isinstance(start, core.Literal) and start.val == 0))
        dimensions = tuple(d for d in moving if part.aval.shape[d] < array.aval.shape[d])
    elif name == "gather":
        dimensions = equation.params["dimension_numbers"].start_index_map
    elif name in faults.SCATTERS:
        dimensions = equation.params["dimension_numbers"].scatter_dims_to_operand_dims
    yield from ((equation.invars[0], dimension) for dimension in dimensions)


def _steps_over_bits(array: Any, along: int) -> bool:
    """Whether one step along a dimension of an array is no whole number of bytes."""
    return math.prod(array.aval.shape[along + 1 :]) * NARROW.get(array.aval.dtype.name, 8) % 8 != 0


def permuted_scalar(case: Case, program: Any) -> Any:
    """A ppermute of a scalar of less than a byte."""
    return faults.first(
        program,
        lambda e: (
            e.primitive.name == "ppermute" and any(not v.aval.shape and v.aval.dtype.name in NARROW for v in e.invars)
        ),
    )


def ragged_truths(case: Case, program: Any) -> Any:
    """A ragged_all_to_all of booleans."""
    return faults.first(program, lambda e: e.primitive.name == "ragged_all_to_all" and faults.dtype(e).kind == "b")


@contextmanager
def widened_first(primitive: Any) -> Iterator[None]:
    """The operands of a product are of the dtype of its result before they are multiplied."""
    original = primitive.bind

    def bind(*operands: Any, preferred_element_type: Any = None, **params: Any) -> Any:
        if preferred_element_type is not None:
            operands = tuple(x.astype(jnp.promote_types(x.dtype, preferred_element_type)) for x in operands)
        return original(*operands, preferred_element_type=preferred_element_type, **params)

    with repairs.bound({primitive: bind}):
        yield


GPU = (
    Defect(
        "gpu_small_product",
        "XLA:GPU rounds each term of a small batched product of 16-bit floats to those, though its result is float32.",
        ("0.11.2",),
        platform="gpu",
        at_fault=narrow_product,
        shows=lambda case, error: isinstance(error, Broken) and error.kind == "values",
        repair=widened_first,
        confirmed=True,
    ),
    Defect(
        "gpu_rows_of_bits",
        "XLA:GPU compiles no loop over rows that are no whole number of bytes: it raises INTERNAL.",
        ("0.11.2",),
        platform="gpu",
        at_fault=rows_of_bits,
        shows=lambda case, error: by_compiler(error, "Non-byte-aligned dimension in slice"),
    ),
    Defect(
        "gpu_complex_constant_sum",
        "XLA:GPU raises INTERNAL, or aborts, while it compiles the psum or psum_scatter of a complex constant.",
        ("0.11.2",),
        platform="gpu",
        at_fault=faults.sum_of_complex_constant,
        shows=lambda case, error: by_compiler(error, "SameElementType(broadcast->shape(), operand_shape)"),
        aborts=of_complex,
        last_words=BUFFER_MISSING,
        suspect=faults.sum_of_complex,
    ),
    Defect(
        "gpu_scalar_permute",
        "XLA:GPU crashes while it compiles the ppermute of a scalar of less than a byte, as of int4.",
        ("0.11.2",),
        platform="gpu",
        at_fault=permuted_scalar,
        aborts=lambda case: any(operand.dtype in NARROW for operand in case.operands),
    ),
    Defect(
        "gpu_ragged_all_to_all_bool",
        "XLA:GPU runs no ragged_all_to_all of booleans: it raises INVALID_ARGUMENT.",
        ("0.11.2",),
        platform="gpu",
        at_fault=ragged_truths,
        shows=lambda case, error: by_compiler(error, "RaggedAllToAll fallback to NCCL is not allowed"),
    ),
)
