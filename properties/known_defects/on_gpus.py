"""The known defects of XLA:GPU, which its suite meets on one device already."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp

from shardproof.properties.cases.case import Case
from shardproof.properties.known_defects import faults, repairs
from shardproof.properties.known_defects.defect import Defect
from shardproof.properties.known_defects.showing import by_compiler
from shardproof.properties.laws.violation import Broken


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


def scanned_four_bits(case: Case, program: Any) -> Any:
    """A loop over integers of 4 bits."""
    return faults.first(
        program,
        lambda e: (
            e.primitive.name == "scan" and any(v.aval.dtype.name in ("int4", "uint4") for v in (*e.invars, *e.outvars))
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
        "gpu_four_bits_scan",
        "XLA:GPU compiles no scan that computes with rows of integers of 4 bits: it raises INTERNAL.",
        ("0.11.2",),
        platform="gpu",
        at_fault=scanned_four_bits,
        shows=lambda case, error: by_compiler(error, "Non-byte-aligned dimension in slice"),
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
