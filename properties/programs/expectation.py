"""The grammar of claims: `permute=p-1,bytes=(p-1)*n/p` is sent, and after `;grad:` what the gradient sends.

How that is hidden is stated as `exposed<=1/p,directions=2,memory<=lhs+rhs+2*out`. Our implementations and users state
both in these words.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self, SupportsIndex

from shardproof.oracles.communication import KINDS
from shardproof.properties.cases.reading import one_line
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts import Contract

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: _power(a, b),
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": lambda x: Fraction(math.ceil(x)),
    "log2": lambda x: Fraction(math.log2(x)),
    "min": min,
    "max": max,
}
SUM = "sum"
NAMES = ("p", "n", "x", "lhs", "rhs", "w_in", "w_out", "out")
"""The names in expressions, in one contract or another."""

BYTES, STEPS = "bytes", "steps"
OF_KIND = "_bytes"
TERMS = (*KINDS, *(kind + OF_KIND for kind in KINDS), BYTES, STEPS)
GRADIENT, EXACTLY = "grad:", "exactly:"
LONGEST, LARGEST_POWER, LARGEST_BITS = 400, 64, 4096
MOST_TERMS = 4096
"""The most terms of a `sum(… for i in range(…))`."""


class ExpectationError(RequestError):
    """An expectation that cannot be read; the message says why in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Block(int):
    """The bytes of a device's block of an array, and what the functions of `OF_BLOCKS` give of it."""

    shape: tuple[int, ...]  # by default a row of bytes
    bits: int  # of an element
    sum_bits: int  # of an element of sums, in the accumulator's dtype
    # whether devices have the same block along an axis along which another operand varies, or over which the function
    # runs: their gradients are added up
    replicated: bool

    def __new__(
        cls,
        size: SupportsIndex,
        shape: tuple[int, ...] | None = None,
        bits: int = 8,
        sum_bits: int = 8,
        *,
        replicated: bool = False,
    ) -> Self:
        """The block."""
        block = super().__new__(cls, size)
        block.shape = (int(size),) if shape is None else shape
        block.bits, block.sum_bits, block.replicated = bits, sum_bits, replicated
        return block

    def side(self, dimension: Any) -> int:
        """The size of a dimension, counted from the front or from the back; 1 of one that it has not."""
        at = int(dimension)
        return self.shape[at] if -len(self.shape) <= at < len(self.shape) else 1


OF_BLOCKS: dict[str, Callable[..., Any]] = {
    "size": Block.side,
    "elements": lambda block: math.prod(block.shape),
    "itemsize": lambda block: Fraction(block.bits, 8),
    "sum_itemsize": lambda block: Fraction(block.sum_bits, 8),
    "replicated": lambda block: int(block.replicated),
}
"""Functions whose first argument is the name of an operand, of the result, or of the tuple of axes."""


def names_of(contract: Contract) -> tuple[str, ...]:
    """The names in expectations of a contract: p, n, its operands, roles, `out`, `axes`, options, and its own sizes."""
    return (
        *("p", "n", *contract.call.operands, *contract.call.roles, "out", "axes"),
        *(name for name in contract.call.parameters if name not in ("p", "n", "axes")),
        *contract.sizes,
    )


@dataclass(frozen=True)
class Stated:
    """An expectation of a case, in numbers; what it does not state is missing."""

    counts: Mapping[str, Fraction] = field(default_factory=dict)  # how many collectives of each kind
    sizes: Mapping[str, Fraction] = field(default_factory=dict)  # the bytes of a kind
    bytes: Fraction | None = None  # of all kinds
    steps: Fraction | None = None  # how many collectives may at most wait for one another

    def beside(self, other: "Stated") -> "Stated":
        """Both at the same time, as the leaves of a tree are sent; both state the same things."""
        return Stated(
            {kind: count + other.counts[kind] for kind, count in self.counts.items()},
            {kind: size + other.sizes[kind] for kind, size in self.sizes.items()},
            None if self.bytes is None or other.bytes is None else self.bytes + other.bytes,
            None if self.steps is None or other.steps is None else max(self.steps, other.steps),
        )


