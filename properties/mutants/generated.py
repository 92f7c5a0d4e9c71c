"""Generated planted bugs: this project's implementations, traced, with one line of the program changed.

Each is an ordinary device-local function, which both engines run and differentiate: it traces the implementation and
evaluates the jaxpr with changed results of all equations of one primitive from one line.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Jaxpr, Literal

from shardproof.impl.collectives import cast_varying, varying
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.engine import ready
from shardproof.properties.engines.simulate.errors import innermost
from shardproof.properties.engines.simulate.jaxprs import open_jaxpr, scan_counts, subjaxprs
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.gradient import cotangents, tangents_of
from shardproof.properties.mutants.axes import in_mesh_order, mesh_names, names
from shardproof.properties.mutants.changes import COLLECTIVES, KINDS, MESH_ORDER, Kind
from shardproof.properties.mutants.hunt import STRUCTURES, find
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import precision_of

TRACED = 6
"""The number of cases that are drawn to find the lines of an implementation."""

INLINED = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
"""Calls in whose place their jaxpr is evaluated."""

JITTED = ("jit", "pjit")
"""Calls whose jaxprs are cached with the place of their first call, so that the line is that of this call."""

Rewrite = Callable[[Any, list[Any], str], list[Any] | None]
"""From an equation, its operands and its place to other results; None: its own results."""


def place_of(equation: Any) -> str:
    """`impl/FILE:LINE:COLUMN` of an equation's line; empty if it is not in `impl`."""
    path, _, rest = innermost(equation).rpartition("/impl/")
    return f"impl/{rest.partition(' ')[0]}" if path else ""


def evaluate(
    jaxpr: Jaxpr, constants: Sequence[Any], operands: Sequence[Any], rewrite: Rewrite, place: str = ""
) -> list[Any]:
    """The results of a jaxpr with all equations rewritten, those in loops, branches and calls included.

    With a `place`, all of them are there.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        read_operands = [read(v) for v in equation.invars]
        here = place or place_of(equation)
        results = rewrite(equation, read_operands, here)
        if results is None:
            results = bind(equation, read_operands, rewrite, here)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def bind(equation: Any, operands: list[Any], rewrite: Rewrite, place: str) -> list[Any]:
    """The results of an equation, with operands cast to vary along the same axes, since a change may undo that."""
    name, params = equation.primitive.name, equation.params
    if name in INLINED or name in ("custom_jvp_call", "custom_vjp_call"):
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if name in INLINED or changes_inside(inner, rewrite):
            return evaluate(*open_jaxpr(inner), operands, rewrite, place if name in JITTED else "")
    if name == "scan":
        return bind_scan(equation, operands, rewrite)
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


def evaluate_flat(jaxpr: Any, rewrite: Rewrite, *operands: Any) -> list[Any]:
    """The results of a closed jaxpr."""
    return evaluate(*open_jaxpr(jaxpr), operands, rewrite)


def changes_inside(jaxpr: Any, rewrite: Rewrite, place: str = "") -> bool:
    """True if a jaxpr has a changed equation, so that its custom derivative does not apply."""
    changes = getattr(rewrite, "changes", lambda equation, place: True)
    inner, _ = open_jaxpr(jaxpr)
    for equation in inner.eqns:
        here = place or place_of(equation)
        within = here if equation.primitive.name in JITTED else ""
        if changes(equation, here) or any(changes_inside(sub, rewrite, within) for sub in subjaxprs(equation)):
            return True
    return False


def same_axes(operands: Sequence[Any]) -> list[Any]:
    """Operands cast to vary along the axes of all."""
    axes = frozenset().union(*(varying(x) for x in operands)) if operands else frozenset()
    return [cast_varying(jnp.asarray(x), axes) if axes else x for x in operands]


def settled(body: Callable[[list[Any]], list[Any]], carried: list[Any]) -> list[Any]:
    """The initial carry of a loop, cast to vary along all axes along which its body makes it vary."""
    for _ in range(len(carried) + 1):
        types = [frozenset(getattr(x, "vma", ())) for x in jax.make_jaxpr(body)(carried).out_avals]
        cast = [cast_varying(jnp.asarray(x), axes) for x, axes in zip(carried, types, strict=True)]
        if all(varying(x) == varying(y) for x, y in zip(cast, carried, strict=True)):
            return cast
        carried = cast
    return carried


def bind_scan(equation: Any, operands: list[Any], rewrite: Rewrite) -> list[Any]:
    """A scan with a rewritten body."""
    params, (first, carries) = equation.params, scan_counts(equation)
    constants, carried, rest = operands[:first], operands[first : first + carries], operands[first + carries :]

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = evaluate_flat(params["jaxpr"], rewrite, *constants, *carry, *x)
        return [cast_varying(y, varying(c)) for y, c in zip(results[:carries], carry, strict=True)], results[carries:]

    if params["length"]:
        carried = settled(lambda carry: body(carry, [x[0] for x in rest])[0], carried)
    carried, stacked = lax.scan(body, carried, rest, params["length"], params["reverse"], params["unroll"])
    return [*carried, *stacked]


def bind_while(params: dict[str, Any], operands: list[Any], rewrite: Rewrite) -> list[Any]:
    """A loop with rewritten condition and body."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def body(carry: Iterable[Any]) -> list[Any]:
        results = evaluate_flat(params["body_jaxpr"], rewrite, *operands[first:second], *carry)
        return [cast_varying(y, varying(c)) for y, c in zip(results, carry, strict=True)]

    def condition(carry: Iterable[Any]) -> Any:
        return evaluate_flat(params["cond_jaxpr"], rewrite, *operands[:first], *carry)[0]

    return list(lax.while_loop(condition, body, settled(body, operands[second:])))


