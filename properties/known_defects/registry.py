"""The known defects, those that may excuse a case with what is at fault, how it shows, and what takes it away.

Those of XLA:GPU come first, which its suite meets on one device already.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import NESTED
from shardproof.properties.engines.simulate import RaggedMetadata, raised_in
from shardproof.properties.engines.simulate.liveness import equations, scan_counts, subjaxprs
from shardproof.properties.known_defects import faults, partly_manual, repairs
from shardproof.properties.known_defects.defect import BUFFER_MISSING, Defect, by_compiler, of_complex, under_vmap
from shardproof.properties.known_defects.recorded import RECORDED
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


def _backward(case: Case, error: Exception) -> bool:
    """Whether a gradient is wrong, or the exchange that computes it contradicts itself."""
    if isinstance(error, Broken):
        return error.of == "gradient" and error.kind not in ("communication", "overlap")
    return isinstance(error, RaggedMetadata)


def _typed_invariant(case: Case, error: Exception) -> bool:
    """Whether a result varies that is typed invariant, or JAX finds its cotangent to be of another type."""
    if isinstance(error, Broken):
        return error.kind == "replicas"
    return type(error) is ValueError and str(error).startswith("Expected cotangent type")


RAGGED = (
    Defect(
        "ragged_all_to_all_cpu",
        "XLA:CPU compiles no ragged_all_to_all: it raises UNIMPLEMENTED.",
        platform="cpu",
        at_fault=faults.ragged_exchange,
        shows=lambda case, error: by_compiler(error, "HLO opcode `ragged-all-to-all` is not supported"),
    ),
    Defect(
        "ragged_all_to_all_vmap",
        "vmap of ragged_all_to_all fails an assertion without a message unless all of its operands are mapped.",
        at_fault=faults.ragged_exchange,
        shows=lambda case, error: under_vmap(case) and type(error) is AssertionError,
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_type",
        "ragged_all_to_all is typed as its `output` operand alone, so a varying result passes as invariant.",
        at_fault=faults.ragged_exchange,
        shows=_typed_invariant,
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_output_gradient",
        "The gradient of ragged_all_to_all by `output` is wrong where an empty slice has the offset of another.",
        at_fault=faults.ragged_exchange,
        shows=lambda case, error: _backward(case, error) and not isinstance(error, RaggedMetadata),
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_operand_gradient",
        "The gradient of ragged_all_to_all by `operand` keeps one cotangent of a row that was sent several times.",
        at_fault=faults.ragged_exchange,
        shows=_backward,
        repair=repairs.ragged_exchange,
    ),
)


def _of_bfloat16(case: Case) -> bool:
    """Whether a program of a user's own, which may have a `shard_map` of its own, is given bfloat16."""
    return bool(case.roles) and any(operand.dtype == "bfloat16" for operand in case.operands)


def _loses_nan(case: Case, error: Exception) -> bool:
    """Whether elements are wrong only where they should be NaN."""
    difference = error.difference if isinstance(error, Broken) else None
    if difference is None or not difference.comparable:
        return False
    return bool((difference.expected[difference.wrong] != difference.expected[difference.wrong]).all())


