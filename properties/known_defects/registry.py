"""The known defects, those that may excuse a case with what is at fault, how it shows, and what takes it away."""

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import NESTED
from shardproof.properties.engines import Engine
from shardproof.properties.engines.simulate import RaggedMetadata, raised_in
from shardproof.properties.known_defects import faults, repairs
from shardproof.properties.programs.violation import Broken

MOST = ("0.10.2", "0.12.0.1")
"""The versions on which most were seen."""


@dataclass(frozen=True)
class Defect:
    """A defect of JAX or XLA.

    Those with `at_fault` excuse a case on which they show, if all of these hold: the equation at fault is in the
    traced program, the version and the platform are theirs, and without the defect the law holds on this very case.
    """

    name: str  # also the name of its script
    sentence: str  # what is wrong
    # the JAX versions on which the script showed it; it is taken to be in those between them, and no others
    seen_on: tuple[str, ...] = MOST
    engine: str = ""  # `xla` where the interpreter does not have it; empty: it is in what JAX does while it traces
    platform: str = ""  # the platform whose compiler has it; empty: any
    # case and traced program to the primitive at fault, if it is in the program with the parameters that it takes
    at_fault: Callable[[Case, Any], Any] = lambda case, program: None
    # case and exception to whether this is how it shows, given that the program is at fault
    shows: Callable[[Case, Exception], bool] = lambda case, error: False
    # the cases on which it may end the process, which is then not risked where the program is at fault; None: no case
    aborts: Callable[[Case], bool] | None = None
    last_words: bytes = b""  # what it prints when it ends a process after all
    # as `at_fault`, of a program on which it showed, or a process ended with these words: it may take more for
    # the cause, since the compiler makes more of a program than was traced. Without it, what is `at_fault`.
    suspect: Callable[[Case, Any], Any] | None = None
    # given the primitive at fault, rids JAX or XLA of the defect for as long as it is entered; None: the
    # interpreter is without it
    repair: Callable[[Any], AbstractContextManager[None]] | None = None
    # whether the compiler must hold too, once repaired: where what is at fault need not show it
    confirmed: bool = False

    @property
    def script(self) -> Path:
        """The script in plain JAX that shows it."""
        return Path(__file__).with_name(f"{self.name}.py")

    def in_version(self, version: str) -> bool:
        """Whether a version of JAX is taken to have it: one on which its script showed it, or between two such."""
        versions = sorted(map(release, self.seen_on))
        return versions[0] <= release(version) <= versions[-1]

    def is_in(self, engine: Engine) -> bool:
        """Whether this version of JAX has it, on this engine and platform."""
        if not self.in_version(jax.__version__):
            return False
        if self.platform:
            return engine.name == "xla" and jax.default_backend() == self.platform
        return self.engine in ("", engine.name)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: those of `0.12.0.1.dev20260101+abc` are 0, 12, 0 and 1."""
    found = re.match(r"\d+(\.\d+)*", version)
    assert found, version
    numbers = [int(number) for number in found[0].split(".")]
    while numbers[-1:] == [0]:
        numbers.pop()
    return tuple(numbers)


TEXT = """
special_loops_type: expi and random.binomial raise where an operand varies: their loops begin with constants.
argsort_type:
    argsort of what varies is typed as the same everywhere: out_specs=P() is accepted, and residuals are wrong.
random_parameters_type: random.gamma and random.beta raise where a parameter varies and the key does not.
x64_constant: A NumPy constant keeps the dtype of its first trace while a program holds it: jit fails after enable_x64.
custom_jvp_branch:
    The gradient of a vmap of a cond raises if a branch's custom_jvp has a mapped tangent, but no mapped result.
nested_shard_map_gradient:
    The gradient of a shard_map inside of another raises, or hangs: residuals name axes of the outer one.
empty_explicit_shards on 0.10.2:
    An empty array sharded over an explicit axis has shards of the global shape and cannot be read.
varying_predicate_type:
    What a varying predicate or trip count chooses is typed invariant: cond, switch, while_loop, fori_loop.
