"""Types as compiled text spells them, and how many bytes they hold."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardproof.properties.communication.text import HloError, closing, split

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
