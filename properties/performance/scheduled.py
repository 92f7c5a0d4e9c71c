"""A timeline of a program as XLA:TPU scheduled it: when it computes, and when its links are busy.

Computation takes the compiler's own estimate (`estimated_cycles` of a fusion or copy, at the chip's clock). A transfer
begins at its `-start`, after other transfers on its links, and takes its bytes at the link's bandwidth and a latency
for every hop; at its `-done` the device waits for the rest of it. A synchronous transfer is waited for at once.

Left out: copies between a chip's memories beside computation (`copy-start`, `slice-start`), contention between
transfers and computation, scalar instructions, and instructions without an estimate (`Schedule.unpriced`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import PurePath

from shardproof.properties.communication.hlo import OPCODES, CompiledCollective, called, collectives, known_trips
from shardproof.properties.communication.text import Computation, HloError, Instruction, Module, bare, read
from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.timeline import Exposure, length, union
from shardproof.properties.performance.tpu_compiler.topology import Coordinates, Hop, Topology, passage

INNERMOST = 3
"""The number of frames in messages: the innermost, and its callers."""

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
TABLE = re.compile(rf"^\s*({'|'.join(TABLES)})\s*\n((?:\s*\d+ .+\n)*)", re.MULTILINE)
ROW = re.compile(r'^\s*(\d+) "?(.+?)"?\s*$', re.MULTILINE)
FIELD = re.compile(r"(\w+)=(\d+)")
FRAME = re.compile(r"stack_frame_id=(\d+)")

Frames = Mapping[int, tuple[str, int]]
"""The frames of a text by number: the place of each, and the number of its caller. A text may have none."""


def read_frames(text: str) -> Frames:
    """The frames of a text."""
    tables = dict(TABLE.findall(text))
    files, functions, locations, frames = (dict(ROW.findall(tables.get(name, ""))) for name in TABLES)
    found: dict[int, tuple[str, int]] = {}
    for number, row in frames.items():
        frame = dict(FIELD.findall(row))
        at = dict(FIELD.findall(locations.get(frame.get("file_location_id", ""), "")))
        file = PurePath(files.get(at.get("file_name_id", ""), "")).name
        function = functions.get(at.get("function_name_id", ""), "")
        parent = int(frame.get("parent_frame_id", 1)) - 1  # written one higher, so that none is 1
        found[int(number)] = (f"{file}:{at.get('line', '?')} in {function}", parent)
    return found


def source_of(instruction: Instruction, frames: Frames) -> str:
    """The innermost places that an instruction comes from; empty if the text does not say."""
    frame = FRAME.search(instruction.attributes.get("metadata", ""))
    places: list[str] = []
    number = int(frame[1]) if frame else 0
    while number in frames and len(places) < INNERMOST:
        place, parent = frames[number]
        places.append(place)
        number = parent if parent < number else 0
    return ", called at ".join(places)


COPIES = ("copy", "bitcast")


def trips(module: Module, inside: Computation, loop: Instruction) -> int:
    """The trips of a `while`: as its line has them, or by its counter, which is compared with a limit."""
    known = known_trips(loop)
    if known is not None:
        return known
    body, condition = called(module, loop)
    root = condition.root
    unknown = HloError(f"the number of trips of the loop {loop.name} is not in the text: {root.line}")
    if root.opcode != "compare" or root.attributes.get("direction") != "LT":
        raise unknown
    counter, limit = (condition.instructions[bare(name)] for name in root.operands)
    before, after = inside.instructions[bare(loop.operands[0])], body.root
    if counter.opcode != "get-tuple-element" or before.opcode != "tuple" or after.opcode != "tuple":
        raise unknown
    index = int(counter.attributes["index"])
    first = _number(_origin(inside, before.operands[index]))
    last = _number(_origin(condition, limit.name, (inside, before)))
    added = body.instructions[bare(after.operands[index])]
    step = None
    for own, by in (added.operands, added.operands[::-1]) if added.opcode == "add" else ():
        carried = _origin(body, own)
        if step is None and carried is not None and carried.opcode == "get-tuple-element":
            step = _number(_origin(body, by, (inside, before)))
    if first is None or last is None or not step or step < 0:
        raise unknown
    return max(0, -(-(last - first) // step))


def _origin(
    computation: Computation, name: str, around: tuple[Computation, Instruction] | None = None
) -> Instruction | None:
    """The instruction that a value is a copy of; a loop's carry is followed to the tuple outside of the loop."""
    found = computation.instructions.get(bare(name))
    while found is not None and (found.opcode in COPIES or (found.opcode == "get-tuple-element" and around)):
        name = found.operands[0]
        if found.opcode not in COPIES and around:
            (computation, start), around = around, None
            name = start.operands[int(found.attributes["index"])]
        found = computation.instructions.get(bare(name))
    return found