def rewritten(function: Callable[..., Any], rewrite: Rewrite) -> Callable[..., Any]:
    """A function of blocks with rewritten equations."""

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
    """The rewrite of one kind on one line; counts its changes."""

    kind: Kind
    place: str
    primitive: str
    times: int = 0

    def changes(self, equation: Any, place: str) -> bool:
        """True if an equation is of the primitive and line that are changed."""
        return equation.primitive.name == self.primitive and place == self.place

    def __call__(self, equation: Any, operands: list[Any], place: str) -> list[Any] | None:
        """Other results, or None."""
        if not self.changes(equation, place):
            return None
        results = self.kind.change(equation, operands)
        self.times += results is not None
        return results


def reordered(function: Callable[..., Any], changing: Changing) -> Callable[..., Any]:
    """A function with its axis tuples sorted into mesh order; `changing` counts those in another order."""

    def sort(value: Any) -> Any:
        axes = names(value) if isinstance(value, str | tuple) else ()
        if not axes or not set(axes) <= {*mesh_names()}:
            return value
        changing.times += in_mesh_order(axes) != axes
        return in_mesh_order(axes)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(sort, args), **{name: sort(value) for name, value in kwargs.items()})

    return call


@dataclass(frozen=True)
class Generated:
    """An implementation of this project, and one change of one of its lines.

    Arguments:
        implementation: the right one.
        kind: the change.
        primitive: that of the changed equations.
        place: their line.
    """

    implementation: Implementation
    kind: Kind
    primitive: str
    place: str

    @property
    def sentence(self) -> str:
        """The change in words, with its primitive and line."""
        said = self.kind.sentence.format(primitive=self.primitive)
        return f"{said}, at {self.place}." if self.place else f"{said}."

    def __str__(self) -> str:
        return f"{self.implementation}: {self.sentence}"

    def mutated(self) -> tuple[Implementation, Changing]:
        """The wrong implementation, without claims about its communication, and the count of its changes."""
        changing = Changing(self.kind, self.place, self.primitive)
        function = self.implementation.function
        function = reordered(function, changing) if self.kind is MESH_ORDER else rewritten(function, changing)
        wrong = replace(self.implementation, function=function, communication=None, overlap=None, invariant=None)
        return wrong, changing

    def hunt(self, *, seed: int) -> str:
        """`caught`, `missed` or `survived`, in as many cases as a run of the suite draws for the implementation.

        It survived if its results (or gradients) are bit for bit those of the implementation in all of these cases.
        """
        wrong, changing = self.mutated()
        cases: dict[Case, None] = {}

        def remember(law: Law, case: Case) -> str:
            cases[case] = None
            return ""

        finding = find(LAWS[self.kind.law], wrong, STRUCTURES, seed, before=remember)
        if finding.violation is not None:
            return "caught"
        differ = changing.times > 0 and any(self.differs_on(case, wrong) for case in cases)
        return "missed" if differ else "survived"

    def differs_on(self, case: Case, wrong: Implementation) -> bool:
        """True if the change changes the results, or gradients, of a case."""
        right, changed = (results_of(self.kind.law, one, case) for one in (self.implementation, wrong))
        return any(x.tobytes() != y.tobytes() for x, y in zip(right, changed, strict=False))


def results_of(law: str, implementation: Implementation, case: Case) -> list[np.ndarray]:
    """The results of all data sets, or gradients, that a law checks; empty if the case is not supported."""
    try:
        with precision_of(case):
            kind = "value" if law == "value" else "reverse gradient"
            program = ready(kind, implementation, case, SimulateEngine())
            sets = [operands(case, data) for data in case.data]
            if law != "value":
                sets = [
                    [*operands(case, data), *tangents_of(case, data), *cotangents(case, program, data)]
                    for data in case.data
                ]
            return [x for results in map(program.prepared, sets) for x in results]
    except Exception:
        return []


def changes_of(implementation: Implementation, kinds: Sequence[Kind], *, seed: int = 0) -> set[tuple[str, str, Kind]]:
    """The lines of an implementation in a few cases, their primitives, and the changes that apply there.

    Raises:
        ValueError: if it is not right when its jaxpr is evaluated as it is.
    """
    seen: set[tuple[str, str, Kind]] = set()

    def record(equation: Any, operands: list[Any], place: str) -> None:
        name = equation.primitive.name
        if place:
            seen.update((place, name, k) for k in kinds if name in k.primitives and k.applies(equation))

    traced = replace(implementation, function=rewritten(implementation.function, record), invariant=None)
    finding = find(LAWS["value"], traced, TRACED, seed)
    if finding.violation is not None:
        raise ValueError(f"{implementation} is another function once it is traced: {finding.violation}")
    return seen


def generate(
    implementations: Iterable[Implementation] = IMPLEMENTATIONS,
    kinds: Sequence[Kind] = (*KINDS, MESH_ORDER),
    *,
    seed: int = 0,
) -> Iterator[Generated]:
    """All changes of implementations that are functions of blocks, in the order of their lines."""
    for implementation in implementations:
        if implementation.whole:
            continue
        if MESH_ORDER in kinds:
            yield Generated(implementation, MESH_ORDER, "", "")
        for place, primitive, kind in sorted(changes_of(implementation, kinds, seed=seed), key=str):
            yield Generated(implementation, kind, primitive, place)
