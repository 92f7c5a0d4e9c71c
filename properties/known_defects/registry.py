"""The known defects; entries for those that may excuse a case, with the fault, how it shows, and the repair."""

import math
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import NESTED
from shardproof.properties.engines import Engine
from shardproof.properties.engines.simulate.errors import RaggedMetadata, UnequalReplicas, raised_in
from shardproof.properties.known_defects import faults, repairs
from shardproof.properties.programs.violation import Broken

FOLDER = Path(__file__).parent
OWN = frozenset({"__init__", "excuses", "faults", "registry", "repairs", "shown"})
"""The modules of this folder that are no scripts."""

MOST = ("0.10.2", "0.12.0.1")
"""The versions on which a defect was seen whose script names no others."""


@dataclass(frozen=True)
class Defect:
    """A defect of JAX or XLA.

    Those with `at_fault` excuse a case on which they show, if all of these hold: the equation at fault is in the
    traced program, the version and the platform are theirs, and without the defect the law holds on this very case.
    """

    name: str  # that of its script, which says what is wrong and on which versions it was seen
    engine: str = ""  # `xla` if the interpreter does not have it; empty: it is in JAX's tracing
    platform: str = ""  # the platform whose compiler has it; empty: any
    # case and traced program to the primitive at fault, with the parameters at fault, or None
    at_fault: Callable[[Case, Any], Any] = lambda case, program: None
    # whether an exception on a case is how it shows, given that the program is at fault
    shows: Callable[[Case, Exception], bool] = lambda case, error: False
    # the cases on which it may end the process if the program is at fault; None: no case
    aborts: Callable[[Case], bool] | None = None
    # replaces `at_fault` for a program on which it showed, or a process ended with its words: a wider condition,
    # since a compiler may compute constants that the trace does not show
    suspect: Callable[[Case, Any], Any] | None = None
    # given the primitive at fault, a context without the defect; None: the interpreter does not have it
    repair: Callable[[Any], AbstractContextManager[None]] | None = None
    # a sentence on the line at fault in a program, for a user
    says: Callable[[Any], str] | None = None
    confirmed: bool = False  # whether the law must hold on the repaired compiler too, since the fault may not show

    @property
    def script(self) -> Path:
        """The script in plain JAX that shows it."""
        return FOLDER / f"{self.name}.py"

    @cached_property
    def sentence(self) -> str:
        """What is wrong: the first line of its script."""
        return self._text.partition("\n")[0].strip('"')

    @cached_property
    def seen_on(self) -> tuple[str, ...]:
        """The JAX versions on which the script showed it: those of its comment, or `MOST`."""
        stated = re.search("^# seen on JAX (.+)$", self._text, re.MULTILINE)
        return tuple(stated[1].split(", ")) if stated else MOST

    @cached_property
    def words(self) -> str:
        """The words with which the script raises or aborts, from its comment; empty if it states none."""
        stated = re.search("^# fails with: (.+)$", self._text, re.MULTILINE)
        return stated[1] if stated else ""

    def is_shown(self, exitcode: int | None, output: str) -> bool:
        """True if the script failed with its words, reported the defect, or without any words aborted."""
        if exitcode == 1 and re.search("^defect: ", output, re.MULTILINE):
            return True
        aborted = exitcode in (-signal.SIGABRT, -signal.SIGSEGV)
        return (aborted or (exitcode == 1 and bool(self.words))) and self.words in output

    @cached_property
    def _text(self) -> str:
        return self.script.read_text(encoding="utf-8")

    def in_version(self, version: str) -> bool:
        """A version of JAX is taken to have it if its script showed it there, or on an earlier and a later one."""
        versions = sorted(map(release, self.seen_on))
        return versions[0] <= release(version) <= versions[-1]

    def is_in(self, engine: Engine) -> bool:
        """True if this version of JAX has it, on this engine and platform."""
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


Shows = Callable[[Case, Exception], bool]


def _raised(
    kind: type[Exception], words: str = "", *, by: str = "", when: Callable[[Case], bool] = lambda case: True
) -> Shows:
    """Matches an exception of this very type, a pattern of its words, and the module that raised it, by prefix."""
    return lambda case, error: (
        when(case)
        and type(error) is kind
        and re.search(words, str(error)) is not None
        and (not by or raised_in(error).startswith(by))
    )