@dataclass(frozen=True)
class Terms:
    """The collectives of each kind, bytes and steps of one pass, as expressions."""

    # (a kind, a kind and `_bytes`, `bytes` or `steps`; expression). If any kind is named, others must not occur.
    terms: tuple[tuple[str, str], ...]

    def stated(self, sizes: Mapping[str, Any]) -> Stated:
        """The numbers that it states. All bytes are those of a kind, where no other one is named."""
        found = {name: value(text, **sizes) for name, text in self.terms}
        counts = {kind: found.get(kind, Fraction(0)) for kind in KINDS} if set(KINDS) & set(found) else {}
        own = {kind: found[kind + OF_KIND] for kind in KINDS if kind + OF_KIND in found}
        named = [kind for kind in KINDS if kind in found]
        if not own and len(named) == 1 and BYTES in found:
            own = {named[0]: found[BYTES]}
        own |= {kind: Fraction(0) for kind in counts if kind not in named and kind not in own}
        return Stated(counts, own, found.get(BYTES), found.get(STEPS))

    def names(self) -> frozenset[str]:
        """The names in the expressions."""
        nodes = [node for _, text in self.terms for node in ast.walk(_parse(text))]
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name)) - {*FUNCTIONS, *OF_BLOCKS, SUM}


@dataclass(frozen=True)
class Expectation:
    """The communication that is stated of a function."""

    text: str  # as it was given
    forward: Terms | None = None  # None: nothing is expected of it
    backward: Terms | None = None  # what reverse mode sends alone, with what it repeats of the forward pass
    exactly: bool = False  # whether it sends all of that even where nothing must move, and it might send less

    @classmethod
    def parse(cls, text: str, names: Sequence[str] = NAMES, said: str = "communication") -> "Expectation":
        """Reads `KIND=EXPRESSION,…,bytes=EXPRESSION,steps=EXPRESSION`, and after `;grad:` the same of the gradient.

        `KIND=` is how many collectives of a kind there are, `KIND_bytes=` the bytes of their operands in all, `bytes=`
        those of all kinds, and `steps=` how many may at most wait for one another. Of a tree, each leaf is sent like
        this. An expression is made of

        - numbers, p (the number of participants), n (the bytes of the full vector, as in
          `shardproof.oracles.communication`), the bytes of a device's block of an operand or of the result (`lhs`,
          `rhs`, `x`, `out`, …), the contract's options that are numbers (True is 1), and what a contract names besides;
        - + - * / // % **, parentheses, ceil(…), log2(…), min(…), max(…), comparisons of two (1 or 0),
          `a if p <= 8 else b`, and `sum(a*i for i in range(p))`;
        - of a block, `elements(x)`, `size(x, 0)` (of a dimension, from the front or with -1 from the back),
          `itemsize(x)` (the bytes of an element), `sum_itemsize(x)` (those of one that sums are carried in: 4 of 16-bit
          floats), and `replicated(x)`: 1 if devices have the same block along an axis along which another operand
          varies, or over which the function runs, so that its gradients are added up; else 0. `size(axes, 0)` is the
          size of the first of the axes that the function runs over.

        After `exactly:`, just as much is expected where nothing must move.

        Arguments:
            names: the names that expressions may have.
            said: the argument or option that it was given by, for messages.

        Raises:
            ExpectationError: for anything else.
        """
        if not isinstance(text, str):
            raise ExpectationError(f"{said}={text!r}: expected a text, such as 'permute=p-1'")
        if len(text) > 2 * LONGEST * (len(KINDS) + 2):
            raise ExpectationError(f"{said}={text[:LONGEST]}…: {len(text)} characters are too many")
        exactly, rest = text.strip().startswith(EXACTLY), text.strip().removeprefix(EXACTLY)
        passes: dict[bool, Terms] = {}
        for part in rest.split(";"):
            backward = part.strip().startswith(GRADIENT)
            if backward in passes:
                raise ExpectationError(f"{said}={text}: expected at most one part, and one that begins with {GRADIENT}")
            passes[backward] = _terms(part.strip().removeprefix(GRADIENT), names, f"{said}={text}")
        return cls(text, passes.get(False), passes.get(True), exactly)

    def __str__(self) -> str:
        return self.text


def _terms(part: str, names: Sequence[str], given: str) -> Terms:
    forms = f"KIND=EXPRESSION with a kind of {', '.join((*KINDS, BYTES, STEPS))}, or KIND{OF_KIND}, each once"
    found = _expressions(part, [f"{term}=" for term in TERMS], names, given, forms)
    return Terms(tuple((term.removesuffix("="), expression) for term, expression in found.items()))


def _expressions(text: str, known: Sequence[str], names: Sequence[str], given: str, forms: str) -> dict[str, str]:
    """The expressions of the terms of a text, by what they begin with, each of `known` at most once."""
    found: dict[str, str] = {}
    for term in split_terms(text):
        beginning, equals, expression = term.partition("=")
        name = f"{beginning.strip()}{equals}"
        if name not in known or name in found:
            raise ExpectationError(f"{given}: {term.strip()!r}: expected {forms}")
        found[name] = expression.strip()
        _check(found[name], names, given)
    return found