def _number(found: Instruction | None) -> int | None:
    """The number of a constant."""
    text = found.operands[0] if found is not None and found.opcode == "constant" and found.operands else ""
    return int(text) if text.lstrip("-").isdigit() else None


FUSED_SCATTER = "all-reduce-scatter"
"""A fusion of an all-reduce and a slice, which the compiler runs as a reduce-scatter."""

FREE = frozenset({"ConcatBitcast", "AllocateBuffer", "Sharding", "AssumeGatherIndicesInBound"})
"""Custom calls that take no time."""


@dataclass(frozen=True)
class Sent:
    """One run of a transfer of a schedule."""

    name: str  # the instruction that starts it
    kind: str  # one of `shardproof.oracles.communication.KINDS`
    bytes: int  # those of a device's operands
    form: str  # `synchronous`, `start and done`, and so on
    start: Fraction  # when it begins, in seconds
    end: Fraction  # when it is over
    waited: Fraction = Fraction(0)  # how long the device waits for it
    where: str = ""  # its place in the program
    loads: Mapping[Hop, Fraction] = field(default_factory=dict, compare=False)  # the bytes on every link, one way

    def __str__(self) -> str:
        return f"{self.kind} of {self.bytes:,} bytes ({self.form}, {self.name}){f' at {self.where}' * bool(self.where)}"


Work = tuple[Fraction, Fraction, str]
"""Start and end of a computation of a schedule, in seconds, and the name of its instruction."""


@dataclass
class Walk:
    """The state of a walk through a schedule."""

    module: Module  # the whole text
    found: dict[str, CompiledCollective]  # its collectives by name
    topology: Topology  # what it was compiled for
    chips: Sequence[Coordinates]  # where each device is
    frames: Frames  # where its lines come from
    now: Fraction = Fraction(0)  # the time so far, in seconds
    computed: Fraction = Fraction(0)  # the part of it with computation
    waited: Fraction = Fraction(0)  # the part of it with waiting
    sends: list[Sent] = field(default_factory=list)  # the transfers so far
    work: list[Work] = field(default_factory=list)  # the computations so far
    unpriced: list[str] = field(default_factory=list)  # instructions without an estimate
    free: dict[Hop, Fraction] = field(default_factory=dict)  # the time from which each link is free
    pending: dict[str, int] = field(default_factory=dict)  # unfinished transfers in `sends`, by the key of their end

    def through(self, computation: Computation) -> None:
        """Runs a computation's instructions one after the other."""
        for instruction in computation.instructions.values():
            self.step(computation, instruction)

    def step(self, inside: Computation, instruction: Instruction) -> None:
        """Runs an instruction."""
        opcode, name = instruction.opcode, instruction.name
        inner = called(self.module, instruction)
        edge, fused = _fused(inner)
        if opcode == "while":
            for _ in range(trips(self.module, inside, instruction)):
                self.through(inner[0])
        elif opcode == "conditional":  # which no product has
            raise HloError(f"branches are not timed: {instruction.line}")
        elif opcode == "call":
            self.through(inner[0])
        elif opcode.endswith("-done") or edge == "Done":
            self._compute(instruction)
            key = _chain(fused) if fused is not None else bare(instruction.operands[0])
            if key in self.pending:
                self._wait(self.pending.pop(key))
        elif opcode == "async-update":
            if (before := bare(instruction.operands[0])) in self.pending:
                self.pending[name] = self.pending.pop(before)
        elif opcode.removesuffix("-start") in OPCODES:
            self._send(name, instruction, self.found[name])
        elif fused is not None:
            self._send(_chain(fused), fused, self.found[fused.name])
        elif inside_of := [i for c in inner for i in c.instructions.values() if i.name in self.found]:
            self._compute(instruction)
            continues = "async_collective_fusion_config" in inside_of[0].attributes.get("backend_config", "")
            for collective in () if continues else inside_of:  # a further step sends nothing new
                kind = "reduce_scatter" if inner[0].name.startswith(FUSED_SCATTER) else ""
                self._send(name, collective, self.found[collective.name], kind, done=opcode == "fusion")
        else:
            self._compute(instruction)

    def _compute(self, instruction: Instruction) -> None:
        cycles, target = _cycles(instruction), instruction.attributes.get("custom_call_target", "").strip('"')
        if not cycles and instruction.opcode == "custom-call" and target not in FREE:
            self.unpriced.append(f"{instruction.name} ({target})")
        if not cycles:
            return
        start, took = self.now, cycles / chip(self.topology.generation).clock
        self.now, self.computed = start + took, self.computed + took
        self.work.append((start, self.now, instruction.name))

    def _send(
        self, key: str, line: Instruction, collective: CompiledCollective, kind: str = "", *, done: bool = False
    ) -> None:
        """Begins a transfer, with the key of its end; a synchronous or `done` one ends at once."""
        machine = chip(self.topology.generation)
        loads, hops = passage(collective, self.chips, self.topology, kind)
        starts = [max(self.now, self.free.get(hop, Fraction(0))) for hop in loads]
        ends = [start + load / machine.link for start, load in zip(starts, loads.values(), strict=True)]
        self.free.update(zip(loads, ends, strict=True))
        begin, over = min(starts, default=self.now), max(ends, default=self.now) + hops * machine.latency
        form = "synchronous" if done else collective.form
        what = collective.name, kind or collective.kind, collective.operand_bytes, form
        self.sends.append(Sent(*what, begin, over, where=source_of(line, self.frames), loads=loads))
        if form == "synchronous":
            self._wait(len(self.sends) - 1)
        else:
            self.pending[key] = len(self.sends) - 1

    def _wait(self, index: int) -> None:
        sent = self.sends[index]
        wait = max(Fraction(0), sent.end - self.now)
        self.sends[index] = replace(sent, waited=wait)
        self.waited, self.now = self.waited + wait, self.now + wait


