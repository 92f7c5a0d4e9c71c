"""The timeline of a program whose communication is exposed, as the law scheduled it: in letters, and as a picture."""

from fractions import Fraction

from shardproof.properties.laws.communication import MACHINE
from shardproof.properties.performance.choosing import scheduled
from shardproof.properties.performance.gantt import gantt
from shardproof.properties.performance.lanes import KEY, Lanes, laid_out, text
from shardproof.properties.performance.timeline import Balanced, timeline
from shardproof.properties.runner.violation import LawViolation


def lanes_of(violation: LawViolation) -> Lanes:
    """What every resource does from when until when, on the machine of the law; nothing where it has no timeline."""
    if violation.kind != "overlap":
        return Lanes(Fraction(0))
    try:
        return _scheduled(violation)
    except Exception:  # a failure is told even where it cannot be drawn: its function may raise anything
        return Lanes(Fraction(0))


def _scheduled(violation: LawViolation) -> Lanes:
    implementation, case = violation.implementation, violation.case
    ahead = scheduled(implementation, case)
    machine = Balanced.of(ahead, case.mesh, case.axes)
    operations = ahead
    if violation.broken.of_derivative:
        operations = scheduled(implementation, case, gradient=True)
        machine = machine if machine.bytes else Balanced.of(operations, case.mesh, case.axes)
    return laid_out(timeline(operations, machine))


def in_letters(violation: LawViolation) -> list[str]:
    """The lanes under one another, and what the letters mean; of other laws, nothing."""
    rows = text(lanes_of(violation))
    return [*(f"    {row}" for row in rows), f"    {KEY}"] if rows else []


def picture(violation: LawViolation) -> str:
    """The picture as the text of an SVG; empty for what has no timeline, or where drawsvg is not installed."""
    lanes = lanes_of(violation)
    if not lanes.total:
        return ""
    whose = " and its gradient" if violation.broken.of_derivative else ""
    title = [
        f"{violation.implementation}{whose} on mesh {violation.case.mesh}",
        f"of {', '.join(map(str, violation.case.operands))}, {MACHINE}",
        "times in parts of all products of the function",
    ]
    try:
        return str(gantt(title, lanes, in_parts).as_svg())
    except ModuleNotFoundError:
        return ""


def in_parts(time: Fraction) -> str:
    """A part of what all products take."""
    return f"{float(time):.3g}"
