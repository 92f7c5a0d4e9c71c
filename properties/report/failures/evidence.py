"""The data that the page shows of a failure besides its text."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardproof.properties.communication import pictures
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.violation import DEATHS
from shardproof.properties.report.failures.files import failing_case, find_files
from shardproof.properties.report.failures.picture import drawing
from shardproof.properties.report.failures.steps import MOST_DEVICES, steps_of
from shardproof.properties.report.failures.text import find_diagnosis, first_wrong
from shardproof.properties.runner.neighbours import neighbours_of
from shardproof.properties.runner.violation import LawViolation, first_line


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
