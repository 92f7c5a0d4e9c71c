"""The part of a script that is specific to communication: the collectives of the compiled program, listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from properties.data import Data
from properties.engines import XlaEngine
from properties.failures.checks import operands
from properties.failures.expectations import result_values
from properties.failures.literals import spec_text
from properties.laws.communication import program_of

if TYPE_CHECKING:
    from properties.failures.script import Script

PATTERN = r"= (.*) ((?:all|collective|ragged)-[a-z-]+|reduce-scatter)\("
"""The type and the name of a collective, or of its start or end."""


def body(script: Script, data: Data) -> list[str]:
    """The compiled program's collectives are printed; they are still those of when the script was written."""
    case, finding = script.case, script.violation.finding
    right = result_values(case, data)
    names = ", ".join(script.names)
    run = f"jax.jit(program).lower({names})"
    if finding.startswith("gradient"):
        ones = "jax.tree.map(jax.numpy.ones_like, program(*xs))"
        run = f"jax.jit(lambda *xs: jax.vjp(program, *xs)[1]({ones})).lower({names})"
    known = _collectives(script)
    return [
        *script.local([script.lead] * len(right.expected)),
        *operands(script, right.operands),
        script.shard_map([spec_text([(n,) for n in script.lead])]),
        f"text = {run}.compile().as_text()",
        f"# {finding}; what is in a loop runs as often as the loop",
        f'found = sorted(re.findall(r"{PATTERN}", text))',
        'print(*found, sep="\\n")',
        "known = [",
        *(f"    {each!r}," for each in known),
        "]  # as it was when this was written",
        "sys.exit(1 if found == known else 0)",
    ]


def _collectives(script: Script) -> list[tuple[str, str]]:
    """The collectives of the compiled program, as the script will find them; none where there are no devices for it."""
    violation, engine = script.violation, XlaEngine()
    backward = violation.finding.startswith("gradient")
    try:
        program = program_of(violation.implementation, violation.case, engine, backward=backward)
        return sorted(re.findall(PATTERN, engine.text(program, violation.case.mesh)))
    except Exception:  # too few devices, or what does not compile
        return []