DEFECTS: dict[str, Defect] = {
    defect.name: defect
    for defect in (
        Defect(
            "pmax_loses_nan",
            "XLA:CPU: the maximum or minimum over devices ignores NaN, which jax.numpy propagates.",
            platform="cpu",
            at_fault=faults.maximum,
            shows=_loses_nan,
            repair=repairs.maximum_of_gathered,
        ),
        Defect(
            "product_over_three_axes",
            "A product summed over an axis, and sharded over it and, by rows, two more, swaps rows.",
            engine="xla",
            at_fault=faults.product_over_three_axes,
            shows=lambda case, error: isinstance(error, Broken) and error.kind == "values",
            repair=repairs.products_added_up,
            confirmed=True,
        ),
        Defect(
            "overlapping_update",
            "XLA:CPU: `x.at[1:].set(x[:-1])[None]`, or add, under jit reads of x what it has written already.",
            platform="cpu",
            at_fault=faults.update_of_itself,
            shows=lambda case, error: isinstance(error, Broken) and error.kind == "values",
            repair=repairs.nothing_fused,
            confirmed=True,
        ),
        Defect(
            "top_k_negative_zero",
            "XLA:CPU: top_k takes -0 for less than 0, and so not the first of equal elements, as JAX promises.",
            platform="cpu",
            at_fault=faults.largest,
            shows=lambda case, error: isinstance(error, Broken) and error.kind == "values",
            repair=repairs.zeros_alike,
            confirmed=True,
        ),
        Defect(
            "reduce_max_loses_nan",
            "XLA:CPU: the maximum or minimum of an array of 4,096 elements or more ignores NaN.",
            platform="cpu",
            at_fault=faults.maximum_of_many,
            shows=_loses_nan,
        ),
        Defect(
            "all_to_all_untiled_transpose",
            "The gradient of an untiled all_to_all raises ValueError unless split_axis equals concat_axis.",
            at_fault=faults.untiled_exchange,
            shows=lambda case, error: type(error) is ValueError and "Expected cotangent type" in str(error),
            repair=repairs.exchange_transposed,
        ),
        Defect(
            "psum_scatter_untiled_vmap",
            "vmap of an untiled psum_scatter raises IndexError where the batch dimension comes last.",
            at_fault=faults.untiled_scatter,
            shows=lambda case, error: under_vmap(case) and type(error) is IndexError,
            repair=repairs.scatter_batched,
        ),
        Defect(
            "custom_vmap_jacobian",
            "jacfwd of a custom_vmap calls its rule with an operand that is not batched, which most rules cannot take.",
            at_fault=faults.custom_vmap,
            shows=lambda case, error: "jacobian" in case.chain and not isinstance(error, Broken),
            repair=repairs.custom_vmap_mapped,
        ),
        Defect(
            "vmap_varying_branch",
            "vmap of a cond whose predicate is mapped and varies raises if a branch casts an operand to vary.",
            at_fault=faults.cast_in_a_branch,
            shows=lambda case, error: (
                under_vmap(case) and type(error) is ValueError and "invariant->variant" in str(error)
            ),
            repair=repairs.cast_again,
        ),
        Defect(
            "searchsorted_partial_manual",
            "searchsorted in an array that varies fails an assertion beside an axis that is not manual.",
            at_fault=faults.search,
            shows=lambda case, error: (
                bool(case.manual) and type(error) is AssertionError and str(error).startswith("ManualAxisType(")
            ),
            repair=repairs.search_typed,
        ),
        Defect(
            "erf_gradient",
            "The gradient of erf and erfc, and so of an exact GELU, raises where the operand varies.",
            seen_on=("0.12.0.1",),
            at_fault=faults.error_function,
            shows=lambda case, error: (
                type(error) is ValueError and str(error).startswith("Primitive polynomial requires varying manual axes")
            ),
            repair=repairs.error_function,
        ),
        Defect(
            "nested_shard_map_eager",
            "Without jit, a shard_map inside of another raises where it is replicated along an axis of the outer one.",
            engine="xla",
            at_fault=faults.nested,
            shows=lambda case, error: (
                "eager" in case.chain and type(error) is ValueError and raised_in(error).startswith("jax.")
            ),
        ),
        Defect(
            "explicit_axis_of_one",
            "Beside an automatic axis that shards an array, its type loses explicit axes of one: shard_map raises.",
            engine="xla",
            at_fault=partly_manual.along_one_explicit,
            shows=lambda case, error: (
                type(error) is ValueError
                and raised_in(error).startswith("jax.")
                and str(error).startswith(("in_specs passed to shard_map: ", "unexpected JAX type "))
            ),
        ),
        Defect(
            "empty_all_gather",
            "A tiled all_gather or psum_scatter along an empty dimension fails in the verifier while lowering.",
            engine="xla",
            at_fault=faults.along_nothing,
            shows=lambda case, error: type(error) is ValueError and "verifier errors" in str(error),
        ),
        Defect(
            "psum_scatter_partial_explicit",
            "A psum_scatter beside an explicit axis that is not manual cannot be lowered, and untiled not be traced.",
            seen_on=("0.11.2", "0.12.0.1"),
            at_fault=partly_manual.scatter_beside_explicit,
            shows=lambda case, error: type(error) is ValueError and "Length of sharding.spec" in str(error),
        ),
        Defect(
            "bf16_reduction_partial_manual",
            "XLA:CPU aborts while it compiles a bfloat16 reduction over devices beside an axis that is not manual.",
            platform="cpu",
            at_fault=partly_manual.bfloat16_beside_automatic,
            aborts=lambda case: 0 < len(case.manual) < len(case.mesh.axis_names) or _of_bfloat16(case),
        ),
        Defect(
            "all_reduce_of_one_partial_manual",
            "XLA cannot compile a psum or pmax over one device beside an axis left to it that shards the operand.",
            engine="xla",
            at_fault=partly_manual.all_reduce_of_one_beside_automatic,
            shows=lambda case, error: by_compiler(error, "Cross-partition allreduce must be in (partial) manual"),
        ),
        Defect(
            "gather_partial_manual",
            "XLA aborts while it compiles a gather from an array that two axes left to it shard, beside a manual axis.",
            engine="xla",
            at_fault=partly_manual.gather_beside_two_automatic,
            aborts=lambda case: sum(size > 1 for size in case.mesh.sizes) > 2 and bool(case.manual or case.roles),
        ),
        Defect(
            "nested_partial_manual_order",
            "XLA aborts while it compiles a shard_map in one of a later axis, beside an axis that is not manual.",
            seen_on=("0.11.2", "0.12.0.1"),
            engine="xla",
            at_fault=partly_manual.nested_out_of_order,
            aborts=lambda case: NESTED in case.chain or bool(case.roles),
        ),
        Defect(
            "reshard_after_another",
            "XLA aborts where an axis goes to another dimension, in front of one of a different size, or away from it.",
            seen_on=("0.11.2", "0.12.0.1"),
            engine="xla",
            at_fault=faults.relaid_in_front,
            aborts=lambda case: bool(case.roles),
        ),
        Defect(
            "empty_product",
            "A shard_map of several operands, all of them empty, that has a result fails while XLA compiles it.",
            engine="xla",
            at_fault=faults.of_nothing,
            shows=lambda case, error: by_compiler(error, "expected at least one operand of"),
        ),
        Defect(
            "complex_constant_sum",
            "XLA:CPU aborts while it compiles the psum or psum_scatter of a complex constant.",
            platform="cpu",
            at_fault=faults.sum_of_complex_constant,
            aborts=of_complex,
            last_words=BUFFER_MISSING,
            suspect=faults.sum_of_complex,
        ),
        Defect(
            "unused_explicit_operand",
            "Without jit, the gradient by an operand that does not matter raises where an explicit axis shards it.",
            engine="xla",
            at_fault=faults.constant_result,
            shows=lambda case, error: (
                "eager" in case.chain
                and "explicit" in case.mesh.axis_types
                and type(error) is ValueError
                and "when only AbstractMesh exists in a jitted computation" in str(error)
            ),
        ),
        *RAGGED,
        *GPU,
        *RECORDED,
    )
}
