"""What a user expects of a program's communication: `permute=p-1,bytes=(p-1)*n/p`."""

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from oracles.communication import KINDS

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
NAMES = ("p", "n")
BYTES, STEPS = "bytes", "steps"
LONGEST, LARGEST_POWER = 200, 64


class ExpectationError(ValueError):
    """An expectation that cannot be read; the message says why in one line."""


@dataclass(frozen=True)
class Expectation:
    """How many collectives of which kinds, how many bytes in all, and how many steps, as expressions in p and n.

    Arguments:
        text: as it was given.
        terms: (a kind, `bytes` or `steps`, expression). Where a kind is named, kinds that are not are expected not to
            occur.
    """

    text: str
    terms: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> "Expectation":
        """Reads `KIND=EXPRESSION,…,bytes=EXPRESSION,steps=EXPRESSION`.

        An expression is made of numbers, p (the number of members), n (the bytes of the full vector, as
        in `oracles.communication`), + - * / // **, parentheses, ceil(…) and log2(…).

        Raises:
            ExpectationError: for anything else.
        """
        terms = []
        for part in text.split(","):
            name, equals, expression = (piece.strip() for piece in part.partition("="))
            if not equals or name not in (*KINDS, BYTES, STEPS):
                raise ExpectationError(
                    f"--expect-communication={text}: {part.strip()!r}: expected KIND=EXPRESSION "
                    f"with a kind of {', '.join((*KINDS, BYTES, STEPS))}"
                )
            try:
                value(expression, p=4, n=64)
            except ExpectationError as error:
                raise ExpectationError(f"--expect-communication={text}: {error}") from error
            terms.append((name, expression))
        if len({name for name, _ in terms}) != len(terms):
            raise ExpectationError(f"--expect-communication={text}: expected every kind once")
        return cls(text, tuple(terms))

    def counts(self, p: int, n: int) -> dict[str, Fraction]:
        """How many of each kind are expected; empty if none is named."""
        named = {name: value(text, p=p, n=n) for name, text in self.terms if name in KINDS}
        return {kind: named.get(kind, Fraction(0)) for kind in KINDS} if named else {}

    def bytes(self, p: int, n: int) -> Fraction | None:
        """How many bytes are expected in all, if that is said."""
        return self._value(BYTES, p, n)

    def steps(self, p: int, n: int) -> Fraction | None:
        """How many collectives may at most wait for one another, if that is said."""
        return self._value(STEPS, p, n)

    def _value(self, wanted: str, p: int, n: int) -> Fraction | None:
        return next((value(text, p=p, n=n) for name, text in self.terms if name == wanted), None)

    def __str__(self) -> str:
        return self.text


def value(expression: str, *, p: int, n: int) -> Fraction:
    """The value of an expression.

    Raises:
        ExpectationError: if it is no expression as `Expectation.parse` describes, or has no value.
    """
    try:
        return _value(_parsed(expression), {"p": Fraction(p), "n": Fraction(n)})
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        reason = "not an expression" if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise ExpectationError(
            f"{expression!r}: {reason}: expected arithmetic of p, n and numbers with + - * / // ** ceil log2"
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
            return OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand, names))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            inner = _value(argument, names)
            return Fraction(math.ceil(inner)) if name == "ceil" else Fraction(math.log2(inner))
    raise ValueError(f"{ast.unparse(node)!r} is not understood")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > LARGEST_POWER or abs(base) > 2**LARGEST_POWER:
        raise ValueError(f"{base}**{exponent} is too large")
    return Fraction(base**exponent)
