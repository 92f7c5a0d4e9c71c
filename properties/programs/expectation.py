"""What a user expects of a program's communication: `permute=p-1,bytes=(p-1)*n/p`, and of its gradient's."""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles.communication import KINDS
from shardproof.properties.cases.reading import one_line

OPERATORS: dict[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Pow: lambda a, b: _power(a, b),
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
FUNCTIONS = ("ceil", "log2")
NAMES = ("p", "n", "x", "lhs", "rhs", "w_in", "w_out", "out")
"""What expressions may speak of, in one contract or another."""

BYTES, STEPS = "bytes", "steps"
GRADIENT, EXACTLY = "grad:", "exactly:"
LONGEST, LARGEST_POWER, LARGEST_BITS = 200, 64, 4096


class ExpectationError(ValueError):
    """An expectation that cannot be read; the message says why in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True)
class Terms:
    """How many collectives of which kinds, how many bytes in all, and how many steps one pass has, as expressions.

    Arguments:
        terms: (a kind, `bytes` or `steps`, expression). Where a kind is named, kinds that are not are expected not to
            occur.
    """

    terms: tuple[tuple[str, str], ...]

    def counts(self, sizes: Mapping[str, int]) -> dict[str, Fraction]:
        """How many of each kind are expected; empty if none is named."""
        named = {name: value(text, **sizes) for name, text in self.terms if name in KINDS}
        return {kind: named.get(kind, Fraction(0)) for kind in KINDS} if named else {}

    def bytes(self, sizes: Mapping[str, int]) -> Fraction | None:
        """How many bytes are expected in all, if that is said."""
        return self._value(BYTES, sizes)

    def steps(self, sizes: Mapping[str, int]) -> Fraction | None:
        """How many collectives may at most wait for one another, if that is said."""
        return self._value(STEPS, sizes)

    def names(self) -> frozenset[str]:
        """What the expressions speak of."""
        nodes = [node for _, text in self.terms for node in ast.walk(_parsed(text))]
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name)) - set(FUNCTIONS)

    def _value(self, wanted: str, sizes: Mapping[str, int]) -> Fraction | None:
        return next((value(text, **sizes) for name, text in self.terms if name == wanted), None)


@dataclass(frozen=True)
class Expectation:
    """What a user expects of a function's communication.

    Arguments:
        text: as it was given.
        forward: what the function sends; None: nothing is expected of it.
        backward: what reverse mode sends by itself, what it needs of the forward pass included; None: as above.
        exactly: whether it sends all of that even where nothing must move. Otherwise it may then send less.
    """

    text: str
    forward: Terms | None = None
    backward: Terms | None = None
    exactly: bool = False

    @classmethod
    def parse(cls, text: str, names: Sequence[str] = NAMES, said: str = "communication") -> "Expectation":
        """Reads `KIND=EXPRESSION,…,bytes=EXPRESSION,steps=EXPRESSION`, and after `;grad:` the same of the gradient.

        An expression is made of numbers, p (the number of participants), n (the bytes of the full vector, as
        in `shardproof.oracles.communication`), the bytes of a device's block of an operand or of the result (`lhs`,
        `rhs`, `x`, `out`, …), + - * / // **, parentheses, ceil(…) and log2(…). `exactly:` in front of all asks
        for just as much where nothing must move.

        Arguments:
            text: what is read.
            names: what expressions may speak of.
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


def _terms(part: str, names: Sequence[str], told: str) -> Terms:
    terms = []
    for term in part.split(","):
        name, equals, expression = (piece.strip() for piece in term.partition("="))
        if not equals or name not in (*KINDS, BYTES, STEPS):
            raise ExpectationError(
                f"{told}: {term.strip()!r}: expected KIND=EXPRESSION with a kind of {', '.join((*KINDS, BYTES, STEPS))}"
            )
        for p in (4, 1, 2, 3):
            try:
                value(expression, **{**dict.fromkeys(names, 64), "p": p})
            except ExpectationError as error:
                where = "" if p == 4 else f"for p={p}: "
                raise ExpectationError(f"{told}: {where}{error}") from error
        terms.append((name, expression))
    if len({name for name, _ in terms}) != len(terms):
        raise ExpectationError(f"{told}: expected every kind once")
    return Terms(tuple(terms))


def value(expression: str, **sizes: int) -> Fraction:
    """The value of an expression in which names stand for `sizes`.

    Raises:
        ExpectationError: if it is no expression as `Expectation.parse` describes, or has no value.
    """
    try:
        return _value(_parsed(expression), {name: Fraction(size) for name, size in sizes.items()})
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        reason = "not an expression" if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise ExpectationError(
            f"{expression!r}: {reason}: expected arithmetic of {', '.join(sizes)} and numbers "
            "with + - * / // ** ceil log2"
        ) from error


def _parsed(expression: str) -> ast.expr:
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    return ast.parse(expression, mode="eval").body


def _value(node: ast.expr, names: dict[str, Fraction]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(number)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return _bounded(OPERATORS[type(op)](_value(left, names), _value(right, names)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand, names))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            inner = _value(argument, names)
            return Fraction(math.ceil(inner)) if name == "ceil" else Fraction(math.log2(inner))
    raise ValueError(f"{ast.unparse(node)!r} is not understood")


def _bounded(number: Fraction) -> Fraction:
    """The number, which has no more digits than any count of bytes."""
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > LARGEST_BITS:
        raise ValueError("a number in it is too large")
    return number


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > LARGEST_POWER or abs(base) > 2**LARGEST_POWER:
        raise ValueError(f"{base}**{exponent} is too large")
    return Fraction(base**exponent)
