"""The data that the page shows of a failure besides its text.

The steps of its program are the block of every device after each equation, and the right one where it is known: where
one change of the program makes its results right (see `repairs`), and where rounding is the mistake, as then double
precision is right. Elsewhere the result alone is compared.
"""

import contextlib
import itertools
import linecache
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.communication import pictures
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines.engine import all_blocks, ready
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.collectives import axes_of
from shardproof.properties.engines.simulate.env import Env, Rule
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.laws.gradient import cotangents, tangents_of
from shardproof.properties.laws.law import PROPERTIES, LawViolation, first_line
from shardproof.properties.precision.arithmetic import calls
from shardproof.properties.precision.formats import Numbers
from shardproof.properties.precision.runs import INTERPRETER
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.violation import DEATHS, ROUNDINGS
from shardproof.properties.report.diagnosis.changes import Change, Changed, run_in_doubles
from shardproof.properties.report.diagnosis.repairs import TOLERANCE, is_close, kind_of, repair_of
from shardproof.properties.report.failures.files import drawing, failing_case, find_files
from shardproof.properties.report.failures.text import find_diagnosis, first_wrong
from shardproof.properties.runner.neighbours import neighbours_of

MOST_STEPS, MOST_DEVICES, MOST_ELEMENTS = 80, 64, 16
"""The most steps and devices whose blocks are written down, and the most elements of a block."""

Step = dict[str, Any]
"""A step as JSON-able data."""


def examine(violation: LawViolation) -> Sequence[str]:
    """Finds the evidence of a violation, in the process in which it went wrong, and returns the diagnosis."""
    case, diagnosis = failing_case(violation), find_diagnosis(violation)
    parts: dict[str, Callable[[], Any]] = {
        "neighbours": lambda: neighbours_of(violation, case),
        "program": lambda: steps_of(violation, case),
        "sent": lambda: _sent(violation),
        "lanes": lambda: drawing(violation),
    }
    found: dict[str, Any] = {"missing": []}
    for name, find in parts.items():
        try:
            found[name] = find()
        except Exception as error:  # the function may raise anything on other cases
            found["missing"].append(f"{name}: {first_line(error)}")
    violation.evidence = found
    return diagnosis


def evidence(violation: LawViolation) -> dict[str, Any]:
    """The data of a failure: its evidence, unless the function ends the process, the mesh, and the script."""
    if violation.evidence is None and violation.kind not in DEATHS and violation.implementation.given is None:
        examine(violation)
    mesh = violation.case.mesh
    places = itertools.islice(np.ndindex(*mesh.sizes), MOST_DEVICES)
    found: dict[str, Any] = {
        "finding": violation.finding,
        "case": str(violation.case),
        "sentence": [*(violation.diagnosis or ())],
        "first": [line.strip() for line in first_wrong(violation)],
        "mesh": {"axes": [*mesh.axis_names], "sizes": [*mesh.sizes], "devices": [*mesh.devices[:MOST_DEVICES]]},
        "places": [[*map(int, place)] for place in places],
        **(violation.evidence or {}),
    }
    files = find_files(violation)
    with contextlib.suppress(OSError):
        found |= {"commands": files.commands, "source": files.script.read_text(encoding="utf-8")} if files else {}
    return found


def _sent(violation: LawViolation) -> str:
    """The picture of who sends what to whom in the failing case; empty on large meshes, or where nothing is sent."""
    case = violation.case
    if case.mesh.size > 16:
        return ""
    steps = pictures.steps(forward(case, violation.implementation, Seen()), case.mesh)
    title = f"{violation.implementation} on mesh {case.mesh}"
    return str(pictures.picture(title, steps, case.mesh, case.axes).as_svg()) if steps else ""


