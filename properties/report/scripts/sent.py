"""The part of a script that is specific to communication: what is sent, counted and compared with what is right."""

import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from shardproof.oracles.communication import KINDS as ALL_KINDS
from shardproof.oracles.dtypes import NARROW
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.communication.bounds import NOTHING, needed, nothing_must_move
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.running import traced
from shardproof.properties.engines.simulate.divergence import COLLECTIVE_KINDS as KINDS
from shardproof.properties.laws.communication import communication_of, has_half_bytes, stated_by
from shardproof.properties.programs.derivatives import as_floats
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.report.scripts.checks import operands
from shardproof.properties.report.scripts.expectations import result_values
from shardproof.properties.report.scripts.literals import comment
from shardproof.properties.report.scripts.parts import Script
from shardproof.properties.runner.violation import LawViolation

Number = int | float | Fraction
Limits = dict[str, tuple[Number, Number]]
"""The least and the most that is right, by what is counted."""


def sent(jaxpr: Any, shape: Any, begun: Any = ()) -> Any:
    """The collectives of a program by kind, participants and bytes, and how many follow one another for each result."""
    found: Any = Counter()
    known: Any = dict(zip(jaxpr.invars, begun, strict=False))
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        start = [0 if hasattr(v, "val") else known.get(v, 0) for v in equation.invars]
        after = [max(start, default=0)] * len(equation.outvars)
        axes = params.get("axes", params.get("axis_name", ()))
        axes = [a for a in ([axes] if isinstance(axes, str) else axes or ()) if isinstance(a, str)]
        values = [v for value in params.values() for v in (value if isinstance(value, list | tuple) else [value])]
        bodies = [getattr(v, "jaxpr", v) for v in values if hasattr(v, "eqns")]
        if name in KINDS and axes:
            groups = params.get("axis_index_groups")
            participants = max(map(len, groups)) if groups else math.prod(shape[a] for a in axes)
            avals = [v.aval for v in equation.invars[: len(equation.outvars)]]
            bits = [NARROW.get(str(a.dtype), 8 * a.dtype.itemsize) for a in avals]
            size = sum(math.ceil(math.prod(a.shape) * b / 8) for a, b in zip(avals, bits, strict=True))
            found[KINDS[name], participants, size] += 1
            after = [n + 1 for n in after]
        elif name == "scan":
            inside, chains = sent(bodies[0], shape)
            found.update({what: count * params["length"] for what, count in inside.items()})
            after = [n + params["length"] * max(chains, default=0) for n in after]
        elif len(bodies) == 1 and len(bodies[0].invars) == len(start):
            inside, after = sent(bodies[0], shape, start)
            found.update(inside)
        elif bodies:
            parts = [sent(body, shape) for body in bodies]
            if any(inside != parts[0][0] or (inside and name == "while") for inside, _ in parts):
                raise ValueError(f"how often the collectives of a {name} run cannot be told")
            found.update(parts[0][0])
            after = [n + max(max(chains, default=0) for _, chains in parts) for n in after]
        known.update(zip(equation.outvars, after, strict=True))
    return found, [0 if hasattr(v, "val") else known.get(v, 0) for v in jaxpr.outvars]


def totals(closed: Any, shape: Any) -> Any:
    """What a traced program sends, less what nothing reads: counts, bytes, and the longest chain (`steps`)."""
    outputs = [True] * len(closed.jaxpr.outvars)
    found, chains = sent(partial_eval.dce_jaxpr(closed.jaxpr, outputs, True)[0], shape)
    result: Any = Counter({"steps": max(chains, default=0)})
    for (kind, p, size), count in found.items():
        shares = {"permute": 1, "broadcast": 1, "all_gather": p - 1, "all_reduce": 2 * Fraction(p - 1, p)}
        received = shares.get(kind, Fraction(p - 1, p)) * size
        for what, number in (("count", 1), ("bytes", size)):
            result[f"{kind} {what}"] += count * number
            result[what] += count * number
        result["bytes received"] += count * received
    return result