def _refused(words: str) -> Shows:
    """Matches a refusal by the compiler in these words."""
    return lambda case, error: isinstance(error, jax.errors.JaxRuntimeError) and words in str(error)


def _under_vmap(case: Case) -> bool:
    """True if the call or its derivative is mapped."""
    return any("vmap" in name or name == "jacobian" for name in case.chain)


def _of_complex(case: Case) -> bool:
    return any(operand.dtype.startswith("complex") for operand in case.operands)


def _wrong_values(case: Case, error: Exception) -> bool:
    return isinstance(error, Broken) and error.kind == "values"


def _wrong_gradient(case: Case, error: Exception) -> bool:
    return isinstance(error, Broken) and error.of == "gradient" and error.kind not in ("communication", "overlap")


def _typed_invariant(case: Case, error: Exception) -> bool:
    """True if a result that is typed invariant varies, or JAX finds another type of its cotangent."""
    if isinstance(error, Broken):
        return error.kind == "replicas"
    return type(error) is ValueError and str(error).startswith("Expected cotangent type")


def _loses_nan(case: Case, error: Exception) -> bool:
    """True if elements are wrong only where they should be NaN."""
    difference = error.difference if isinstance(error, Broken) else None
    if difference is None or not difference.comparable:
        return False
    return bool((difference.expected[difference.wrong] != difference.expected[difference.wrong]).all())


def _wrong_or_refused(case: Case, error: Exception) -> bool:
    return _wrong_values(case, error) or _refused("[hlo verifier]")(case, error)


def _of_partitioner(name: str, at_fault: faults.Fault) -> Defect:
    """A defect of the partitioner's, which a program does not meet whose primitive has replicated operands."""
    repair = repairs.operands_replicated
    return Defect(name, "xla", at_fault=at_fault, shows=_wrong_or_refused, repair=repair, confirmed=True)


