"""Which type a program asked for, where the compiler sends a wider one.

XLA:CPU has no collectives of bfloat16 (they are sent as float32), of float8 (float16) and of int4 (int8):
it converts before and after. A program may convert by itself as well, and that is no promotion. What tells
them apart: the reducer of a promoted sum of bfloat16 is called `…_promoted`; what JAX converts is mostly
named `convert_element_type` in the metadata; and what the compiler widens it narrows again. A program that
widens, moves and narrows by itself may still be taken for one whose type was promoted (JAX 0.10 loses the
name), which is why both numbers are kept.
"""

from shardproof.properties.communication.text import Computation, Instruction, Module, arrays, bare, element_bits

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
    if reducer and narrow == "bf16":
        return ""
    if not _narrowed_again(module, narrow, wide):
        return ""
    widened = wide in WIDENED.get(narrow, ("f16", "f32") if narrow.startswith("f8") else ())
    return narrow if widened and not own_conversion(inside, instruction) else ""


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


def own_conversion(computation: Computation, convert: Instruction) -> bool:
    """Whether the program, and not the compiler, asked for a conversion."""
    source = computation.instructions.get(bare(convert.operands[0]))
    if source is not None and source.opcode == "convert":  # narrowed, then widened: no program says so
        return False
    return 'convert_element_type"' in convert.attributes.get("metadata", "").replace(" ", '" ')


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