pure_callback_type: The result of a pure_callback on a varying operand is typed invariant.
psum_repeated_axis on 0.11.2, 0.12.0.1:
    psum, pmax and all_gather over a tuple that names an axis twice abort the process instead of raising.
negative_scatter_dimension on 0.10.2:
    psum_scatter and all_to_all accept negative dimensions while tracing and fail while lowering.
pmax_groups_type: pmax with axis_index_groups is typed invariant although the groups hold different values.
pmax_empty_axes on 0.10.2:
    pmax and pmin over an empty axis tuple raise where types are checked; psum and pmean do nothing.
ppermute_tuple_order: ppermute over a tuple out of mesh order numbers devices in mesh order (0.10) or is refused (0.12).
pbroadcast_axis_name: pbroadcast over one named axis iterates over the letters of the name and raises NameError.
grad_of_psum_unchecked: With check_vma=False, the gradient taken inside shard_map of a psum is silently wrong.
pmean_uneven_groups: pmean over axis_index_groups of different sizes divides the sum of each by the size of the first.
vmap_ppermute_tuple: ppermute over a tuple of a vmapped axis and a mesh axis silently drops the vmapped one.
vmap_ppermute_partial:
    ppermute over a vmapped axis fails an assertion unless every participant sends, and zero-fills nothing.
vmap_spmd_scan: vmap with spmd_axis_name of a shard_map that has a loop, a branch or remat in it raises for its types.
vmap_axis_name_checked: Inside shard_map with check_vma=True, collectives over a named axis of vmap fail an assertion.
int2_all_gather: XLA:CPU: all_gather of int2 returns garbage, or crashes on larger blocks.
int2_all_to_all: XLA:CPU: all_to_all of int2 aborts the process.
divergent_cond_gradient: The gradient of a cond whose predicate varies waits for ever where one branch uses a replica.
divergent_ppermute: XLA:CPU: a ppermute over one axis, under a predicate that differs only along another, never ends.
scatter_empty_index: XLA:CPU: scatter_add with empty index vectors writes to the wrong elements.
reduce_while_loop: XLA:CPU: compiling lax.reduce with a while_loop in its function aborts the process.
exp2_bfloat16: exp2 of a bfloat16 is lowered to exp of x times a rounded log(2), and is up to six percent off.
device_put_waits:
    device_put to other devices waits for its operand, on the host, unless they are to hold the same parts of it.
dot_general_batch_type on 0.10.2:
    On explicit axes dot_general types a batch dimension by its left operand alone: an axis of the right is lost.
reshape_axis_of_one:
    On explicit axes a split or merge fails an assertion if an axis of one device is last and parts are one row.
reshape_beside_ones on 0.10.2:
    On explicit axes a split beside dimensions of one element fails an assertion, or is refused.
reshape_to_ones on 0.11.2, 0.12.0.1: On explicit axes a merge that adds dimensions of one element raises IndexError.
reshard_over_another_axis:
    XLA sends up to 1.5 times what a gather takes where axes of two give way to one, in another dimension.
clamped_update: XLA drops an update of a sharded dimension that starts behind its end, in place of clamping the start.
clamped_slice on 0.10.2:
    XLA reads a dynamic_slice of a sharded dimension that starts behind its end from the wrong place.
convolution_both_sharded:
    A convolution whose operands are both sharded along what is added up is doubled over the other axis of a mesh.
grouped_convolution:
    A grouped convolution takes wrong groups, or corrupts memory, where an axis shards the features of its operand.
sliced_beside_whole:
    XLA returns part of an array for all of it where a slice of it, which two axes shard, is asked for as well.
scatter_rows_lost on 0.10.2:
    A batched scatter_add loses rows of its operand where one axis of two shards that, and both shard the indices.
scatter_after_scatter on 0.10.2:
    An update of the first row overwrites that of each shard, of what a scatter_add of sharded rows has returned.
pool_tangent_padding on 0.10.2:
    The JVP of a maximum over windows is -inf for a window of padding alone, where an axis shards the operand.
