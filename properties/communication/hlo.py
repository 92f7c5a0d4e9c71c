"""The collectives of a compiled program, read from its text (HLO) of any backend.

Every collective that is reached from ENTRY is listed, once for each place that it is reached from, with
the loops and branches around it. What cannot be read raises and names the line; nothing is left out.

The type that a program asked for may be narrower than what is sent. XLA:CPU has no collectives of bfloat16 (they are
sent as float32), of float8 (float16) and of int4 (int8): it converts before and after. A program may convert by itself
as well, and that is no promotion. What tells them apart: the reducer of a promoted sum of bfloat16 is called
`…_promoted`; what JAX converts is mostly named `convert_element_type` in the metadata; and what the compiler widens it
narrows again. A program that widens, moves and narrows by itself may still be taken for one whose type was promoted
(JAX 0.10 loses the name), which is why both numbers are kept.
"""

import json
import math
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
"""What changes where elements are, and not their type."""

WIDENED = {"bf16": ("f32",), "s4": ("s8",), "u4": ("u8",), "s2": ("s8",), "u2": ("u8",)}


def promoted_from(module: Module, computation: Computation, collective: Instruction, operand: str) -> str:
    """The type that the program asked to send, if the operand is of a wider one; empty otherwise."""
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
    asked = 'convert_element_type"' in instruction.attributes.get("metadata", "").replace(" ", '" ')
    again = inside.instructions[bare(instruction.operands[0])].opcode == "convert"  # no program narrows, then widens
    return narrow if widened and (again or not asked) else ""


def _narrowed_again(module: Module, narrow: str, wide: str) -> bool:
    """Whether the text converts from the wide type to the narrow one anywhere."""
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
    """The conversion that an operand comes from with nothing but moves in between, and where it stands."""
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
"""What ends or goes on with an operation whose start has been counted."""

CALLS = ("to_apply", "calls", "called_computations")
SUSPECTS = ("all-", "collective-", "reduce-scatter", "ragged-all")
PAIRS = "_xla_send_recv_source_target_pairs"


@dataclass(frozen=True)
class Loop:
    """A loop around a collective: how often it runs what is in it, or None where the text does not say."""

    name: str
    trips: int | None


@dataclass(frozen=True)
class Branch:
    """A branch around a collective, of which one per conditional is taken."""

    conditional: str
    index: int
    of: int


@dataclass(frozen=True)
class CompiledCollective:
    """One collective at one place of a compiled program.

    Arguments:
        kind: one of `shardproof.oracles.communication.KINDS`.
        name: what the text calls it.
        operand_bytes: the bytes of all its operands on one device, as they are sent.
        own_bytes: the bytes that the program asked for: fewer where the compiler promoted the type.
        operands: how many arrays were combined into it; the pieces of one all-to-all count as one.
        groups: the replica groups; None for a permute, empty where all devices are one group.
        pairs: the source-target pairs of a permute.
        form: `synchronous`, `start and done`, `wrapped in async-start` or `fused asynchronously`.
        path: the loops and branches around it, outermost first.
    """

    kind: str
    name: str
    operand_bytes: int
    own_bytes: int
    operands: int
    groups: Groups | None
    pairs: Groups | None
    form: str
    path: tuple[Loop | Branch, ...]
    line: str

    @property
    def moves_nothing(self) -> bool:
        """Whether no device sends anything to another."""
        connected = self.pairs if self.pairs is not None else self.groups
        if self.pairs is None and not self.groups:  # no groups given: all devices
            return self.operand_bytes == 0
        return self.operand_bytes == 0 or all(len(set(group)) < 2 for group in connected or ())


def collectives(text: str) -> list[CompiledCollective]:
    """The collectives of a compiled program; raises HloError if the text, or a line of one, cannot be read."""
    module = read(text)
    return list(_reached(module, module.entry, ()))


def _reached(
    module: Module, computation: Computation, path: tuple[Loop | Branch, ...], form: str = ""
) -> Iterator[CompiledCollective]:
    for instruction in computation.instructions.values():
        opcode = instruction.opcode
        if opcode.endswith(LATER):
            continue
        if opcode.removesuffix("-start") in OPCODES:
            if not _continues(module, computation, instruction):
                found = _read(module, computation, instruction, path)
                yield replace(found, form=form) if form else found
            continue
        if opcode.startswith(SUSPECTS) or (opcode in ("send", "recv") and PAIRS in instruction.line):
            raise HloError(f"a collective that is not understood: {instruction.line}")
        inner = "wrapped in async-start" if opcode == "async-start" else form
        for name, around in _called(instruction):
            if name not in module.computations:
                raise HloError(f"computation {name!r} is not in the text: {instruction.line}")
            yield from _reached(module, module.computations[name], (*path, *around), inner)


def _called(instruction: Instruction) -> Iterator[tuple[str, tuple[Loop | Branch, ...]]]:
    """The computations that an instruction runs, and what that puts around what is in them."""
    attributes = instruction.attributes
    if instruction.opcode == "while":
        trips = known_trips(instruction)
        yield instruction.called("body"), (Loop(instruction.name, trips),)
        yield instruction.called("condition"), (Loop(instruction.name, None if trips is None else trips + 1),)
        return
    if instruction.opcode == "conditional":
        names = [bare(name) for name in split(attributes.get("branch_computations", "").strip("{}"))]
        names = names or [instruction.called("true_computation"), instruction.called("false_computation")]
        for index, name in enumerate(names):
            yield name, (Branch(instruction.name, index, len(names)),)
        return
    for attribute in CALLS:
        for name in split(attributes.get(attribute, "").strip("{}")):
            yield bare(name), ()


def known_trips(instruction: Instruction) -> int | None:
    """The trips of a while loop, None where the text has none; raises HloError if it has what cannot be read."""
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
    """Whether this goes on with a collective that another line starts.

    XLA:TPU fuses steps of one asynchronous collective with other work and repeats its line in each of
    these fusions, with one `chain_id`. The first is what `AsyncCollectiveStart` takes.
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


def _read(
    module: Module, computation: Computation, instruction: Instruction, path: tuple[Loop | Branch, ...]
) -> CompiledCollective:
    kind = OPCODES[instruction.opcode.removesuffix("-start")]
    attributes = instruction.attributes
    try:
        names = _sent(kind, instruction)
        shapes = [_operand(computation, name) for name in names]
        own = [promoted_from(module, computation, instruction, name) for name in names]
        asked = [replace(s, dtype=d or s.dtype) for s, d in zip(shapes, own, strict=True)] if own else shapes
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
        own_bytes=_bytes(kind, asked),
        operands=1 if kind == "all_to_all" else len(shapes),
        groups=groups,
        pairs=pairs,
        form="fused asynchronously" if _starts(computation, instruction) else form,
        path=path,
        line=instruction.line,
    )


def _groups(attributes: Mapping[str, str]) -> str:
    """The groups as they are written; the devices of a mesh that is not in their order follow behind a comma."""
    text = attributes["replica_groups"]
    apart = text.startswith("mesh[") and text.endswith("]") and "device_ids" in attributes
    return f"{text}, device_ids={attributes['device_ids']}" if apart else text


def _sent(kind: str, instruction: Instruction) -> list[str]:
    """The operands that are sent."""
    if "slice_sizes" in instruction.attributes:
        raise HloError("permutes of slices in place are not understood")
    if not instruction.operands:
        raise HloError("expected an operand")
    names = [bare(operand) for operand in instruction.operands]
    return names[:1] if kind == "ragged_all_to_all" else names  # the others say where it goes, and how much


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
