"""Planted bugs that a machine makes: our own implementations, traced, with one line of the program changed.

Each is an ordinary device-local function again, which both engines run and differentiate: it traces the implementation
and evaluates the jaxpr, in which all equations of one primitive that come from one line do something else.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from shardproof.properties.engines.simulate.location import location

from shardproof.impl.collectives import cast_varying, varying
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.law import LAWS
from shardproof.properties.mutants.changes import COLLECTIVES, KINDS, Kind
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.runner.budgets import structures
from shardproof.properties.runner.draws import Finding
from shardproof.properties.runner.search import find_violation

STRUCTURES = 200
"""What a run in the default profile draws for a law of share 1."""

TRACED = 6
"""How many cases are drawn to see which lines an implementation has."""

INLINED = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
"""Calls in whose place their jaxpr is evaluated."""

Rewrite = Callable[[Any, list[Any]], list[Any] | None]
"""From an equation and its operands to other results; None: its own."""


def place_of(equation: Any) -> str:
    """`impl/FILE:LINE:COLUMN` of the line that an equation was traced from; empty if it is none of `impl`."""
    path, _, rest = location(equation).rpartition("/impl/")
    return f"impl/{rest.partition(' ')[0]}" if path else ""


def evaluate(jaxpr: Jaxpr, constants: Sequence[Any], operands: Sequence[Any], rewrite: Rewrite) -> list[Any]:
    """The results of a jaxpr whose equations are rewritten, those of loops, branches and calls included."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        read_operands = [read(v) for v in equation.invars]
        results = rewrite(equation, read_operands)
        if results is None:
            results = bind(equation, read_operands, rewrite)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def bind(equation: Any, operands: list[Any], rewrite: Rewrite) -> list[Any]:
    """The results of an equation; operands are cast to be varying along the same axes, which a change may undo."""
    name, params = equation.primitive.name, equation.params
    if name in INLINED or name in ("custom_jvp_call", "custom_vjp_call"):
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if name in INLINED or changes_inside(inner, rewrite):
            return evaluate(*opened(inner), operands, rewrite)
    if name == "scan":
        return bind_scan(params, operands, rewrite)
    if name == "while":
        return bind_while(params, operands, rewrite)
    if name == "cond":
        index, *rest = operands
        branches = [partial(evaluate_flat, branch, rewrite) for branch in params["branches"]]
        return list(lax.switch(index, branches, *same_axes(rest)))
    if name in ("pvary", "pcast"):
        return [cast_varying(x, params["axes"]) for x in operands]
    if name == "psum_invariant":
        operands = [cast_varying(x, params["axes"]) for x in operands]
    elif name not in COLLECTIVES:
        operands = same_axes(operands)
    results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(params))
    return list(results) if equation.primitive.multiple_results else [results]


def opened(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """A jaxpr, and its constants."""
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, ())


def evaluate_flat(jaxpr: Any, rewrite: Rewrite, *operands: Any) -> list[Any]:
    """The results of a closed jaxpr."""
    return evaluate(*opened(jaxpr), operands, rewrite)


def changes_inside(jaxpr: Any, rewrite: Rewrite) -> bool:
    """Whether a jaxpr has an equation that is changed: a derivative by hand is then one of the program as it is."""
    changes = getattr(rewrite, "changes", lambda equation: True)
    inner, _ = opened(jaxpr)
    return any(
        changes(equation) or any(changes_inside(sub, rewrite) for sub in jaxprs_in(equation)) for equation in inner.eqns
    )


def jaxprs_in(equation: Any) -> Iterator[Any]:
    """All jaxprs that are parameters of an equation."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, (Jaxpr, ClosedJaxpr)):
                yield one


def same_axes(operands: Sequence[Any]) -> list[Any]:
    """Operands that all vary along the axes that one of them varies along."""
    axes = frozenset().union(*(varying(x) for x in operands)) if operands else frozenset()
    return [cast_varying(jnp.asarray(x), axes) if axes else x for x in operands]


def settled(body: Callable[[list[Any]], list[Any]], carried: list[Any]) -> list[Any]:
    """What a loop begins with, varying along all axes that its body makes it vary along."""
    for _ in range(len(carried) + 1):
        types = [frozenset(getattr(x, "vma", ())) for x in jax.make_jaxpr(body)(carried).out_avals]
        cast = [cast_varying(jnp.asarray(x), axes) for x, axes in zip(carried, types, strict=True)]
        if all(varying(x) == varying(y) for x, y in zip(cast, carried, strict=True)):
            return cast
        carried = cast
    return carried


def bind_scan(params: dict[str, Any], operands: list[Any], rewrite: Rewrite) -> list[Any]:
    """A scan over a body that is rewritten."""
    first, carries = params["num_consts"], params["num_carry"]
    constants, carried, rest = operands[:first], operands[first : first + carries], operands[first + carries :]

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = evaluate_flat(params["jaxpr"], rewrite, *constants, *carry, *x)
        return [cast_varying(y, varying(c)) for y, c in zip(results[:carries], carry, strict=True)], results[carries:]

    if params["length"]:
        carried = settled(lambda carry: body(carry, [x[0] for x in rest])[0], carried)
    carried, stacked = lax.scan(body, carried, rest, params["length"], params["reverse"], params["unroll"])
    return [*carried, *stacked]


def bind_while(params: dict[str, Any], operands: list[Any], rewrite: Rewrite) -> list[Any]:
    """A loop whose condition and body are rewritten."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def body(carry: list[Any]) -> list[Any]:
        results = evaluate_flat(params["body_jaxpr"], rewrite, *operands[first:second], *carry)
        return [cast_varying(y, varying(c)) for y, c in zip(results, carry, strict=True)]

    def condition(carry: list[Any]) -> Any:
        return evaluate_flat(params["cond_jaxpr"], rewrite, *operands[:first], *carry)[0]

    return list(lax.while_loop(condition, body, settled(body, operands[second:])))


