"""The collectives of a compiled program, from its text (HLO) on any backend.

Every collective that is reached from ENTRY is listed, once for each place that it is reached from, with how often it
runs there. A line that cannot be read raises an error that has it; nothing is left out.

A compiler may promote a type: XLA:CPU sends bfloat16 as float32, float8 as float16 and int4 as int8, and converts
before and after. Three signs distinguish this from a conversion by the program: the reducer of a promoted sum of
bfloat16 is called `…_promoted`; most of JAX's own conversions are named `convert_element_type` in the metadata; and the
compiler narrows again what it widens. A program that widens, moves and narrows may still look like a promotion (JAX
0.10 loses the name), so both numbers are returned.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardproof.properties.communication.text import (
    Computation,
    Groups,
    HloError,
    Instruction,
    Module,
    Shape,
    arrays,
    bare,
    element_bits,
    lists,
    read,
    replica_groups,
    split,
)

MOVES = frozenset(
    {"bitcast", "copy", "reshape", "transpose", "slice", "dynamic-slice", "get-tuple-element", "optimization-barrier"}
)
"""Opcodes that change the places of elements, and not their type."""

WIDENED = {"bf16": ("f32",), "s4": ("s8",), "u4": ("u8",), "s2": ("s8",), "u2": ("u8",)}


def promoted_from(module: Module, computation: Computation, collective: Instruction, operand: str) -> str:
    """The type in which the program sends an operand, if the compiler promoted it; empty otherwise."""
    reducer = collective.called("to_apply")
    convert = conversion(module, computation, operand)
    if convert is None:
        return ""
    inside, instruction = convert
    narrow, wide = source_type(inside, instruction), element_type(instruction)
    if not narrow or element_bits(narrow) >= element_bits(wide):
        return ""
    if reducer.endswith("_promoted"):
        return narrow
    if (reducer and narrow == "bf16") or not _narrowed_again(module, narrow, wide):
        return ""
    widened = wide in WIDENED.get(narrow, ("f16", "f32") if narrow.startswith("f8") else ())
    of_jax = 'convert_element_type"' in instruction.attributes.get("metadata", "").replace(" ", '" ')
    again = inside.instructions[bare(instruction.operands[0])].opcode == "convert"  # no program narrows, then widens
    return narrow if widened and (again or not of_jax) else ""


def _narrowed_again(module: Module, narrow: str, wide: str) -> bool:
    """True if the text converts from the wide type to the narrow one anywhere."""
    return any(
        i.opcode == "convert" and element_type(i) == narrow and source_type(c, i) == wide
        for c in module.computations.values()
        for i in c.instructions.values()
    )


def element_type(instruction: Instruction) -> str:
    """The element type of an instruction's result, or the empty text for a tuple."""
    shapes = list(arrays(instruction.shape))
    return shapes[0].dtype if len(shapes) == 1 else ""


def source_type(computation: Computation, convert: Instruction) -> str:
    """The type that a conversion starts from."""
    source = computation.instructions.get(bare(convert.operands[0]))
    return "" if source is None else element_type(source)


def conversion(module: Module, computation: Computation, name: str) -> tuple[Computation, Instruction] | None:
    """The conversion that an operand comes from, with only moves in between, and its computation."""
    instruction = computation.instructions.get(name)
    while instruction is not None:
        if instruction.opcode == "convert":
            return computation, instruction
        if instruction.opcode == "fusion":
            called = module.computations.get(instruction.called("calls"))
            return None if called is None else conversion(module, called, called.root.name)
        if instruction.opcode not in MOVES and instruction.opcode != "collective-permute":
            return None
        instruction = computation.instructions.get(bare(instruction.operands[0]))
    return None


OPCODES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
    "ragged-all-to-all": "ragged_all_to_all",
}
"""The kinds of `shardproof.oracles.communication`, as HLO spells them."""

LATER = ("-done", "-update")
"""Suffixes of opcodes that continue or end an operation whose start has been counted."""

CALLS = (
    "body", "condition", "branch_computations", "true_computation", "false_computation",
    "to_apply", "calls", "called_computations",
)  # fmt: skip
"""The attributes that name computations."""