@dataclass(frozen=True)
class Watched(Changed):
    """Doubles that record the results of each equation, except those that run programs of their own.

    They are by the equation and how often it ran before, each with where it ran.
    """

    seen: dict[tuple[Any, int], tuple[Env, list[Numbers]]] = field(default_factory=dict, compare=False)
    turns: Counter[int] = field(default_factory=Counter, compare=False)

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation."""
        results = super().run(env, rule, equation, operands)
        if not calls(equation) and env.lead == len(env.mesh.sizes):
            self.seen[equation, self.turns[id(equation)]] = env, results
            self.turns[id(equation)] += 1
        return results


def steps_of(violation: LawViolation, case: Case) -> dict[str, Any]:
    """The steps of the program that is wrong, the last one its result, and what the expected values of a step are."""
    broken, difference, data = violation.broken, violation.difference, case.data[0]
    kind = kind_of(violation)
    made = ready(kind, violation.implementation, case, INTERPRETER)
    assert isinstance(made.prepared, Simulated)
    program, arrays = made.prepared, operands(case, data)
    given = [*arrays, *tangents_of(case, data), *cotangents(case, made, data)] if broken.of_derivative else arrays
    came, wanted, expected_by, leeway = Watched(), None, "", TOLERANCE
    results = run_in_doubles(program, *given, arithmetic=came)
    if repair := repair_of(violation):
        text, places, change = repair
        expected_by = f"with one change: {text}"
        wanted = Watched(change=change.at(program, case, places))
        run_in_doubles(program, *given, arithmetic=wanted)
    elif kind == "value" and difference is not None and difference.comparable and difference.of == "result":
        dtype = difference.expected.dtype
        leeway = max(TOLERANCE, ROUNDINGS * unit_roundoff(dtype)) if is_float(dtype) else TOLERANCE
        if is_close(all_blocks(case, results[difference.leaf]), difference.expected, leeway):  # rounding is the mistake
            expected_by, wanted = "in double precision; what it has is rounded to its dtype", came
            came = Watched(change=Change(frozenset(map(id, program.equations)), then="rounded"))
            run_in_doubles(program, *given, arithmetic=came)
    seen = {} if wanted is None else wanted.seen
    names = [f"leaf {i}" for i in range(len(arrays))] if case.tree else case.contract.call.names(case)
    steps = [_step(f"operand {n}", case.mesh, case.blocks(i, arrays[i])) for i, n in enumerate(names)]
    for (equation, turn), (env, results) in came.seen.items():
        where = re.match(r"(.*?):(\d+)", location(equation))
        if where and PROPERTIES / "programs" in Path(where[1]).parents:  # this suite's code around the function
            continue
        expected = seen.get((equation, turn), (env, [None] * len(results)))[1]
        for variable, x, y in zip(equation.outvars, results, expected, strict=True):
            step = _step(_in_words(equation), case.mesh, x, y, env=env, dtype=variable.aval.dtype, leeway=leeway)
            if where:  # the line of the source, and its place without most folders
                at = f"{'/'.join(Path(where[1]).parts[-2:])}:{where[2]}"
                step |= {"at": at, "line": linecache.getline(where[1], int(where[2])).strip()}
            steps.append(step)
    if difference is not None and difference.comparable:
        bad = np.asarray(difference.wrong.reshape(case.mesh.size, -1).any(axis=1))
        last = _step(difference.what, case.mesh, difference.actual, difference.expected)
        steps.append(last | {"wrong": np.flatnonzero(bad[:MOST_DEVICES]).tolist()})
    first = next((i for i, step in enumerate(steps) if step.get("wrong")), len(steps) - 1)
    start = max(0, min(first - MOST_STEPS // 2, len(steps) - MOST_STEPS))
    shown = [*steps[start : start + MOST_STEPS - 1], steps[-1]] if len(steps) > MOST_STEPS else steps
    return {"steps": shown, "expected": expected_by, "left_out": len(steps) - len(shown)}


def _in_words(equation: Any) -> str:
    """The operation of an equation: `psum over dp`."""
    over = ", ".join(axes_of(equation))
    name = str(equation.primitive.name).removesuffix("_invariant")
    return f"{name} over {over}" if over else name


def _step(
    does: str,
    mesh: MeshCase,
    value: np.ndarray,
    expected: np.ndarray | None = None,
    *,
    env: Env | None = None,
    dtype: Any = None,
    leeway: float = TOLERANCE,
) -> Step:
    """The blocks of every device, as texts, and the devices on which they are not the expected ones."""
    blocks = _on_all(mesh, value, env)
    there = np.ones(len(blocks), bool) if env is None or env.active is None else _on_all(mesh, env.active, env)
    texts = [_text(x) if here else "in another branch" for x, here in zip(blocks, there, strict=True)]
    kind = f"{value.dtype if dtype is None else dtype}[{','.join(map(str, blocks.shape[1:]))}]"
    step: Step = {"does": does, "type": kind, "blocks": texts}
    if expected is not None:
        right = _on_all(mesh, expected, env)
        pairs = enumerate(zip(blocks, right, strict=True))
        wrong = [i for i, (x, y) in pairs if there[i] and not is_close(x, y, leeway)]
        step |= {"expected": [*map(_text, right)], "wrong": wrong}
    return step


def _on_all(mesh: MeshCase, value: np.ndarray, env: Env | None) -> np.ndarray:
    """A value as `[devices, *block]`; outside of any `shard_map` the whole array alone."""
    manual, lead = (mesh.axis_names, mesh.sizes) if env is None else (env.mesh.axis_names, env.mesh.sizes)
    block = value.shape[len(lead) :]
    if not lead:
        return value[None]
    missing = tuple(i for i, name in enumerate(mesh.axis_names) if name not in manual)
    spread = np.expand_dims(np.broadcast_to(value, (*lead, *block)), missing)
    return np.broadcast_to(spread, (*mesh.sizes, *block)).reshape(mesh.size, *block)[:MOST_DEVICES]


def _text(block: np.ndarray) -> str:
    shown = block.astype(wide(block.dtype)) if is_float(block.dtype) else block
    return np.array2string(shown, precision=4, threshold=MOST_ELEMENTS, edgeitems=2, max_line_width=60)
