"""What a transfer of a scheduled program waits for, and what waits for it, by the lines of the text."""

from collections.abc import Iterator

from shardproof.properties.communication.text import Computation, Instruction, Module, bare, read
from shardproof.properties.performance.frames import Frames
from shardproof.properties.performance.walking import Sent

PASSING = frozenset(
    {"bitcast", "get-tuple-element", "copy", "copy-done", "async-update", "opt-barrier", "reshape", "tuple"}
)
"""What only hands on what it is given."""

GIVEN = frozenset({"parameter", "constant", "iota", "partition-id", "replica-id"})
"""What is there from the start."""


def story(text: str, sent: Sent) -> str:
    """What happens before a transfer and after it, as clauses; empty of one that the text does not have."""
    module, frames = read(text), Frames.read(text)
    for computation in module.computations.values():
        if sent.name in computation.instructions:
            return _told(module, computation, frames, computation.instructions[sent.name])
    return ""


def _told(module: Module, inside: Computation, frames: Frames, start: Instruction) -> str:
    before, after = _source(inside, start), _user(inside, start)
    told = f"it sends what {_named(before, frames)} gives" if before is not None else "it sends what is there before"
    if after is not None:
        return f"{told}, and {_named(after, frames)} waits for it"
    return f"{told}, and {'the end of the program' if inside is module.entry else 'the next iteration'} waits for it"


def _named(instruction: Instruction, frames: Frames) -> str:
    place = frames.where(instruction)
    return f"{instruction.name}{f' at {place}' if place else ''}"


def _source(inside: Computation, start: Instruction) -> Instruction | None:
    """What computes the operand; None if it is an argument, or what a loop carries."""
    found: Instruction | None = start
    while found is not None and (found is start or found.opcode in PASSING):
        found = inside.instructions.get(bare(found.operands[0])) if found.operands else None
    return None if found is None or found.opcode in GIVEN else found


def _user(inside: Computation, start: Instruction) -> Instruction | None:
    """The first that computes with what arrives; None if only what comes after the computation does."""
    names = {start.name}
    for instruction in _after(inside, start):
        if names.isdisjoint(map(bare, instruction.operands)):
            continue
        if instruction.opcode in PASSING or instruction.opcode.endswith(("-done", "-start")):
            names.add(instruction.name)
        else:
            return instruction
    return None


def _after(inside: Computation, start: Instruction) -> Iterator[Instruction]:
    reached = False
    for instruction in inside.instructions.values():
        if reached:
            yield instruction
        reached |= instruction is start