SUSPECTS = ("all-", "collective-", "reduce-scatter", "ragged-all")
PAIRS = "_xla_send_recv_source_target_pairs"


@dataclass(frozen=True)
class CompiledCollective:
    """One collective at one place of a compiled program.

    Arguments:
        kind: one of `shardproof.oracles.communication.KINDS`.
        name: its name in the text.
        operand_bytes: the bytes of all its operands on one device, as they are sent.
        own_bytes: the same in the program's type: fewer if the compiler promoted it.
        operands: the number of arrays combined into it; the pieces of one all-to-all count as one.
        groups: the replica groups; None for a permute, empty where all devices are one group.
        pairs: the source-target pairs of a permute.
        form: `synchronous`, `start and done`, `wrapped in async-start` or `fused asynchronously`.
        times: how often it runs: not at all in the second of two branches that send the same.
        unknown: the reason why that is not known; empty if it is.
    """

    kind: str
    name: str
    operand_bytes: int
    own_bytes: int
    operands: int
    groups: Groups | None
    pairs: Groups | None
    form: str
    line: str
    times: int = 1
    unknown: str = ""

    @property
    def moves_nothing(self) -> bool:
        """True if no device sends anything to another."""
        connected = self.pairs if self.pairs is not None else self.groups
        if self.pairs is None and not self.groups:  # no groups given: all devices
            return self.operand_bytes == 0
        return self.operand_bytes == 0 or all(len(set(group)) < 2 for group in connected or ())


def collectives(text: str) -> list[CompiledCollective]:
    """The collectives of a compiled program; raises HloError if the text, or a line of one, cannot be read."""
    module = read(text)
    return list(_reached(module, module.entry))


def _reached(module: Module, computation: Computation, form: str = "") -> Iterator[CompiledCollective]:
    for instruction in computation.instructions.values():
        opcode = instruction.opcode
        if opcode.endswith(LATER):
            continue
        if opcode.removesuffix("-start") in OPCODES:
            if not _continues(module, computation, instruction):
                found = _read(module, computation, instruction)
                yield replace(found, form=form) if form else found
            continue
        if opcode.startswith(SUSPECTS) or (opcode in ("send", "recv") and PAIRS in instruction.line):
            raise HloError(f"a collective that is not understood: {instruction.line}")
        inner = "wrapped in async-start" if opcode == "async-start" else form
        bodies = [list(_reached(module, body, inner)) for body in called(module, instruction)]
        times, unknown = _runs(instruction, bodies)
        for body, often in zip(bodies, times, strict=True):
            for found in body:
                yield replace(found, times=often * found.times, unknown=found.unknown or unknown)


def called(module: Module, instruction: Instruction) -> list[Computation]:
    """The computations that an instruction runs; raises HloError if one is not in the text."""
    names = [bare(name) for a in CALLS for name in split(instruction.attributes.get(a, "").strip("{}"))]
    for name in names:
        if name not in module.computations:
            raise HloError(f"computation {name!r} is not in the text: {instruction.line}")
    return [module.computations[name] for name in names]


def _runs(instruction: Instruction, bodies: list[list[CompiledCollective]]) -> tuple[list[int], str]:
    """The number of runs of each computation that an instruction calls, and the reason if that is unknown."""
    if instruction.opcode == "while":  # the body, and the condition
        trips = known_trips(instruction)
        if trips is not None:
            return [trips, trips + 1], ""
        return [0, 0], f"the compiled text does not say how often the loop {instruction.name} runs"
    if instruction.opcode == "conditional":
        same = all(_totals(body) == _totals(bodies[0]) for body in bodies)
        return [
            1,
            *[0] * (len(bodies) - 1),
        ], "" if same else f"the branches of {instruction.name} send different things"
    return [1] * len(bodies), ""


def _totals(found: list[CompiledCollective]) -> Counter[tuple[str, str]]:
    """The number of collectives of each kind that run, and their bytes."""
    totals = Counter[tuple[str, str]]()
    for one in found:
        totals.update({(one.kind, "count"): one.times, (one.kind, "bytes"): one.times * one.own_bytes})
    return totals