def body(script: Script, data: Data) -> list[str]:
    """The program is traced, and what it sends is compared with what is right, which is known now.

    Raises:
        ValueError: if what the script would count is not what the law has counted, or would pass for right.
    """
    case, violation = script.case, script.violation
    backward = violation.broken.of_derivative
    limits = right(violation, backward=backward)
    check_that_it_shows(violation, limits, backward=backward)
    values = result_values(violation.implementation, case, data)
    names = ", ".join(script.names)
    traced_text = "jax.make_jaxpr(program)"
    reverse: list[str] = []
    if backward:
        traced_text = "jax.make_jaxpr(gradient)"
        reverse = [
            "", "",
            f"def gradient({names}):",
            "    y, pull = jax.vjp(program, " + names + ")",
            "    return pull(jax.tree.map(jnp.ones_like, y))",
            "", "",
        ]  # fmt: skip
    return [
        "KINDS = {",
        *(f'    "{primitive}": "{kind}",' for primitive, kind in KINDS.items()),
        "}",
        f"NARROW = {NARROW}",
        "",
        "",
        *inspect.getsource(sent).splitlines(),
        "",
        "",
        *inspect.getsource(totals).splitlines(),
        "",
        "",
        *script.local([script.lead] * len(values.right)),
        *operands(script, values.operands),
        script.shard_map([script.stacked]),
        *reverse,
        f"found = totals({traced_text}({names}), mesh.shape)",
        comment(violation.finding),
        f"right = {_text(limits)}  # the least and the most",
        "for name, (least, most) in right.items():",
        '    print(f"{name}: {found[name]}, expected {least} to {most}")',
        "sys.exit(0 if all(least <= found[name] <= most for name, (least, most) in right.items()) else 1)",
    ]


def right(violation: LawViolation, *, backward: bool) -> Limits:
    """What the bound, the formula and the expectation of a function allow in a case."""
    case, implementation = violation.case, violation.implementation
    limits: Limits = {}
    bound = needed(case)
    if bound != NOTHING and not backward:
        limits["bytes received"] = (bound.bytes, math.inf)
    stated = stated_by(implementation, case, backward=backward)
    if stated is not None:
        less = nothing_must_move(case) and not getattr(implementation.communication, "exactly", False)
        size = sum(stated.sizes.values()) if stated.bytes is None and stated.sizes else stated.bytes
        _allow(limits, case, stated.counts, size, stated.steps, less=less)
    return limits


def _allow(
    limits: Limits,
    case: Case,
    counts: Mapping[str, Number],
    size: Number | None,
    steps: Number | None,
    *,
    less: bool,
) -> None:
    """Narrows the limits to these counts, bytes in all and steps, of which there may be `less`, as the law does."""
    filled = sum(counts.values()) if has_half_bytes(case) else 0
    empty = all(0 in operand.block for operand in case.operands)  # what moves nothing may be sent at will
    allowed: Limits = {}
    if counts and not empty:
        numbers = {f"{kind} count": number for kind, number in counts.items() if number}
        for name, number in {**numbers, "count": sum(counts.values())}.items():
            allowed[name] = (0 if less else number, number)
    if size is not None:
        allowed["bytes"] = (0 if less or empty else size - filled, size + filled)
    if steps is not None:
        allowed["steps"] = (0, steps)
    for name, (least, most) in allowed.items():
        known = limits.get(name, (0, math.inf))
        limits[name] = (max(least, known[0]), min(most, known[1]))


def check_that_it_shows(violation: LawViolation, limits: Limits, *, backward: bool) -> None:
    """What the script will count is what the law has counted, and is wrong.

    Raises:
        ValueError: if not.
    """
    case, implementation, engine = violation.case, violation.implementation, SimulateEngine()
    program = forward(case, implementation, Seen())

    def gradient(mesh: Any) -> Any:
        function = program.build(mesh)

        def reverse(*xs: Any) -> Any:
            y, pull = jax.vjp(lambda *xs: as_floats(function(*xs)), *xs)
            return pull(jax.tree.map(jnp.ones_like, y))

        return reverse

    whole = dataclasses.replace(program, build=gradient) if backward else program
    found = totals(traced(whole, case, engine), case.mesh.shape)
    cost = communication_of(implementation, case, engine, backward=backward).cost
    if cost is None or any(
        (found[f"{kind} count"], found[f"{kind} bytes"]) != (cost.count(kind), cost.bytes_in(kind))
        for kind in ALL_KINDS
    ):
        raise ValueError("what is sent cannot be told from the traced program")
    if all(least <= found[name] <= most for name, (least, most) in limits.items()):
        raise ValueError("the traced program sends what is right: the mistake is in the compiled one alone")


def _text(limits: Limits) -> str:
    """The limits as an expression."""
    pairs = (f"{name!r}: ({_number(least)}, {_number(most)})" for name, (least, most) in limits.items())
    return f"{{{', '.join(pairs)}}}"


def _number(value: Number) -> str:
    return "math.inf" if value == math.inf else str(value) if value == int(value) else repr(value)
