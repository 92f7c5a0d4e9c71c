"""Compiled text (HLO) as computations of instructions: a tokenizer that knows brackets, strings and comments.

Only the shape of the text is known here, not what an instruction means. The text is what
`jax.stages.Compiled.as_text` gives, on any backend.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

OPENING, CLOSING = "([{", ")]}"


class HloError(ValueError):
    """A text that cannot be read; the message names the line."""


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Arguments:
        name: what other lines call it.
        shape: the text of its result's type.
        opcode: what it does.
        operands: the operands as they stand there.
        attributes: what follows the operands, `name=value`, values as they stand there.
        line: the whole line.
        root: whether it is the computation's result.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    line: str
    root: bool = False

    def called(self, attribute: str) -> str:
        """The computation that an attribute names, or the empty text."""
        return bare(self.attributes.get(attribute, ""))


@dataclass(frozen=True)
class Computation:
    """A function of the text, its instructions by name."""

    name: str
    instructions: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction that gives its result."""
        return next(i for i in self.instructions.values() if i.root)


@dataclass(frozen=True)
class Module:
    """A whole text: its computations by name, and which of them is run."""

    computations: Mapping[str, Computation]
    entry: Computation


def bare(name: str) -> str:
    """A name without what marks it as one: `%x` and `f32[2]{0} %x` are both `x`."""
    return name.strip().rpartition(" ")[2].removeprefix("%")


def without_comments(text: str) -> str:
    """The text without `/* … */`, which strings may contain."""
    parts, quoted, i = [], False, 0
    while i < len(text):
        if not quoted and text.startswith("/*", i) and "*/" in text[i:]:
            i = text.index("*/", i) + 2
            continue
        if text[i] == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        parts.append(text[i])
        i += 1
    return "".join(parts)


def closing(text: str, start: int = 0) -> int:
    """The index of the bracket that closes the one at `start`; -1 if nothing does."""
    depth, quoted = 0, False
    for i in range(start, len(text)):
        if text[i] == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted and text[i] in OPENING:
            depth += 1
        elif not quoted and text[i] in CLOSING:
            depth -= 1
            if depth == 0:
                return i
    return -1


def split(text: str, separator: str = ",") -> list[str]:
    """The parts between separators that stand in no bracket and no string, stripped; none of an empty text."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, character in enumerate(text):
        if character == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif quoted:
            continue
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def read_instruction(line: str) -> Instruction:
    """One line as an instruction.

    Raises:
        HloError: if it is none.
    """
    name, equals, rest = without_comments(line).strip().partition(" = ")
    root = name.startswith("ROOT ")
    rest = rest.lstrip()
    end = closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    shape, call = rest[:end], rest[end:].lstrip()
    opens = call.find("(")
    closes = closing(call, opens) if opens > 0 else -1
    if not equals or end <= 0 or closes < 0:
        raise HloError(f"not an instruction: {line.strip()}")
    pairs = [part.partition("=") for part in split(call[closes + 1 :].lstrip(","))]
    return Instruction(
        name=bare(name.removeprefix("ROOT ")),
        shape=shape,
        opcode=call[:opens].strip(),
        operands=tuple(split(call[opens + 1 : closes])),
        attributes=MappingProxyType({key: value for key, _, value in pairs}),
        line=line.strip(),
        root=root,
    )


def read(text: str) -> Module:
    """The computations of a text.

    Raises:
        HloError: if a line inside of a computation is no instruction, or there is no ENTRY.
    """
    computations: dict[str, Computation] = {}
    entry = name = ""
    held: dict[str, Instruction] = {}
    pending = ""
    for line in text.splitlines():
        if not name:
            header = line.strip()
            if header.endswith("{") and "->" in header and not header.startswith("HloModule"):
                name = bare(header.removeprefix("ENTRY ").split("(")[0].strip())
                entry = name if header.startswith("ENTRY ") else entry
                held = {}
            continue
        pending = f"{pending} {line.strip()}" if pending else line
        stripped = pending.strip()
        if stripped == "}" or stripped.startswith("}, "):  # what follows are attributes of the computation
            computations[name] = Computation(name, MappingProxyType(held))
            name = pending = ""
        elif not stripped:
            pending = ""
        elif " = " not in stripped or closing(f"({stripped})") >= 0:  # a literal may go on for lines
            instruction = read_instruction(pending)
            held[instruction.name] = instruction
            pending = ""
    if name:
        raise HloError(f"computation {name}: expected a closing bracket before the end of the text; pending: {pending}")
    if not entry:
        raise HloError("no ENTRY computation: expected the text of a compiled program")
    return Module(MappingProxyType(computations), computations[entry])


BITS = {
    "pred": 8, "token": 0, "opaque": 0,
    "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip
"""Bits of an element; those of `f4…` and `f8…` are in the name. Sub-byte types are counted packed."""


@dataclass(frozen=True)
class Shape:
    """An array's type: element type and sizes."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def bits(self) -> int:
        """The bits of all elements."""
        return element_bits(self.dtype) * math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """The bytes that they fill."""
        return math.ceil(self.bits / 8)


def element_bits(dtype: str) -> int:
    """The bits of an element.

    Raises:
        HloError: for a type that is not known.
    """
    if dtype in BITS:
        return BITS[dtype]
    if dtype[:2] in ("f4", "f8") and dtype[2:3] == "e":
        return int(dtype[1])
    raise HloError(f"element type {dtype!r}: not known")


def arrays(text: str) -> Iterator[Shape]:
    """The arrays of a type, those of a tuple one after the other; layouts are not looked at.

    Raises:
        HloError: if the text is no type.
    """
    text = text.strip()
    if text.startswith("("):
        for part in split(text[1 : closing(text)]):
            yield from arrays(part)
        return
    dtype, bracket, rest = text.partition("[")
    if dtype in ("token", "opaque") and not bracket:
        return
    sizes = rest.partition("]")[0]
    numbers = [size.strip().removeprefix("<=") for size in sizes.split(",")] if sizes else []
    if not bracket or not all(number.isdigit() for number in numbers):
        raise HloError(f"type {text!r}: expected an element type and sizes, as in f32[2,4]")
    yield Shape(dtype, tuple(map(int, numbers)))