def known_trips(instruction: Instruction) -> int | None:
    """The trips of a while loop, None if the text has none; raises HloError if they cannot be read."""
    text = instruction.attributes.get("backend_config", "")
    if not text.startswith("{"):
        return None
    try:
        return int(json.loads(text)["known_trip_count"]["n"])
    except KeyError:
        return None
    except (ValueError, TypeError) as error:
        raise HloError(f"backend_config cannot be read: {error}: {instruction.line}") from error


def _continues(module: Module, computation: Computation, instruction: Instruction) -> bool:
    """True for a further step of a collective that another line starts.

    XLA:TPU fuses steps of one asynchronous collective with other work and repeats its line in each of these fusions,
    with one `chain_id`. The first is an operand of `AsyncCollectiveStart`.
    """
    if "async_collective_fusion_config" not in instruction.attributes.get("backend_config", ""):
        return False
    chain = instruction.attributes.get("frontend_attributes", "")
    starts = {
        (i.opcode, i.attributes.get("frontend_attributes", ""))
        for c in module.computations.values()
        for i in c.instructions.values()
        if _starts(c, i)
    }
    if (instruction.opcode, chain) not in starts:
        raise HloError(f"a step of an asynchronous collective without its start: {instruction.line}")
    return not _starts(computation, instruction)


def _starts(computation: Computation, instruction: Instruction) -> bool:
    return any(
        "AsyncCollectiveStart" in user.attributes.get("custom_call_target", "")
        and instruction.name in map(bare, user.operands)
        for user in computation.instructions.values()
    )


def _read(module: Module, computation: Computation, instruction: Instruction) -> CompiledCollective:
    kind = OPCODES[instruction.opcode.removesuffix("-start")]
    attributes = instruction.attributes
    try:
        names = _sent(kind, instruction)
        shapes = [_operand(computation, name) for name in names]
        own = [promoted_from(module, computation, instruction, name) for name in names]
        own_shapes = [replace(s, dtype=d or s.dtype) for s, d in zip(shapes, own, strict=True)]
        pairs = lists(attributes["source_target_pairs"]) if kind == "permute" else None
        groups = None if kind == "permute" else replica_groups(_groups(attributes))
    except KeyError as error:
        raise HloError(f"no {error} in the collective: {instruction.line}") from error
    except (HloError, ValueError) as error:
        raise HloError(f"{error}: {instruction.line}") from error
    form = "start and done" if instruction.opcode.endswith("-start") else "synchronous"
    return CompiledCollective(
        kind=kind,
        name=instruction.name,
        operand_bytes=_bytes(kind, shapes),
        own_bytes=_bytes(kind, own_shapes),
        operands=1 if kind == "all_to_all" else len(shapes),
        groups=groups,
        pairs=pairs,
        form="fused asynchronously" if _starts(computation, instruction) else form,
        line=instruction.line,
    )


def _groups(attributes: Mapping[str, str]) -> str:
    """The text of the groups; the devices of a mesh in another order follow behind a comma."""
    text = attributes["replica_groups"]
    reordered = text.startswith("mesh[") and text.endswith("]") and "device_ids" in attributes
    return f"{text}, device_ids={attributes['device_ids']}" if reordered else text


def _sent(kind: str, instruction: Instruction) -> list[str]:
    """The operands that are sent."""
    if "slice_sizes" in instruction.attributes:
        raise HloError("permutes of slices in place are not understood")
    if not instruction.operands:
        raise HloError("expected an operand")
    names = [bare(operand) for operand in instruction.operands]
    return names[:1] if kind == "ragged_all_to_all" else names  # the others are offsets and sizes


def _operand(computation: Computation, name: str) -> Shape:
    if name not in computation.instructions:
        raise HloError(f"operand {name!r} is not in the computation {computation.name}")
    shapes = list(arrays(computation.instructions[name].shape))
    if len(shapes) != 1:
        raise HloError(f"operand {name!r}: expected one array, found {len(shapes)}")
    return shapes[0]


def _bytes(kind: str, shapes: list[Shape]) -> int:
    """The bytes of all operands; the pieces of an all-to-all are parts of one array, and packed together."""
    if kind == "all_to_all":
        return math.ceil(sum(shape.bits for shape in shapes) / 8)
    return sum(shape.bytes for shape in shapes)
