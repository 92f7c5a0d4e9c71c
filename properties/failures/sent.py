"""The part of a script that is specific to communication: the collectives of the program, listed or in their order."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from properties.data import Data
from properties.engines import XlaEngine
from properties.failures.checks import operands
from properties.failures.expectations import result_values
from properties.failures.literals import spec_text
from properties.laws.communication import WAITING, program_of

if TYPE_CHECKING:
    from properties.failures.script import Script

PATTERN = r"= (.*) ((?:all|collective|ragged)-[a-z-]+|reduce-scatter)\("
"""The type and the name of a collective, or of its start or end."""


def longest(text: str) -> int:
    """How many collectives of a lowered program follow one another, each step of a loop counted once."""
    after: dict[str, int] = {}
    found = 0
    for line in text.splitlines():
        made, *used = [*re.findall(r"%\w+", line), ""]
        if "func.func" in line:
            after = {}
        elif " = " in line:
            sends = re.search(r"collective_|all_gather|all_reduce|all_to_all|reduce_scatter", line) is not None
            after[made] = max((after.get(name, 0) for name in used), default=0) + sends
            found = max(found, after[made])
    return found


def body(script: Script, data: Data) -> list[str]:
    """The program's collectives, or how many wait for one another, are still as when the script was written."""
    case, finding = script.case, script.violation.finding
    right = result_values(case, data)
    names = ", ".join(script.names)
    run = f"jax.jit(program).lower({names})"
    if finding.startswith("gradient"):
        ones = "jax.tree.map(jax.numpy.ones_like, program(*xs))"
        run = f"jax.jit(lambda *xs: jax.vjp(program, *xs)[1]({ones})).lower({names})"
    return [
        *script.local([script.lead] * len(right.expected)),
        *operands(script, right.operands),
        script.shard_map([spec_text([(n,) for n in script.lead])]),
        *(_in_order(script, run) if WAITING in finding else _listed(script, run)),
    ]


def _listed(script: Script, run: str) -> list[str]:
    finding = script.violation.finding
    text = _text(script, compiled=True)
    return [
        f"text = {run}.compile().as_text()",
        f"# {finding}; what is in a loop runs as often as the loop",
        f'found = sorted(re.findall(r"{PATTERN}", text))',
        'print(*found, sep="\\n")',
        "known = [",
        *(f"    {each!r}," for each in sorted(re.findall(PATTERN, text))),
        "]  # as it was when this was written",
        "sys.exit(1 if found == known else 0)",
    ]


def _in_order(script: Script, run: str) -> list[str]:
    known = longest(_text(script, compiled=False))
    return [
        "",
        "",
        *inspect.getsource(longest).splitlines(),
        "",
        "",
        f"found = longest({run}.as_text())",
        f"# {script.violation.finding}",
        'print(found, "collectives follow one another")',
        f"sys.exit(1 if found >= {known} else 0)  # as many as when this was written",
    ]


def _text(script: Script, *, compiled: bool) -> str:
    """The program's text, as the script will have it; none where there are no devices for it."""
    violation, engine = script.violation, XlaEngine()
    backward = violation.finding.startswith("gradient")
    try:
        program = program_of(violation.implementation, violation.case, engine, backward=backward)
        return engine.text(program, violation.case.mesh, compiled=compiled)
    except Exception:  # too few devices, or what does not compile
        return ""