empty_window: XLA aborts while it compiles a reduce_window of an empty array whose result, of padding, an axis shards.
reshape_of_nothing: On explicit axes a merge of an empty dimension that an axis shards raises IndexError.
pad_gradient:
    On explicit axes the gradient of a pad along a sharded dimension is refused if parts are uneven on the way.
pool_gradient_padding:
    The gradient of a maximum over padded windows loses what comes from windows at the edge of a shard.
dilated_window: A reduce_window over a replicated, dilated operand is wrong where its result is to be sharded.
scatter_min_identity on 0.10.2:
    A scatter_min by indices and updates over one axis leaves infinity where nothing is written.
bits_over_devices:
    XLA:CPU compiles no reduction over devices but of sums, products and maxima: reduce_xor raises UNIMPLEMENTED.
transform_to_replicas:
    XLA:CPU raises INTERNAL for a Fourier transform of a sharded array whose result has another layout.
slice_beyond_stride:
    XLA raises INTERNAL for a slice of one element of a sharded dimension whose stride is longer than what is left.
pool_tangent_uneven: XLA aborts while it compiles the JVP of a maximum over padded windows beside an axis of three.
pool_tangent_stride:
    XLA refuses the JVP of a maximum over padded windows of a stride: its parts come in different shapes.
shift_across_axes on 0.12.0.1:
    XLA aborts where rows that were shifted move to an axis of another size: it cannot slice a dimension.
dilated_padding: A pad between elements of a replicated array is wrong, or fails, where its result is to be sharded.
negative_dilated_padding:
    XLA aborts while it compiles a pad between elements that takes away the first, along a sharded dimension.
index_gradient on 0.12.0.1:
    On explicit axes the gradient of one element of a sharded array raises, though it may be taken.
clamp_gradient:
    On explicit axes the gradient of clamp by a bound is refused where an axis shards that, and not the operand.
gather_gradient:
    On explicit axes the gradient of take_along_axis raises where an axis shards the indices, and not the operand.
product_gradient: On explicit axes the gradient of reduce_prod along a dimension that nothing shards is refused.
determinant_gradient on 0.12.0.1: On explicit axes the gradient of the determinants of a sharded batch is refused.
svd_gradient: On explicit axes the gradient of the singular vectors of a sharded batch raises.
sort_gradient on 0.10.2: On explicit axes the gradient of a sort along a dimension that nothing shards is refused.
triangle_of_batch:
    On explicit axes cholesky, qr and triangular_solve's gradient raise for a sharded batch: their mask has no layout.
triangular_solve_refusal:
    On explicit axes triangular_solve raises AttributeError, no type error, where one axis shards rows and columns.
inverse_batch: On explicit axes the inverses of a sharded batch raise for an operand that is made inside.
index_repeats_axis:
    On explicit axes indices over the axis that shards another dimension raise for a type that cannot be.