def rewritten(function: Callable[..., Any], rewrite: Rewrite) -> Callable[..., Any]:
    """A function of blocks whose equations are rewritten."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")]

        def flat(*operands: Array) -> Any:
            given = list(leaves)
            for i, operand in zip(arrays, operands, strict=True):
                given[i] = operand
            positional, named = jax.tree.unflatten(tree, given)
            return function(*positional, **named)

        operands = [leaves[i] for i in arrays]
        jaxpr, shape = jax.make_jaxpr(flat, return_shape=True)(*operands)
        return jax.tree.unflatten(jax.tree.structure(shape), evaluate_flat(jaxpr, rewrite, *operands))

    return call


@dataclass
class Changing:
    """A rewrite of what a kind changes on one line; it counts how often it did."""

    kind: Kind
    place: str
    primitive: str
    times: int = 0

    def changes(self, equation: Any) -> bool:
        """Whether an equation is of the primitive and line that are changed."""
        return equation.primitive.name == self.primitive and place_of(equation) == self.place

    def __call__(self, equation: Any, operands: list[Any]) -> list[Any] | None:
        """Other results, where there are any."""
        if not self.changes(equation):
            return None
        results = self.kind.change(equation, operands)
        self.times += results is not None
        return results


@dataclass(frozen=True)
class Generated:
    """An implementation of ours, and one change of one of its lines.

    Arguments:
        implementation: the right one.
        kind: how it is changed.
        primitive: what the line binds.
        place: the line.
    """

    implementation: Implementation
    kind: Kind
    primitive: str
    place: str
    law: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "law", self.kind.law)

    @property
    def sentence(self) -> str:
        """The change in words, with its primitive and line."""
        return f"{self.kind.sentence.format(primitive=self.primitive)}, at {self.place}."

    def __str__(self) -> str:
        return f"{self.implementation}: {self.sentence}"

    def mutated(self) -> tuple[Implementation, Changing]:
        """The wrong implementation, which claims nothing of what it sends, and the count of its changes."""
        changing = Changing(self.kind, self.place, self.primitive)
        function = rewritten(self.implementation.function, changing)
        wrong = replace(self.implementation, function=function, communication=None, overlap=None, invariant=None)
        return wrong, changing

    def hunt(self, *, seed: int, shrink: bool = False) -> tuple[Finding, int]:
        """What its law finds in as many structures as a user's function of the contract gets, and how often it changed.

        Arguments:
            seed: another one draws other cases.
            shrink: whether to look for the smallest case.
        """
        wrong, changing = self.mutated()
        finding = find(self.law, wrong, granted(self.law, self.implementation.contract), seed, shrink)
        return finding, changing.times


def granted(law: str, contract: str) -> int:
    """How many structures `check` draws for a user's function of a contract."""
    return structures(LAWS[law], STRUCTURES, LAWS[law].engines[0], "user", contract)


def find(law: str, implementation: Implementation, examples: int, seed: int, shrink: bool = False) -> Finding:
    """What a law finds wrong with an implementation in the first of its engines."""
    engine = engine_named(LAWS[law].engines[0])
    return find_violation(
        LAWS[law], implementation, engine, Scope(large=1024), max_examples=examples, random_seed=seed, shrink=shrink
    )


def lines_of(implementation: Implementation, *, seed: int = 0) -> Counter[tuple[str, str]]:
    """The primitives and lines of an implementation in a few cases, by how often they were bound.

    Raises:
        ValueError: if it is not right when its jaxpr is evaluated as it is.
    """
    seen: Counter[tuple[str, str]] = Counter()

    def record(equation: Any, operands: list[Any]) -> None:
        if place := place_of(equation):
            seen[equation.primitive.name, place] += 1

    traced = replace(implementation, function=rewritten(implementation.function, record), invariant=None)
    finding = find("value", traced, TRACED, seed)
    if finding.violation is not None:
        raise ValueError(f"{implementation} is another function once it is traced: {finding.violation}")
    return seen


def generate(
    implementations: Iterable[Implementation] = IMPLEMENTATIONS, kinds: Iterable[Kind] = KINDS, *, seed: int = 0
) -> Iterator[Generated]:
    """All changes of all lines of implementations that are functions of blocks, in the order of their lines."""
    kinds = tuple(kinds)
    for implementation in implementations:
        if implementation.whole:
            continue
        for primitive, place in sorted(lines_of(implementation, seed=seed), key=lambda line: line[::-1]):
            for kind in kinds:
                if primitive in kind.primitives:
                    yield Generated(implementation, kind, primitive, place)
