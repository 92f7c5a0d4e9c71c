"""What a known defect is, which there are, and which of them explains a failure."""

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax

from properties.cases import Case
from properties.engines import Engine
from properties.implementations import Implementation
from properties.laws.violation import LawViolation
from properties.programs import Seen, forward


@dataclass(frozen=True)
class Defect:
    """A defect of JAX or XLA.

    Arguments:
        name: also the name of its script.
        sentence: what is wrong.
        seen_on: the JAX versions on which the script showed it.
        program: a pattern that the traced program must contain: without the primitive at fault,
            nothing is explained.
        condition: law, case and exception to whether the defect is what shows.
        compiler: whether XLA is at fault, and not JAX: then only the engine that compiles shows it.
        aborts: the cases on which it ends the process, where `program` occurs; these are not run.
        death: case and what the process printed to whether the defect is what ended a process.
    """

    name: str
    sentence: str
    seen_on: tuple[str, ...]
    program: str = ""
    condition: Callable[[str, Case, Exception], bool] = lambda law, case, error: False
    compiler: bool = False
    aborts: Callable[[Case], bool] = lambda case: False
    death: Callable[[Case, bytes], bool] = lambda case, words: False

    @property
    def script(self) -> Path:
        """The script in plain JAX that shows it."""
        return Path(__file__).with_name(f"{self.name}.py")


def message(error: Exception) -> str:
    """What JAX or XLA say. The text of a violation is a report, which takes a while to write and is none of theirs."""
    return "" if isinstance(error, LawViolation) else str(error)


def _empty(case: Case) -> bool:
    return any(math.prod(operand.block) == 0 for operand in case.operands)


def _complex(case: Case) -> bool:
    return any(operand.dtype == "complex64" for operand in case.operands)


def _loses_nan(law: str, case: Case, error: Exception) -> bool:
    """Whether elements are wrong only where they should be NaN."""
    difference = error.difference if isinstance(error, LawViolation) else None
    if difference is None or not difference.comparable:
        return False
    return bool((difference.expected[difference.wrong] != difference.expected[difference.wrong]).all())


def _untiled_transpose(law: str, case: Case, error: Exception) -> bool:
    backward = ("gradient", "transformed gradient", "agreement", "communication", "scale")
    return law in backward and "Expected cotangent type" in message(error)


def _untiled_batching(law: str, case: Case, error: Exception) -> bool:
    return case.around == "vmap_last" and isinstance(error, IndexError)


def _empty_collective(law: str, case: Case, error: Exception) -> bool:
    return _empty(case) and "Cannot lower jaxpr with verifier errors" in message(error)


def _explicit_scatter(law: str, case: Case, error: Exception) -> bool:
    named = zip(case.mesh.axis_names, case.mesh.axis_types, strict=True)
    beside = [kind for name, kind in named if name not in case.manual]
    return case.around == "partial_manual" and "explicit" in beside and "Length of sharding.spec" in message(error)


def _empty_product(law: str, case: Case, error: Exception) -> bool:
    return _empty(case) and "expected at least one operand of" in message(error)


def _reduces_bfloat16(case: Case) -> bool:
    beside = 0 < len(case.manual) < len(case.mesh.axis_names)
    return beside and any(operand.dtype == "bfloat16" for operand in case.operands)