def _check(expression: str, names: Sequence[str], given: str) -> None:
    for p in (4, 1, 2, 3):
        try:
            value(expression, **{**dict.fromkeys(names, 64), "p": p})
        except ExpectationError as error:
            where = "" if p == 4 else f"for p={p}: "
            raise ExpectationError(f"{given}: {where}{error}") from error


def split_terms(part: str) -> list[str]:
    """The terms between commas that are not in parentheses."""
    terms, depth = [""], 0
    for character in part:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            terms.append("")
        else:
            terms[-1] += character
    return terms


def value(expression: str, **sizes: Any) -> Fraction:
    """The value of an expression of `sizes`, as `Expectation.parse` describes it; ExpectationError if it has none."""
    try:
        return _value(_parse(expression), sizes)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        reason = "not an expression" if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise ExpectationError(
            f"{expression!r}: {reason}: expected arithmetic of {', '.join(sizes)} and numbers "
            f"with + - * / // % ** < <= == if else {' '.join((*FUNCTIONS, SUM, *OF_BLOCKS))}"
        ) from error


def _parse(expression: str) -> ast.expr:
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    return ast.parse(expression.strip(), mode="eval").body


def _value(node: ast.expr, names: Mapping[str, Any]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(number)
        case ast.Name(id=name) if name in names:
            return Fraction(names[name])
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]) if (
            type(op) in OPERATORS
        ):
            return _bounded(Fraction(OPERATORS[type(op)](_value(left, names), _value(right, names))))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in FUNCTIONS:
            return _bounded(FUNCTIONS[name](*(_value(argument, names) for argument in arguments)))
        case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=of), *rest], keywords=[]) if (
            name in OF_BLOCKS and of in names
        ):
            block = names[of] if isinstance(names[of], Block) else Block(int(names[of]))
            return Fraction(OF_BLOCKS[name](block, *(_value(argument, names) for argument in rest)))
        case ast.Call(
            func=ast.Name(id="sum"),
            args=[
                ast.GeneratorExp(
                    elt=term,
                    generators=[
                        ast.comprehension(
                            target=ast.Name(id=index),
                            iter=ast.Call(func=ast.Name(id="range"), args=[_, *_] as bounds, keywords=[]),
                            ifs=[],
                        )
                    ],
                )
            ],
            keywords=[],
        ) if len(bounds) <= 2 and not any(isinstance(inner, ast.GeneratorExp) for inner in ast.walk(term)):
            indices = range(*(math.ceil(_value(bound, names)) for bound in bounds))
            if len(indices) > MOST_TERMS:
                raise ValueError(f"a sum of more than {MOST_TERMS} terms")
            return _bounded(sum((_value(term, {**names, index: at}) for at in indices), Fraction(0)))
    raise ValueError(f"{ast.unparse(node)!r} is not understood")


def _bounded(number: Fraction) -> Fraction:
    """The number; raises ValueError if it has more digits than any count of bytes."""
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > LARGEST_BITS:
        raise ValueError("a number in it is too large")
    return number


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > LARGEST_POWER or abs(base) > 2**LARGEST_POWER:
        raise ValueError(f"{base}**{exponent} is too large")
    return Fraction(base**exponent)


EXPOSED, DIRECTIONS, MEMORY = "exposed<=", "directions=", "memory<="


@dataclass(frozen=True)
class Overlap:
    """A claim of how communication is hidden."""

    exposed: str  # the most time in which something is sent and nothing computed, as a part of that in which it is sent
    directions: int = 1  # 2: blocks go both ways round each ring of three participants or more
    memory: str | None = None  # the most bytes alive at one time on a device; None: not stated

    @classmethod
    def parse(cls, text: str, names: Sequence[str], said: str = "overlap") -> "Overlap":
        """Reads `exposed<=EXPRESSION`, and after commas `directions=2` and `memory<=EXPRESSION`.

        Expressions, the other arguments and errors are those of `Expectation.parse`.
        """
        terms = _expressions(text, (EXPOSED, DIRECTIONS, MEMORY), names, f"{said}={text}", f"{_FORMS}, each once")
        if EXPOSED not in terms or terms.get(DIRECTIONS, "1") not in ("1", "2"):
            raise ExpectationError(f"{said}={text!s}: expected {_FORMS}: the first is required")
        return cls(terms[EXPOSED], int(terms.get(DIRECTIONS, "1")), terms.get(MEMORY))

    def __str__(self) -> str:
        directions = f",{DIRECTIONS}{self.directions}" if self.directions > 1 else ""
        return f"{EXPOSED}{self.exposed}{directions}" + ("" if self.memory is None else f",{MEMORY}{self.memory}")


_FORMS = "exposed<=EXPRESSION, directions=2, memory<=EXPRESSION"
