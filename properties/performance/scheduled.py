"""A program that XLA:TPU has scheduled, walked in its order: when it computes, and when its links are busy.

Computation takes as long as the compiler itself estimates (`estimated_cycles` of a fusion or copy, at the chip's
clock). A transfer begins where its `-start` stands, behind what is on its links already, and takes its bytes at the
link's bandwidth and a latency for every hop; where its `-done` comes before that is over, the device waits. A
synchronous one is waited for at once. Of a conditional the longest branch counts.

Left out: copies between a chip's memories that go on beside computation (`copy-start`, `slice-start`), what transfers
and computation take from one another, scalar instructions, and what has no estimate (`Schedule.unpriced`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardproof.properties.communication.hlo import collectives
from shardproof.properties.communication.text import Computation, HloError, Instruction, Module, bare, read
from shardproof.properties.performance.timeline import Exposure, length, union
from shardproof.properties.performance.tpu_compiler.topology import Coordinates, Topology
from shardproof.properties.performance.walking import Frames, Sent, Walk, Work


@dataclass(frozen=True)
class Schedule(Exposure):
    """When a device computes and waits, in seconds; exposed is what it waits for."""

    sends: tuple[Sent, ...] = ()  # all transfers, in order
    work: tuple[Work, ...] = ()  # all computation, in order
    unpriced: tuple[str, ...] = ()  # instructions that the compiler has no estimate for

    def __str__(self) -> str:
        """All in the order in which it begins: when, how long it takes, and how long a transfer is waited for."""
        rows = [(one.start, one.end, one.name) for one in self.work]
        rows += [(one.start, one.end, f"{one}, waited for {_micro(one.waited)} us") for one in self.sends]
        lines = [f"{_micro(start):>9} {_micro(end - start):>9}  {what}" for start, end, what in sorted(rows)]
        return "\n".join(["begins us  takes us", *lines, f"{_micro(self.total):>9}            over"])

    @property
    def permutes(self) -> int:
        """How many permutes there are."""
        return sum(sent.kind == "permute" for sent in self.sends)

    @property
    def synchronous(self) -> tuple[Sent, ...]:
        """The transfers beside which nothing can be computed."""
        return tuple(sent for sent in self.sends if sent.form == "synchronous")

    @property
    def monolithic(self) -> tuple[Sent, ...]:
        """The transfers that are no permutes."""
        return tuple(sent for sent in self.sends if sent.kind != "permute")


def schedule(text: str, topology: Topology, chips: Sequence[Coordinates]) -> Schedule:
    """The timeline of a compiled program.

    Arguments:
        text: its HLO, scheduled.
        topology: what it was compiled for.
        chips: where each device of its mesh is, in mesh order.

    Raises:
        HloError: if the text is not that of a scheduled program, or cannot be read.
    """
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise HloError("not a scheduled program: expected is_scheduled=true in its first line")
    module = read(text)
    walk = Walk(module, {c.name: c for c in collectives(text)}, topology, chips, Frames.read(text))
    walk.through(module.entry)
    return Schedule(
        walk.now,
        walk.computed,
        length(union((sent.start, sent.end) for sent in walk.sends)),
        walk.waited,
        tuple(walk.sends),
        tuple(walk.work),
        tuple(dict.fromkeys(walk.unpriced)),
    )


def _micro(seconds: Fraction) -> str:
    return f"{float(seconds * 10**6):.1f}"


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