def _fused(inner: Sequence[Computation]) -> tuple[str, Instruction | None]:
    """`Start` or `Done`, and the collective, where a fusion starts or ends an asynchronous one."""
    instructions = [i for c in inner for i in c.instructions.values()]
    steps = [i for i in instructions if i.opcode in OPCODES]
    targets = (i.attributes.get("custom_call_target", "") for i in instructions)
    edges = (found[1] for target in targets if (found := re.search("AsyncCollective(Start|Done)", target)))
    edge = next(edges, "")
    return (edge, steps[0]) if edge and steps else ("", None)


def _chain(instruction: Instruction) -> str:
    return f"{instruction.opcode} {instruction.attributes.get('frontend_attributes', '')}"


def _cycles(instruction: Instruction) -> int:
    """The compiler's estimate; 0 without one."""
    text = instruction.attributes.get("backend_config", "")
    if "estimated_cycles" not in text:
        return 0
    try:
        return int(json.loads(text)["window_config"]["estimated_cycles"])
    except (ValueError, KeyError, TypeError) as error:
        raise HloError(f"backend_config cannot be read: {error}: {instruction.line}") from error


@dataclass(frozen=True)
class Schedule(Exposure):
    """A device's computation and waiting, in seconds; exposed is the time that it waits."""

    sends: tuple[Sent, ...] = ()  # all transfers, in order
    work: tuple[Work, ...] = ()  # all computation, in order
    unpriced: tuple[str, ...] = ()  # instructions that the compiler has no estimate for

    def __str__(self) -> str:
        """All in the order of their start: when, how long, and how long a transfer is waited for."""
        waits = [(one.start, one.end, f"{one}, waited for {_micro(one.waited)} us") for one in self.sends]
        rows = sorted([*self.work, *waits])
        lines = [f"{_micro(start):>9} {_micro(end - start):>9}  {what}" for start, end, what in rows]
        return "\n".join(["begins us  takes us", *lines, f"{_micro(self.total):>9}            over"])

    @property
    def permutes(self) -> int:
        """The number of permutes."""
        return sum(sent.kind == "permute" for sent in self.sends)

    @property
    def synchronous(self) -> tuple[Sent, ...]:
        """The transfers that do not overlap with computation."""
        return tuple(sent for sent in self.sends if sent.form == "synchronous")

    @property
    def monolithic(self) -> tuple[Sent, ...]:
        """The transfers other than permutes."""
        return tuple(sent for sent in self.sends if sent.kind != "permute")


def schedule(text: str, topology: Topology, chips: Sequence[Coordinates]) -> Schedule:
    """The timeline of a compiled program."""
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise HloError("not a scheduled program: expected is_scheduled=true in its first line")
    module = read(text)
    walk = Walk(module, {c.name: c for c in collectives(text)}, topology, chips, read_frames(text))
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