int4_bits_counted: XLA:CPU counts bits of a negative int4 as if it had eight, and some of what is left is cut off.
int4_top_k: XLA:CPU compiles no top_k of int4: it raises INVALID_ARGUMENT.
"""
"""Of each the name, the versions that it was seen on if they are other ones than of most, and the sentence."""

RECORDED = tuple(
    Defect(name, sentence, tuple(versions.split(", ")) if versions else MOST)
    for name, versions, sentence in re.findall(r"^(\w+)(?: on (.+))?:\s+(.+)", TEXT, re.MULTILINE)
)


Shows = Callable[[Case, Exception], bool]


def _raised(
    kind: type[Exception], words: str = "", *, by: str = "", when: Callable[[Case], bool] = lambda case: True
) -> Shows:
    """Whether an exception of this very type has such words, a pattern, and was raised by a module of this prefix."""
    return lambda case, error: (
        when(case)
        and type(error) is kind
        and re.search(words, str(error)) is not None
        and (not by or raised_in(error).startswith(by))
    )


def _refused(words: str) -> Shows:
    """Whether it is the compiler that refuses a program, in these words."""
    return lambda case, error: isinstance(error, jax.errors.JaxRuntimeError) and words in str(error)


def _under_vmap(case: Case) -> bool:
    """Whether something is mapped: the call, or its derivative."""
    return any("vmap" in name or name == "jacobian" for name in case.chain)


def _of_complex(case: Case) -> bool:
    return any(operand.dtype.startswith("complex") for operand in case.operands)


def _wrong_values(case: Case, error: Exception) -> bool:
    return isinstance(error, Broken) and error.kind == "values"


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


def _loses_nan(case: Case, error: Exception) -> bool:
    """Whether elements are wrong only where they should be NaN."""
    difference = error.difference if isinstance(error, Broken) else None
    if difference is None or not difference.comparable:
        return False
    return bool((difference.expected[difference.wrong] != difference.expected[difference.wrong]).all())


EXCUSING = (
    Defect(
        "pmax_loses_nan",
        "XLA:CPU: the maximum or minimum over devices ignores NaN, which jax.numpy propagates.",
        platform="cpu",
        at_fault=faults.having("pmax", "pmin", where=faults.of_floats),
        shows=_loses_nan,
        repair=repairs.maximum_of_gathered,
    ),
    Defect(
        "product_over_three_axes",
        "A product summed over an axis, and sharded over it and, by rows, two more, swaps rows.",
        engine="xla",
        at_fault=faults.product_over_three_axes,
        shows=_wrong_values,
        repair=repairs.products_added_up,
        confirmed=True,
    ),
    Defect(
        "overlapping_update",
        "XLA:CPU: `x.at[1:].set(x[:-1])[None]`, or add, under jit reads of x what it has written already.",
        platform="cpu",
        at_fault=faults.update_of_itself,
        shows=_wrong_values,
        repair=repairs.nothing_fused,
        confirmed=True,
    ),
    Defect(
        "top_k_negative_zero",
        "XLA:CPU: top_k takes -0 for less than 0, and so not the first of equal elements, as JAX promises.",
        platform="cpu",
        at_fault=faults.having("top_k", where=faults.of_floats),
        shows=_wrong_values,
        repair=repairs.zeros_alike,
        confirmed=True,
    ),
    Defect(
        "reduce_max_loses_nan",
        "XLA:CPU: the maximum or minimum of an array of 4,096 elements or more ignores NaN.",
        platform="cpu",
        at_fault=faults.having(
            "reduce_max",
            "reduce_min",
            where=lambda e: faults.of_floats(e) and math.prod(faults.shape(e)) >= faults.MANY,
        ),
        shows=_loses_nan,
    ),
    Defect(
        "all_to_all_untiled_transpose",
        "The gradient of an untiled all_to_all raises ValueError unless split_axis equals concat_axis.",
        at_fault=faults.having(
            "all_to_all", where=lambda e: not e.params["tiled"] and e.params["split_axis"] != e.params["concat_axis"]
        ),
        shows=_raised(ValueError, "Expected cotangent type"),
        repair=repairs.exchange_transposed,
    ),
    Defect(
        "psum_scatter_untiled_vmap",
        "vmap of an untiled psum_scatter raises IndexError where the batch dimension comes last.",
        at_fault=faults.having("reduce_scatter", where=lambda e: not e.params["tiled"]),
        shows=_raised(IndexError, when=_under_vmap),
        repair=repairs.scatter_batched,
    ),
    Defect(
        "custom_vmap_jacobian",
        "jacfwd of a custom_vmap calls its rule with an operand that is not batched, which most rules cannot take.",
        at_fault=faults.having("custom_vmap_call"),
        shows=lambda case, error: "jacobian" in case.chain and not isinstance(error, Broken),
        repair=repairs.custom_vmap_mapped,
    ),
    Defect(
        "vmap_varying_branch",
        "vmap of a cond whose predicate is mapped and varies raises if a branch casts an operand to vary.",
        at_fault=faults.cast_in_a_branch,
        shows=_raised(ValueError, "invariant->variant|require.* varying manual axes to match", when=_under_vmap),
        repair=repairs.operands_as_typed,
    ),
    Defect(
        "searchsorted_partial_manual",
        "searchsorted in an array that varies fails an assertion beside an axis that is not manual.",
        at_fault=faults.having("jit", "pjit", where=lambda e: e.params.get("name") == "searchsorted"),
        shows=_raised(AssertionError, r"^ManualAxisType\(", when=lambda case: bool(case.manual)),
        repair=repairs.search_typed,
    ),
    Defect(
        "erf_gradient",
        "The gradient of erf and erfc, and so of an exact GELU, raises where the operand varies.",
        seen_on=("0.12.0.1",),
        at_fault=faults.having("erf", "erfc"),
        shows=_raised(ValueError, "^Primitive polynomial requires varying manual axes"),
        repair=repairs.error_function,
    ),
    Defect(
        "nested_shard_map_eager",
        "Without jit, a shard_map inside of another raises where it is replicated along an axis of the outer one.",
        engine="xla",
        at_fault=faults.having("shard_map", where=faults.nests),
        shows=_raised(ValueError, by="jax.", when=lambda case: "eager" in case.chain),
    ),
    Defect(
        "explicit_axis_of_one",
        "Beside an automatic axis that shards an array, its type loses explicit axes of one: shard_map raises.",
        engine="xla",
        at_fault=faults.along_one_explicit,
        shows=_raised(ValueError, "^(in_specs passed to shard_map: |unexpected JAX type )", by="jax."),
    ),
    Defect(
        "empty_all_gather",
        "A tiled all_gather or psum_scatter along an empty dimension fails in the verifier while lowering.",
        engine="xla",
        at_fault=faults.having("all_gather", "all_gather_invariant", "reduce_scatter", where=faults.along_nothing),
        shows=_raised(ValueError, "verifier errors"),
    ),
    Defect(
        "psum_scatter_partial_explicit",
        "A psum_scatter beside an explicit axis that is not manual cannot be lowered, and untiled not be traced.",
        seen_on=("0.11.2", "0.12.0.1"),
        at_fault=faults.scatter_beside_explicit,
        shows=_raised(ValueError, r"Length of sharding\.spec"),
    ),
    Defect(
        "bf16_reduction_partial_manual",
        "XLA:CPU aborts while it compiles a bfloat16 reduction over devices beside an axis that is not manual.",
        platform="cpu",
        at_fault=faults.bfloat16_beside_automatic,
        # a program of a user's own may have a `shard_map` of its own
        aborts=lambda case: (
            0 < len(case.manual) < len(case.mesh.axis_names)
            or (bool(case.roles) and any(operand.dtype == "bfloat16" for operand in case.operands))
        ),
    ),
    Defect(
        "all_reduce_of_one_partial_manual",
        "XLA cannot compile a psum or pmax over one device beside an axis left to it that shards the operand.",
        engine="xla",
        at_fault=faults.all_reduce_of_one_beside_automatic,
        shows=_refused("Cross-partition allreduce must be in (partial) manual"),
    ),
    Defect(
        "gather_partial_manual",
        "XLA aborts while it compiles a gather from an array that two axes left to it shard, beside a manual axis.",
        engine="xla",
        at_fault=faults.gather_beside_two_automatic,
        aborts=lambda case: sum(size > 1 for size in case.mesh.sizes) > 2 and bool(case.manual or case.roles),
    ),
    Defect(
        "nested_partial_manual_order",
        "XLA aborts while it compiles a shard_map in one of a later axis, beside an axis that is not manual.",
        seen_on=("0.11.2", "0.12.0.1"),
        engine="xla",
        at_fault=faults.nested_out_of_order,
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
        at_fault=faults.having("shard_map", where=faults.of_nothing),
        shows=_refused("expected at least one operand of"),
    ),
    Defect(
        "complex_constant_sum",
        "XLA:CPU aborts while it compiles the psum or psum_scatter of a complex constant.",
        platform="cpu",
        at_fault=faults.sum_of_complex_constant,
        aborts=_of_complex,
        last_words=b"Check failed: buffer != nullptr",
        suspect=faults.having(*faults.SUMS, where=lambda e: faults.dtype(e).kind == "c"),
    ),
    Defect(
        "unused_explicit_operand",
        "Without jit, the gradient by an operand that does not matter raises where an explicit axis shards it.",
        engine="xla",
        at_fault=faults.constant_result,
        shows=_raised(
            ValueError,
            "when only AbstractMesh exists in a jitted computation",
            when=lambda case: "eager" in case.chain and "explicit" in case.mesh.axis_types,
        ),
    ),
    Defect(
        "ragged_all_to_all_cpu",
        "XLA:CPU compiles no ragged_all_to_all: it raises UNIMPLEMENTED.",
        platform="cpu",
        at_fault=faults.having("ragged_all_to_all"),
        shows=_refused("HLO opcode `ragged-all-to-all` is not supported"),
    ),
    Defect(
        "ragged_all_to_all_vmap",
        "vmap of ragged_all_to_all fails an assertion without a message unless all of its operands are mapped.",
        at_fault=faults.having("ragged_all_to_all"),
        shows=_raised(AssertionError, when=_under_vmap),
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_type",
        "ragged_all_to_all is typed as its `output` operand alone, so a varying result passes as invariant.",
        at_fault=faults.having("ragged_all_to_all"),
        shows=_typed_invariant,
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_output_gradient",
        "The gradient of ragged_all_to_all by `output` is wrong where an empty slice has the offset of another.",
        at_fault=faults.having("ragged_all_to_all"),
        shows=lambda case, error: _backward(case, error) and not isinstance(error, RaggedMetadata),
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_operand_gradient",
        "The gradient of ragged_all_to_all by `operand` keeps one cotangent of a row that was sent several times.",
        at_fault=faults.having("ragged_all_to_all"),
        shows=_backward,
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "gpu_small_product",
        "XLA:GPU rounds each term of a small batched product of 16-bit floats to those, though its result is float32.",
        ("0.11.2",),
        platform="gpu",
        at_fault=faults.having("dot_general", where=faults.narrow_product),
        shows=_wrong_values,
        repair=repairs.widened_first,
        confirmed=True,
    ),
    Defect(
        "gpu_rows_of_bits",
        "XLA:GPU compiles no loop over rows that are no whole number of bytes: it raises INTERNAL.",
        ("0.11.2",),
        platform="gpu",
        at_fault=faults.rows_of_bits,
        shows=_refused("Non-byte-aligned dimension in slice"),
    ),
    Defect(
        "gpu_complex_constant_sum",
        "XLA:GPU raises INTERNAL, or aborts, while it compiles the psum or psum_scatter of a complex constant.",
        ("0.11.2",),
        platform="gpu",
        at_fault=faults.sum_of_complex_constant,
        shows=_refused("SameElementType(broadcast->shape(), operand_shape)"),
        aborts=_of_complex,
        last_words=b"Check failed: buffer != nullptr",
        suspect=faults.having(*faults.SUMS, where=lambda e: faults.dtype(e).kind == "c"),
    ),
    Defect(
        "gpu_scalar_permute",
        "XLA:GPU crashes while it compiles the ppermute of a scalar of less than a byte, as of int4.",
        ("0.11.2",),
        platform="gpu",
        at_fault=faults.having(
            "ppermute", where=lambda e: any(not v.aval.shape and v.aval.dtype.name in faults.NARROW for v in e.invars)
        ),
        aborts=lambda case: any(operand.dtype in faults.NARROW for operand in case.operands),
    ),
    Defect(
        "gpu_ragged_all_to_all_bool",
        "XLA:GPU runs no ragged_all_to_all of booleans: it raises INVALID_ARGUMENT.",
        ("0.11.2",),
        platform="gpu",
        at_fault=faults.having("ragged_all_to_all", where=lambda e: faults.dtype(e).kind == "b"),
        shows=_refused("RaggedAllToAll fallback to NCCL is not allowed"),
    ),
)
"""Those that excuse a case, in the order in which they are asked."""

DEFECTS: dict[str, Defect] = {defect.name: defect for defect in (*EXCUSING, *RECORDED)}
