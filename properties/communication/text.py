"""A parser of compiled text (HLO), as `jax.stages.Compiled.as_text` returns it on any backend.

It reads computations, instructions, types, and the devices that a collective connects: three spellings of replica
groups, and source-target pairs. The meaning of instructions is in `hlo`.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

OPENING, CLOSING = "([{", ")]}"
COMMENT = re.compile(r'(?P<quoted>"(?:[^"\\]|\\.)*")|/\*.*?\*/')
"""A string, which may contain what looks like a comment, or a comment."""


class HloError(ValueError):
    """A text that cannot be read; the message names the line."""


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Arguments:
        name: its name in other lines.
        shape: the text of its result's type.
        operands: the operands as text.
        attributes: the `name=value` behind the operands, values as text.
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
        """The instruction of its result."""
        return next(i for i in self.instructions.values() if i.root)


@dataclass(frozen=True)
class Module:
    """A whole text: its computations by name, and the one that runs."""

    computations: Mapping[str, Computation]
    entry: Computation


def bare(name: str) -> str:
    """A name without `%` and type: `%x` and `f32[2]{0} %x` are both `x`."""
    return name.strip().rpartition(" ")[2].removeprefix("%")


def unquoted(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """The characters outside of strings, with their indices and the number of brackets open behind them."""
    depth, quoted = 0, False
    for i in range(start, len(text)):
        if text[i] == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif not quoted:
            depth += (text[i] in OPENING) - (text[i] in CLOSING)
            yield i, text[i], depth


def closing(text: str, start: int = 0) -> int:
    """The index of the bracket that closes the one at `start`; -1 if none does."""
    return next((i for i, character, depth in unquoted(text, start) if character in CLOSING and depth == 0), -1)


def split(text: str, separator: str = ",") -> list[str]:
    """The parts between separators outside of brackets and strings, stripped; none of an empty text."""
    ends = [i for i, character, depth in unquoted(text) if character == separator and depth == 0]
    parts = [text[start + 1 : end].strip() for start, end in itertools.pairwise([-1, *ends, len(text)])]
    return parts if parts[-1] or len(parts) > 1 else []


def read_instruction(line: str) -> Instruction:
    """One line as an instruction; raises HloError if it is none."""
    name, equals, rest = COMMENT.sub(lambda found: found["quoted"] or "", line).strip().partition(" = ")
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
        attributes={key: value for key, _, value in pairs},
        line=line.strip(),
        root=root,
    )


def read(text: str) -> Module:
    """The computations of a text; raises HloError if a line in one is no instruction, or there is no ENTRY."""
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
            computations[name] = Computation(name, held)
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
    return Module(computations, computations[entry])


BITS = {"pred": 8, "token": 0, "opaque": 0}
"""The bits of elements whose type's name does not state them."""


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
    """The bits of an element, packed below a byte; raises HloError for an unknown type."""
    if dtype in BITS:
        return BITS[dtype]
    if found := re.fullmatch(r"(?:s|u|bf|c)(\d+)|f(\d+)(?:e\w+)?", dtype):
        return int(found[1] or found[2])
    raise HloError(f"element type {dtype!r}: not known")


def arrays(text: str) -> Iterator[Shape]:
    """The arrays of a type, without layouts, or those in a tuple; raises HloError for anything else."""
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


Groups = tuple[tuple[int, ...], ...]


def lists(text: str) -> Groups:
    """`{{0,1},{2,3}}` as tuples; `{}` is the empty one. Raises HloError for another form."""
    text = text.strip()
    if not (text.startswith("{") and closing(text) == len(text) - 1):
        raise HloError(f"groups {text!r}: expected lists in braces")
    parts = split(text[1:-1])
    if parts and not parts[0].startswith("{"):  # one list stands alone
        parts = [text]
    try:
        return tuple(tuple(int(number) for number in split(part[1:-1])) for part in parts)
    except ValueError as error:
        raise HloError(f"groups {text!r}: expected numbers in braces") from error


def numbers(text: str) -> tuple[int, ...]:
    """`[2,4]` or `(1,0)` without its brackets, as numbers."""
    return tuple(int(number) for number in split(text[1:-1]))


