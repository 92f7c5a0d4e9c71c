"""The script of a failure: plain JAX for values and gradients, and for other laws a few lines that call shardproof."""

import dataclasses
from typing import Any

import jax

from shardproof.properties.contracts.described import Array
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.program import precision_of
from shardproof.properties.report.scripts.source import (
    Source,
    docstring,
    folders_of,
    imported,
    options,
    source_of,
    tree_text,
)
from shardproof.properties.report.scripts.standalone import Script, can_stand_alone, loaded
from shardproof.properties.runner.named import held_by_a_module, is_built_in
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.violation import LawViolation

NEEDS = (
    "Needs shardproof, the implementation, and the file of the failure beside this one. Exits with 1 while the bug "
    "shows, with 0 once it is fixed, and with 2 if it cannot be run."
)
IMPORTS = """import sys
import traceback
from pathlib import Path

import jax
"""
ALSO = "from shardproof.properties.report.failures.replay import recheck"


def script(violation: LawViolation) -> str:
    """The source of the script that shows a violation again."""
    with precision_of(violation.case):
        return Script(violation).text() if can_stand_alone(violation) else _calling_shardproof(violation)


def _calling_shardproof(violation: LawViolation) -> str:
    """The script that has shardproof check the recorded case."""
    implementation, sent = violation.implementation, violation.implementation.communication
    source, said = Source("", []), ""
    if implementation.program is not None:
        source = _program(implementation.program)
    elif not is_built_in(implementation):
        source = source_of(implementation.function)
        said = "".join(
            f", {name}={value!r}"
            for name, value in (
                ("claims", ",".join(sorted(implementation.features))),
                ("communication", str(sent) if isinstance(sent, Expectation) else ""),
                ("overlap", str(implementation.overlap or "")),
            )
            if value
        )
    given = f", {source.name}{said}" if source.name else ""
    own = Source("", [], folders_of([ALSO]))
    lines = [
        *docstring([violation.headline, "", f"case: {violation.case}", *violation.stated, "", NEEDS]),
        "", *IMPORTS.split("\n"), *own.paths, *source.paths,
        *loaded([ALSO, *source.lines], source.missing), "",
        'if __name__ == "__main__":',
        *(f"    {line}" for line in options(violation.case.mesh.devices, in_doubles=False)),
        f'    sys.exit(recheck(Path(__file__).with_suffix(".json"){given}))',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _program(program: Program) -> Source:
    """A program by the name that a module has for it, or written out with its functions.

    Raises:
        ValueError: if it has an argument that cannot be written.
    """
    held = held_by_a_module(program)
    if held is not None:
        return imported(held, "PROGRAM")
    lines, given = ["from shardproof import Array, Program"], []
    folders: list[str] = []
    missing: list[str] = []
    for one in dataclasses.fields(program):
        value = getattr(program, one.name)
        if one.name == "_" or (one.default is not dataclasses.MISSING and value == one.default):
            continue
        if callable(value):
            source = source_of(value, one.name)
            lines, folders, missing = [*lines, *source.lines], [*folders, *source.folders], [*missing, *source.missing]
            text = source.name
        else:
            text = _text(value)
        given.append(text if one.name in ("function", "reference") else f"{one.name}={text}")
    lines.append(f"PROGRAM = Program({', '.join(given)})")
    return Source("PROGRAM", lines, tuple(dict.fromkeys(folders)), missing)


def _text(value: Any) -> str:
    """What a program states, as an expression.

    Raises:
        ValueError: if it cannot be written.
    """
    if isinstance(value, dict | list | tuple):
        return tree_text(jax.tree.map(_text, value))
    if isinstance(value, Array):
        said = {"upto" if value.last else "below": value.below, "also": value.also, "only": dict(value.only)}
        given = [repr(" ".join("@".join([d.name, *d.roles]) for d in value.dimensions)), repr(value.dtype)]
        given += [f"{name}={stated!r}" for name, stated in said.items() if stated]
        return f"Array({', '.join([*given, *(['gradient=False'] if value.floating and not value.gradient else [])])})"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, frozenset | set | range):
        return _text(tuple(value))
    raise ValueError(f"{value!r} of a Program cannot be written into a script: give the Program a name in a module")
