"""The part of a script that is specific to overlap: the traced program is scheduled, what is exposed compared."""

import inspect
import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from shardproof.properties.cases.data import Data
from shardproof.properties.communication.sizes import sizes_of
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.running import traced
from shardproof.properties.engines.simulate.divergence import COLLECTIVE_KINDS as KINDS
from shardproof.properties.programs.derivatives import as_floats
from shardproof.properties.programs.overlap import limit
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.report.scripts.checks import operands
from shardproof.properties.report.scripts.expectations import result_values
from shardproof.properties.report.scripts.literals import comment
from shardproof.properties.report.scripts.parts import Script
from shardproof.properties.runner.violation import LawViolation


def loads(equation: Any, shape: Any) -> Any:
    """Bytes over the busiest link of every kind: blocks go the shorter way round the ring of every axis in turn."""
    kind, params = KINDS[equation.primitive.name], equation.params
    names = params.get("axes", params.get("axis_name"))
    names = [names] if isinstance(names, str) else names
    axes = [a for a in shape if a in names]
    size = sum(v.aval.size * v.aval.dtype.itemsize for v in equation.invars)
    p = math.prod(shape[a] for a in axes)
    if kind != "permute":
        passed = {"all_reduce": Fraction(2 * (p - 1), p), "all_gather": p - 1, "broadcast": min(p - 1, 1)}
        passed |= {"all_to_all": Fraction(p, 4) if p > 2 else Fraction(p - 1, p)}
        links = [(a, way) for a in axes for way in (1, -1)[: 1 + (shape[a] > 2)] if shape[a] > 1]
        return {link: Fraction(passed.get(kind, Fraction(p - 1, p)) * size, len(links)) for link in links}
    crossed: Any = Counter()
    places = list(itertools.product(*(range(shape[a]) for a in axes)))
    for source, target in params["perm"]:
        at = list(places[source])
        for i, a in enumerate(axes):
            ahead = (places[target][i] - at[i]) % shape[a]
            either = 2 * ahead == shape[a] > 2 and at[i] % 2  # every other goes either way
            way = -1 if either or 2 * ahead > shape[a] else 1
            while at[i] != places[target][i]:
                crossed[a, way, tuple(at)] += size
                at[i] = (at[i] + way) % shape[a]
    most: Any = {}
    for (a, way, _), total in crossed.items():
        most[a, way] = max(total, most.get((a, way), 0))
    return most


def steps(jaxpr: Any, known: Any, found: Any, mapped: Any = False) -> None:
    """Adds products, collectives and loops to `found`, each with the places of those that it needs.

    A loop is a barrier, and so is a `shard_map` that is `mapped` in no other.
    """

    def needed(values: Any) -> Any:
        return frozenset().union(*(known.get(v, ()) for v in values if not hasattr(v, "val")))

    for equation in jaxpr.eqns:
        name, after = equation.primitive.name, needed(equation.invars)
        values = [
            v for value in equation.params.values() for v in (value if isinstance(value, list | tuple) else [value])
        ]
        bodies = [getattr(v, "jaxpr", v) for v in values if hasattr(v, "eqns") or hasattr(v, "jaxpr")]
        if name in ("scan", "while", "cond") or (name == "shard_map" and not mapped):
            inside: Any = [[] for _ in bodies]
            for body, into in zip(bodies, inside, strict=True):
                steps(body, {}, into, True)
            if name == "while" and any(inside):
                raise ValueError("how often a while runs cannot be told")
            longest, times = max(inside, key=len), equation.params.get("length", 1)
            if longest and times:
                found.append((longest, times, after))
                after = frozenset([len(found) - 1])
        elif len(bodies) == 1:
            given = equation.invars[len(equation.invars) - len(bodies[0].invars) :]
            inner = {own: needed([v]) for own, v in zip(bodies[0].invars, given, strict=True)}
            steps(bodies[0], inner, found, mapped)
            results = zip(equation.outvars, bodies[0].outvars, strict=True)
            known.update({v: () if hasattr(own, "val") else inner.get(own, ()) for v, own in results})
            continue
        elif name in ("dot_general", *KINDS):
            found.append((equation, 1, after))
            after = frozenset([len(found) - 1])
        known.update(dict.fromkeys(equation.outvars, after))


def flops(equation: Any) -> Any:
    """Multiplications and additions of a product."""
    ((contracted, _), _), lhs = equation.params["dimension_numbers"], equation.invars[0].aval
    return 2 * math.prod(lhs.shape[i] for i in contracted) * equation.outvars[0].aval.size


def totals(found: Any, shape: Any) -> Any:
    """Bytes on every link, and the products, loops as often as they run."""
    result: Any = Counter()
    for what, times, _ in found:
        if isinstance(what, list):
            own = totals(what, shape)
        else:
            own = {"flops": flops(what)} if what.primitive.name == "dot_general" else loads(what, shape)
        result.update({name: times * count for name, count in own.items()})
    return result