DEFECTS: dict[str, Defect] = {
    defect.name: defect
    for defect in (
        Defect(
            "pmax_loses_nan",
            "XLA:CPU: the maximum or minimum over devices ignores NaN, which jax.numpy propagates.",
            ("0.10.2", "0.12.0.1"),
            r"pmax|pmin",
            _loses_nan,
            compiler=True,
        ),
        Defect(
            "all_to_all_untiled_transpose",
            "The gradient of an untiled all_to_all raises ValueError unless split_axis equals concat_axis.",
            ("0.10.2", "0.12.0.1"),
            r"all_to_all\[[^\]]*tiled=False",
            _untiled_transpose,
        ),
        Defect(
            "psum_scatter_untiled_vmap",
            "vmap of an untiled psum_scatter raises IndexError where the batch dimension comes last.",
            ("0.10.2", "0.12.0.1"),
            r"reduce_scatter\[[^\]]*tiled=False",
            _untiled_batching,
        ),
        Defect(
            "empty_all_gather",
            "A tiled all_gather or psum_scatter along an empty dimension fails in the verifier while lowering.",
            ("0.10.2", "0.12.0.1"),
            r"all_gather|reduce_scatter",
            _empty_collective,
            compiler=True,
        ),
        Defect(
            "empty_explicit_shards",
            "An empty array sharded over an explicit axis has shards of the global shape and cannot be read.",
            ("0.10.2",),
        ),
        Defect(
            "psum_scatter_partial_explicit",
            "A tiled psum_scatter fails while it is lowered beside an explicit axis that is not manual.",
            ("0.12.0.1",),
            r"reduce_scatter\[",
            _explicit_scatter,
        ),
        Defect(
            "bf16_reduction_partial_manual",
            "XLA:CPU aborts while it compiles a bfloat16 reduction over devices beside an axis that is not manual.",
            ("0.10.2", "0.12.0.1"),
            r"bf16\[[^=\n]*= (psum|pmax|pmin|reduce_scatter)",
            compiler=True,
            aborts=_reduces_bfloat16,
        ),
        Defect(
            "empty_product_sum",
            "The psum or psum_scatter of a product over an empty dimension fails while XLA compiles it.",
            ("0.10.2", "0.12.0.1"),
            r"dot_general\[",
            _empty_product,
            compiler=True,
        ),
        Defect(
            "complex_constant_sum",
            "XLA:CPU aborts while it compiles the psum or psum_scatter of a complex constant.",
            ("0.10.2", "0.12.0.1"),
            r"dot_general\[",  # a product over an empty dimension is a constant
            compiler=True,
            aborts=lambda case: _empty(case) and _complex(case),
            death=lambda case, words: _complex(case) and b"Check failed: buffer != nullptr" in words,
        ),
        Defect(
            "ragged_all_to_all_cpu",
            "XLA:CPU compiles no ragged_all_to_all: it raises UNIMPLEMENTED.",
            ("0.10.2", "0.12.0.1"),
            r"ragged_all_to_all\[",
            lambda law, case, error: "HLO opcode `ragged-all-to-all` is not supported" in message(error),
            compiler=True,
        ),
        Defect(
            "ragged_all_to_all_vmap",
            "vmap of ragged_all_to_all fails an assertion without a message unless all of its operands are mapped.",
            ("0.10.2", "0.12.0.1"),
            r"ragged_all_to_all\[",
            lambda law, case, error: "vmap" in case.around and type(error) is AssertionError and not str(error),
        ),
        Defect(
            "varying_predicate_type",
            "What a varying predicate or trip count chooses is typed invariant: cond, switch, while_loop, fori_loop.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "pure_callback_type",
            "The result of a pure_callback on a varying operand is typed invariant.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "psum_repeated_axis",
            "psum, pmax and all_gather over a tuple that names an axis twice abort the process instead of raising.",
            ("0.12.0.1",),
        ),
        Defect(
            "negative_scatter_dimension",
            "psum_scatter and all_to_all accept negative dimensions while tracing and fail while lowering.",
            ("0.10.2",),
        ),
        Defect(
            "pmax_groups_type",
            "pmax with axis_index_groups is typed invariant although the groups hold different values.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "ppermute_tuple_order",
            "ppermute over a tuple out of mesh order numbers devices in mesh order (0.10) or is refused (0.12).",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "pbroadcast_axis_name",
            "pbroadcast over one named axis iterates over the letters of the name and raises NameError.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "grad_of_psum_unchecked",
            "With check_vma=False, the gradient taken inside shard_map of a psum is silently wrong.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "pmean_uneven_groups",
            "pmean over axis_index_groups of different sizes divides the sum of each by the size of the first.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "vmap_ppermute_tuple",
            "ppermute over a tuple of a vmapped axis and a mesh axis silently drops the vmapped one.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "vmap_ppermute_partial",
            "ppermute over a vmapped axis fails an assertion unless every member sends, and zero-fills nothing.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "vmap_axis_name_checked",
            "Inside shard_map with check_vma=True, collectives over a named axis of vmap fail an assertion.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "ragged_all_to_all_type",
            "ragged_all_to_all is typed as its `output` operand alone, so a varying result passes as invariant.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "ragged_all_to_all_output_gradient",
            "The gradient of ragged_all_to_all by `output` is wrong where an empty slice has the offset of another.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "int2_all_gather",
            "XLA:CPU: all_gather of int2 returns garbage, or crashes on larger blocks.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "int2_all_to_all",
            "XLA:CPU: all_to_all of int2 aborts the process.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "divergent_ppermute",
            "XLA:CPU: a ppermute over one axis, under a predicate that differs only along another, never ends.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "scatter_empty_index",
            "XLA:CPU: scatter_add with empty index vectors writes to the wrong elements.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "reduce_while_loop",
            "XLA:CPU: compiling lax.reduce with a while_loop in its function aborts the process.",
            ("0.10.2", "0.12.0.1"),
        ),
        Defect(
            "exp2_bfloat16",
            "XLA:CPU: exp2 of a bfloat16 is wrong by up to six percent, powers of two included.",
            ("0.10.2", "0.12.0.1"),
        ),
    )
}


def explaining(law: str, implementation: Implementation, case: Case, engine: Engine, error: Exception) -> Defect | None:
    """The known defect that explains a failure on this engine, if there is one.

    Both must hold: the condition, and that the traced program contains the primitive at fault.
    """
    compiles = engine.name == "xla"
    candidates = [
        d for d in DEFECTS.values() if d.program and (compiles or not d.compiler) and d.condition(law, case, error)
    ]
    if not candidates:
        return None
    text = program_text(implementation, case, engine)
    return next((defect for defect in candidates if re.search(defect.program, text)), None)


def fatal(case: Case, words: bytes) -> Defect | None:
    """The known defect that ended a process on this case, given what the process printed, if there is one."""
    return next((defect for defect in DEFECTS.values() if defect.death(case, words)), None)


def aborting(implementation: Implementation, case: Case, engine: Engine) -> Defect | None:
    """The known defect that would end the process on this case, if there is one.

    Raises:
        Exception: whatever tracing the implementation raises.
    """
    if engine.name != "xla" or jax.default_backend() != "cpu":
        return None
    candidates = [defect for defect in DEFECTS.values() if defect.aborts(case)]
    text = program_text(implementation, case, engine) if candidates else ""
    return next((defect for defect in candidates if re.search(defect.program, text)), None)


def program_text(implementation: Implementation, case: Case, engine: Engine) -> str:
    """The traced program of a case, printed; its forward pass alone, without the transformation around it."""
    plain = dataclasses.replace(case, around="jit", manual=())
    program = forward(plain, implementation, Seen())
    mesh = engine.abstract_mesh(case.mesh)
    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=jax.sharding.NamedSharding(mesh, a.partition_spec))
        for a in program.arguments
    ]
    return str(jax.make_jaxpr(program.build(mesh))(*avals))