EXCUSING = (
    Defect(
        "pmax_loses_nan",
        platform="cpu",
        at_fault=faults.any_of("pmax", "pmin", where=faults.has_floats),
        shows=_loses_nan,
        repair=repairs.maximum_of_gathered,
    ),
    _of_partitioner("product_over_three_axes", faults.product_over_three_axes),
    _of_partitioner("batched_product_over_two_axes", faults.batched_product_over_two_axes),
    _of_partitioner(
        "grouped_convolution",
        faults.any_of("conv_general_dilated", where=lambda e: e.params["feature_group_count"] > 1),
    ),
    _of_partitioner(
        "strided_kernel_gradient",
        faults.any_of("conv_general_dilated", where=lambda e: max(e.params["rhs_dilation"]) > 1),
    ),
    _of_partitioner("convolution_both_sharded", faults.any_of("conv_general_dilated")),
    _of_partitioner(
        "dilated_padding", faults.any_of("pad", where=lambda e: any(by for _, _, by in e.params["padding_config"]))
    ),
    _of_partitioner(
        "dilated_window",
        faults.any_of("reduce_window", "reduce_window_sum", where=lambda e: max(e.params["base_dilation"]) > 1),
    ),
    _of_partitioner("pool_gradient_padding", faults.any_of("select_and_scatter_add")),
    _of_partitioner(
        "slice_beyond_stride", faults.any_of("slice", where=lambda e: max(e.params["strides"] or (1,), default=1) > 1)
    ),
    _of_partitioner("uneven_indices", faults.any_of(*faults.SCATTERS)),
    Defect(
        "transform_to_replicas",
        engine="xla",
        platform="cpu",
        at_fault=faults.any_of("fft"),
        shows=_raised(jax.errors.JaxRuntimeError, "INTERNAL: .*(RET_CHECK|Expected instruction to have shape)"),
    ),
    Defect(
        "overlapping_update",
        platform="cpu",
        at_fault=faults.update_of_itself,
        shows=_wrong_values,
        repair=repairs.nothing_fused,
        confirmed=True,
    ),
    Defect(
        "top_k_negative_zero",
        platform="cpu",
        at_fault=faults.any_of("top_k", where=faults.has_floats),
        shows=_wrong_values,
        repair=repairs.zeros_equal,
        confirmed=True,
    ),
    Defect(
        "bf16_product_transposed",
        engine="xla",
        platform="cpu",
        at_fault=faults.transposed_product("bfloat16"),
        shows=_wrong_values,
        repair=repairs.nothing_simplified,
        confirmed=True,
    ),
    Defect(
        "wide_product_transposed",
        engine="xla",
        platform="cpu",
        at_fault=faults.transposed_product("float32"),
        shows=_refused("Unsupported element type for DotThunk"),
        repair=repairs.nothing_simplified,
    ),
    Defect(
        "reduce_max_loses_nan",
        platform="cpu",
        at_fault=faults.any_of(
            "reduce_max",
            "reduce_min",
            where=lambda e: faults.has_floats(e) and math.prod(faults.shape(e)) >= faults.MANY,
        ),
        shows=_loses_nan,
    ),
    Defect(
        "all_to_all_untiled_transpose",
        at_fault=faults.any_of(
            "all_to_all", where=lambda e: not e.params["tiled"] and e.params["split_axis"] != e.params["concat_axis"]
        ),
        shows=_raised(ValueError, "Expected cotangent type"),
        repair=repairs.exchange_transposed,
    ),
    Defect(
        "psum_scatter_untiled_vmap",
        at_fault=faults.any_of("reduce_scatter", where=lambda e: not e.params["tiled"]),
        shows=_raised(IndexError, when=_under_vmap),
        repair=repairs.scatter_batched,
    ),
    Defect(
        "custom_vmap_jacobian",
        at_fault=faults.any_of("custom_vmap_call"),
        shows=lambda case, error: "jacobian" in case.chain and not isinstance(error, Broken),
        repair=repairs.custom_vmap_mapped,
    ),
    Defect(
        "vmap_varying_branch",
        at_fault=faults.cast_in_a_branch,
        shows=_raised(ValueError, "invariant->variant|require.* varying manual axes to match", when=_under_vmap),
        repair=repairs.operands_as_typed,
    ),
    Defect(
        "argsort_type",
        at_fault=faults.any_of("sort", where=faults.untyped_order),
        shows=lambda case, error: (
            isinstance(error, UnequalReplicas)
            or _typed_invariant(case, error)
            or _wrong_values(case, error)
            or _wrong_gradient(case, error)
        ),
        repair=repairs.order_typed,
        says=faults.line_of_order,
    ),
    Defect(
        "searchsorted_partial_manual",
        at_fault=faults.any_of("jit", "pjit", where=lambda e: e.params.get("name") == "searchsorted"),
        shows=_raised(AssertionError, r"^ManualAxisType\(", when=lambda case: bool(case.manual)),
        repair=repairs.search_typed,
    ),
    Defect(
        "erf_gradient",
        at_fault=faults.any_of("erf", "erfc"),
        shows=_raised(ValueError, "^Primitive polynomial requires varying manual axes"),
        repair=repairs.error_function,
    ),
    Defect(
        "nested_shard_map_eager",
        engine="xla",
        at_fault=faults.any_of("shard_map", where=faults.has_inner_shard_map),
        shows=_raised(ValueError, by="jax.", when=lambda case: "eager" in case.chain),
    ),
    Defect(
        "explicit_axis_of_one",
        engine="xla",
        at_fault=faults.along_one_explicit,
        shows=_raised(ValueError, "^(in_specs passed to shard_map: |unexpected JAX type )", by="jax."),
    ),
    Defect(
        "explicit_axis_of_one_jacobian",
        engine="xla",
        at_fault=faults.along_one_explicit,
        shows=_raised(ValueError, "^Expected cotangent type", by="jax.", when=lambda case: "jacobian" in case.chain),
    ),
    Defect(
        "empty_all_gather",
        engine="xla",
        at_fault=faults.any_of("all_gather", "all_gather_invariant", "reduce_scatter", where=faults.along_empty),
        shows=_raised(ValueError, "verifier errors"),
    ),
    Defect(
        "psum_scatter_partial_explicit",
        at_fault=faults.scatter_beside_explicit,
        shows=_raised(ValueError, r"Length of sharding\.spec"),
    ),
    Defect(
        "bf16_reduction_partial_manual",
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
        engine="xla",
        at_fault=faults.all_reduce_of_one_beside_automatic,
        shows=_refused("Cross-partition allreduce must be in (partial) manual"),
    ),
    Defect(
        "gather_partial_manual",
        engine="xla",
        at_fault=faults.gather_beside_two_automatic,
        aborts=lambda case: sum(size > 1 for size in case.mesh.sizes) > 2 and bool(case.manual or case.roles),
    ),
    Defect(
        "nested_partial_manual_order",
        engine="xla",
        at_fault=faults.nested_out_of_order,
        aborts=lambda case: NESTED in case.chain or bool(case.roles),
    ),
    Defect(
        "reshard_after_another",
        engine="xla",
        at_fault=faults.relaid_in_front,
        aborts=lambda case: bool(case.roles),
    ),
    Defect(
        "convolution_over_strides",
        engine="xla",
        suspect=faults.any_of("conv_general_dilated", where=lambda e: max(e.params["lhs_dilation"]) > 1),
        aborts=lambda case: bool(case.roles),
    ),
    Defect(
        "empty_product",
        engine="xla",
        at_fault=faults.any_of("shard_map", where=faults.has_empty_operands),
        shows=_refused("expected at least one operand of"),
    ),
    Defect(
        "complex_constant_sum",
        platform="cpu",
        at_fault=faults.sum_of_complex_constant,
        aborts=_of_complex,
        suspect=faults.any_of(*faults.SUMS, where=lambda e: faults.dtype(e).kind == "c"),
    ),
    Defect(
        "unused_explicit_operand",
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
        platform="cpu",
        at_fault=faults.any_of("ragged_all_to_all"),
        shows=_refused("HLO opcode `ragged-all-to-all` is not supported"),
    ),
    *(
        Defect(name, at_fault=faults.any_of("ragged_all_to_all"), shows=shows, repair=repairs.ragged_exchange)
        for name, shows in {
            "ragged_all_to_all_vmap": _raised(AssertionError, when=_under_vmap),
            "ragged_all_to_all_type": _typed_invariant,
            "ragged_all_to_all_output_gradient": _wrong_gradient,
            "ragged_all_to_all_operand_gradient": lambda case, error: (
                _wrong_gradient(case, error) or isinstance(error, RaggedMetadata)
            ),
        }.items()
    ),
    Defect(
        "gpu_small_product",
        platform="gpu",
        at_fault=faults.any_of("dot_general", where=faults.narrow_product),
        shows=_wrong_values,
        repair=repairs.widened_first,
        confirmed=True,
    ),
    Defect(
        "gpu_rows_of_bits",
        platform="gpu",
        at_fault=faults.rows_of_bits,
        shows=_refused("Non-byte-aligned dimension in slice"),
    ),
    Defect(
        "gpu_complex_constant_sum",
        platform="gpu",
        at_fault=faults.sum_of_complex_constant,
        shows=_refused("SameElementType(broadcast->shape(), operand_shape)"),
        aborts=_of_complex,
        suspect=faults.any_of(*faults.SUMS, where=lambda e: faults.dtype(e).kind == "c"),
    ),
    Defect(
        "gpu_scalar_permute",
        platform="gpu",
        at_fault=faults.any_of(
            "ppermute", where=lambda e: any(not v.aval.shape and v.aval.dtype.name in faults.NARROW for v in e.invars)
        ),
        aborts=lambda case: any(operand.dtype in faults.NARROW for operand in case.operands),
    ),
    Defect(
        "gpu_ragged_all_to_all_bool",
        platform="gpu",
        at_fault=faults.any_of("ragged_all_to_all", where=lambda e: faults.dtype(e).kind == "b"),
        shows=_refused("RaggedAllToAll fallback to NCCL is not allowed"),
    ),
)
"""Those that excuse a case, in the order in which they are tried."""

_EXCUSING = {defect.name for defect in EXCUSING}
_SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.py")} - OWN)
DEFECTS = {one.name: one for one in (*EXCUSING, *(Defect(name) for name in _SCRIPTS if name not in _EXCUSING))}


def find_aborting(case: Case) -> list[Defect]:
    """The known defects that may end the process on this case, if its program is at fault."""
    return [defect for defect in DEFECTS.values() if defect.aborts is not None and defect.aborts(case)]