def schedule(found: Any, shape: Any, machine: Any) -> Any:
    """When all is done, for how long products are computed, and for how long something is sent."""
    done: Any = {}
    free: Any = {}
    sends: Any = []
    idle, computing, sending, left = Fraction(0), Fraction(0), Fraction(0), list(range(len(found)))
    costs: Any = []
    for what, times, _ in found:
        if isinstance(what, list):
            inside = schedule(what, shape, machine)
            costs.append((None, [times * part for part in inside]))
        elif what.primitive.name == "dot_general":
            costs.append((["product"], Fraction(flops(what), machine["flops"] or 1)))
        else:
            over = {link: size for link, size in loads(what, shape).items() if link[0] in machine["axes"]}
            costs.append((list(over), machine["byte"] * max(over.values(), default=0)))

    def start(i: Any) -> Any:
        if not found[i][2] <= done.keys():
            return math.inf
        busy = free.values() if costs[i][0] is None else [free.get(one, 0) for one in costs[i][0] if costs[i][1]]
        return max([idle, *(done[j] for j in found[i][2]), *busy])

    while left:
        i = min(left, key=start)
        at, (over, cost) = start(i), costs[i]
        left.remove(i)
        if over is None:
            done[i] = idle = at + cost[0]
            computing, sending = computing + cost[1], sending + cost[2]
            continue
        done[i] = at + cost
        free.update(dict.fromkeys(over if cost else [], done[i]))
        if over == ["product"]:
            computing += cost
        elif cost:
            sends.append((at, done[i]))
    last = Fraction(0)
    for begin, end in sorted(sends):
        sending += max(end - max(begin, last), 0)
        last = max(last, end)
    return [max(done.values(), default=Fraction(0)), computing, sending]


def exposed(jaxprs: Any, shape: Any, axes: Any) -> Any:
    """The part of the time in which the last program sends that it computes nothing in.

    Sending takes time along these axes: for the first program the busiest link needs as long as p-1 of p products.
    """
    p = math.prod(shape[a] for a in axes)
    programs: Any = []
    for jaxpr in jaxprs:
        programs.append([])
        steps(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)[0], {}, programs[-1])
    machine: Any = {}
    for program in programs[::-1]:
        own = totals(program, shape)
        busiest = max([count for name, count in own.items() if name[0] in axes], default=0)
        if busiest or not machine:
            machine = {"axes": axes, "flops": own["flops"], "byte": Fraction(p - 1, p) / (busiest or 1)}
    total, computing, sending = schedule(programs[-1], shape, machine)
    return (total - computing) / sending if sending else 0


OWN = (loads, steps, flops, totals, schedule, exposed)


def body(script: Script, data: Data) -> list[str]:
    """The program is traced and scheduled, and what is exposed is compared with what is claimed.

    Raises:
        ValueError: if the script would find nothing wrong, or the law is not about what is exposed.
    """
    case, violation = script.case, script.violation
    backward = violation.broken.of_derivative
    stated = violation.implementation.overlap
    assert stated is not None
    most = limit(stated.exposed, sizes_of(case))
    check_that_it_shows(violation, most, backward=backward)
    values = result_values(violation.implementation, case, data)
    names = ", ".join(script.names)
    reverse: list[str] = []
    if backward:
        reverse = [
            "", "",
            f"def with_gradient({names}):",
            "    y, pull = jax.vjp(program, " + names + ")",
            "    return y, pull(jax.tree.map(jnp.ones_like, y))",
            "", "",
        ]  # fmt: skip
    asked = ["program", *(["with_gradient"] if backward else [])]
    return [
        f"KINDS = {dict(KINDS)}",
        *(line for one in OWN for line in ("", "", *inspect.getsource(one).splitlines())),
        "",
        "",
        *script.local([script.lead] * len(values.right)),
        *operands(script, values.operands),
        script.shard_map([script.stacked]),
        *reverse,
        f"traced = [jax.make_jaxpr(function)({names}).jaxpr for function in ({', '.join(asked)},)]",
        comment(violation.finding),
        f"part = exposed(traced, mesh.shape, {case.axes!r})",
        f'print("all" if part == 1 else part, "of the communication is exposed: expected at most {most}")',
        f"sys.exit(0 if part <= Fraction({most.numerator}, {most.denominator}) else 1)",
    ]


def check_that_it_shows(violation: LawViolation, most: Fraction, *, backward: bool) -> None:
    """The script will find more exposed than is claimed.

    Raises:
        ValueError: if not.
    """
    case, implementation, engine = violation.case, violation.implementation, SimulateEngine()
    program = forward(case, implementation, Seen())

    def both(mesh: Any) -> Any:
        function = program.build(mesh)

        def run(*xs: Any) -> Any:
            y, pull = jax.vjp(lambda *xs: as_floats(function(*xs)), *xs)
            return y, pull(jax.tree.map(jnp.ones_like, y))

        return run

    jaxprs = [traced(program, case, engine).jaxpr]
    if backward:
        mesh = engine.abstract_mesh(case.mesh)
        jaxprs.append(jax.make_jaxpr(both(mesh))(*program.abstract_arguments(mesh)).jaxpr)
    if exposed(jaxprs, case.mesh.shape, case.axes) <= most:
        raise ValueError("a script shows what is exposed, which is as claimed: this is about memory or ways")
