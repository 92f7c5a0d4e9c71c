"""What the page shows of a failure besides its text, as JSON-able data."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from shardproof.properties.communication import pictures
from shardproof.properties.report.failures.files import failing_case, written
from shardproof.properties.report.failures.neighbours import neighbours_of
from shardproof.properties.report.failures.picture import drawing
from shardproof.properties.report.failures.steps import MOST_DEVICES, steps_of
from shardproof.properties.report.failures.text import diagnosed, first_wrong
from shardproof.properties.runner.violation import LawViolation

MOST_DRAWN = 16
"""The most devices of a mesh on which it is drawn who sends what to whom."""


def evidence(violation: LawViolation) -> dict[str, Any]:
    """The case, the sentence, the mesh, the neighbours, the steps, the pictures and the script of a failure.

    What cannot be found out is left out, with its reason: the function may raise anything on other cases.
    """
    case, mesh = failing_case(violation), violation.case.mesh
    places = itertools.islice(np.ndindex(*mesh.sizes), MOST_DEVICES)
    found: dict[str, Any] = {
        "law": violation.title,
        "finding": violation.finding,
        "case": str(violation.case),
        "sentence": [*(diagnosed(violation) if violation.difference else violation.diagnosis or ())],
        "first": [line.strip() for line in first_wrong(violation)],
        "mesh": {"axes": [*mesh.axis_names], "sizes": [*mesh.sizes], "devices": [*mesh.devices[:MOST_DEVICES]]},
        "places": [[*map(int, place)] for place in places],
        "missing": [],
    }
    parts: dict[str, Callable[[], Any]] = {
        "neighbours": lambda: neighbours_of(violation, case),
        "program": lambda: steps_of(violation, case),
        "sent": lambda: _sent(violation),
        "lanes": lambda: drawing(violation),
    }
    for name, find in parts.items():
        try:
            found[name] = find()
        except Exception as error:
            found["missing"].append(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    files = written(violation)
    with contextlib.suppress(OSError):
        found |= {"commands": files.commands, "source": files.script.read_text(encoding="utf-8")} if files else {}
    return found


def _sent(violation: LawViolation) -> str:
    """The picture of who sends what to whom in the failing case; empty where nothing is sent."""
    case = violation.case
    steps = pictures.steps(violation.implementation, case) if case.mesh.size <= MOST_DRAWN else []
    title = f"{violation.implementation} on mesh {case.mesh}"
    return str(pictures.picture(title, steps, case.mesh, case.axes).as_svg()) if steps else ""