def replica_groups(text: str) -> Groups:
    """The groups of a collective, in any of the three spellings; raises HloError for any other text.

    `{{0,1},{2,3}}` lists them. `[2,4]<=[8]` is iota: the numbers below 8, as 2 groups of 4; with `T(1,0)` they are
    shaped as on the right, transposed, and then cut. `mesh['a'=2,'b'=4] {'a'}` names the axes of a mesh over which
    devices are connected, the last one varying fastest; the devices may stand in between, as in
    `mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}`, or `device_ids=(0,2,1,3)`.
    """
    text = text.strip()
    try:
        if text.startswith("mesh["):
            return _of_mesh(text)
        if text.startswith("["):
            return _of_iota(text)
    except (ValueError, IndexError, KeyError) as error:
        raise HloError(f"replica_groups={text}: {error}") from error
    return lists(text)


def _iota(text: str) -> np.ndarray:
    """`[8]`, `[2,4]T(1,0)`: the numbers below the product, shaped and transposed."""
    end = closing(text)
    shape = numbers(text[: end + 1])
    result = np.arange(math.prod(shape)).reshape(shape)
    order = text[end + 1 :].strip()
    if order:
        if not order.startswith("T("):
            raise ValueError(f"expected a transpose, found {order!r}")
        result = result.transpose(numbers(order[1:]))
    return result


def _of_iota(text: str) -> Groups:
    shape, arrow, source = text.partition("<=")
    if not arrow:
        raise ValueError("expected '<='")
    table = _iota(source.strip()).reshape(numbers(shape.strip()))
    return tuple(tuple(map(int, row)) for row in table)


def _devices(text: str, count: int) -> np.ndarray:
    """`device_ids=([2,2]T(1,0))`, `device_ids=(0,2,1,3)`, or nothing: the devices of a mesh, in its order."""
    if not text:
        return np.arange(count)
    if not text.startswith("device_ids=("):
        raise ValueError(f"expected the axes in braces, found {text!r}")
    listed = text.removeprefix("device_ids=")
    return _iota(listed[1:-1]) if listed.startswith("([") else np.array(numbers(listed))


def _of_mesh(text: str) -> Groups:
    end = closing(text, 4)
    axes = [part.partition("=") for part in split(text[5:end])]
    sizes = {name.strip().strip("'\""): int(size) for name, _, size in axes}
    rest = text[end + 1 :].strip().removeprefix(",").strip()
    opens = rest.rindex("{")
    devices = _devices(rest[:opens].strip(), math.prod(sizes.values()))
    named = [_part(part, sizes) for part in split(rest[opens + 1 : closing(rest, opens)])]
    pieces = _pieces(sizes, named)
    chosen = [i for name, start, end in named for i, p in enumerate(pieces) if p[0] == name and start <= p[1] < end]
    others = [i for i in range(len(pieces)) if i not in chosen]
    table = devices.reshape([end // start for _, start, end in pieces])
    participants = table.transpose(*others, *chosen).reshape(-1, math.prod(end // start for _, start, end in named))
    return tuple(tuple(map(int, row)) for row in participants)


def _part(text: str, sizes: dict[str, int]) -> tuple[str, int, int]:
    """A part of an axis, as its name and the products of sizes at its ends: `'dp':(2)4` is dp from 2 to 8."""
    name, of_one, part = text.partition(":")
    name = name.strip().strip("'\"")
    if not of_one:
        return name, 1, sizes[name]
    before, _, size = part.strip().removeprefix("(").partition(")")
    start = int(before)
    end = start * int(size)
    if sizes[name] % end:
        raise ValueError(f"expected a part of an axis of size {sizes[name]}, found {text!r}")
    return name, start, end


def _pieces(sizes: dict[str, int], named: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """All axes, cut into such parts where the named ones begin and end."""
    found = []
    for name, size in sizes.items():
        edges = sorted({1, size, *(edge for other, *both in named if other == name for edge in both)})
        found += [(name, start, end) for start, end in itertools.pairwise(edges)] or [(name, 1, 1)]
    return found
