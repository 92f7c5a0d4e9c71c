"""The cause of a violation, for which a report says it once, however many laws and engines it breaks."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardproof.properties.laws import Law
from shardproof.properties.programs.violation import DEATHS, RAISED
from shardproof.properties.runner.violation import LawViolation

ROUNDING = "rounding"
VALUES = "wrong values of the {}"
RESULT, DERIVATIVES = "result", "derivatives"
FORM = ("shape", "dtype", "tree")
"""The kinds of violations of what a result is, whatever its values are: no law can go on to compare these."""
SITE = re.compile(r'File "([^"]*)", line (\d+)')

LINE = 200
"""How much of the headline of a further failure of one cause is told."""

LEFT_OUT = "not checked, since the values are wrong"
"""What is said of the laws that `Told.answers`."""


def cause(violation: LawViolation) -> str:
    """The implementation, and the kind of its mistake: where it raises, or which values are how wrong."""
    return f"{violation.implementation}: {_mistake(violation)}"


def _mistake(violation: LawViolation) -> str:
    finding, difference = violation.finding, violation.difference
    if violation.kind in RAISED:
        sites = SITE.findall("\n".join(violation.origin)) if violation.kind == "raises" else []
        return f"{finding.partition(':')[0]} at {':'.join(sites[-1]) if sites else 'no place of its own'}"
    if violation.kind in DEATHS:
        return finding
    whose = DERIVATIVES if violation.broken.of_derivative else RESULT
    if violation.kind in FORM:
        return f"form of the {whose}"
    if difference is None:
        return VALUES.format(whose) if violation.kind == "values" else violation.law.name
    if difference.of == "replica":
        return "replicas differ"
    return f"{ROUNDING} of the {whose}" if difference.rounding else VALUES.format(whose)


def source(cause: str, told: Collection[str]) -> str:
    """What of those that were told a cause is, or follows from: of wrong values the derivatives are wrong; else ""."""
    implementation, _, mistake = cause.partition(": ")
    above = f"{implementation}: {VALUES.format(RESULT)}" if mistake == VALUES.format(DERIVATIVES) else ""
    return next((one for one in (cause, above) if one in told), "")


def entry(violation: LawViolation, text: str) -> dict[str, str]:
    """What is kept of a failure until all are known."""
    told = cause(violation)
    return {"headline": violation.headline, "engine": violation.engine, "cause": told, "text": text}


@dataclass
class Told:
    """What was told of a function, so that further laws need not look for it as long, nor find it once more."""

    causes: set[str] = field(default_factory=set)
    in_vain: bool = False
    """Whether a law held on nothing."""
    stuck: str = ""
    """Why nothing more is to be compiled, if so: it would not end."""

    def add(self, violation: LawViolation) -> None:
        """Notes what is told."""
        self.causes.add(cause(violation))
        if violation.kind == "deadlock":
            self.stuck = "devices would wait for one another for ever"
        elif violation.kind == "unfinished":
            self.stuck = f"it did not end on {violation.engine}"

    def before(self, violation: LawViolation) -> bool:
        """Whether the same was told, or what it follows from."""
        return bool(source(cause(violation), self.causes))

    def answers(self, law: Law) -> bool:
        """Whether a law need not be checked any more: a result's values are wrong, by more than rounding."""
        return law.between_engines and any(one.endswith(f": {VALUES.format(RESULT)}") for one in self.causes)


def by_cause(entries: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Failures of one cause with what follows from it, in their order, those of rounding alone last."""
    entries = list(entries)
    causes = {one["cause"] for one in entries}
    above = {own: source(own, causes - {own}) for own in causes}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for one in sorted(entries, key=lambda one: bool(above[one["cause"]])):
        groups.setdefault(above[one["cause"]] or one["cause"], []).append(one)
    return sorted(groups.values(), key=lambda group: f": {ROUNDING} of " in group[0]["cause"])


def told(group: Sequence[Mapping[str, Any]]) -> str:
    """The text of the first failure of a cause, and a line for each of the others."""
    return "\n".join([group[0]["text"].rstrip(), *others(group)])


def others(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for the failures but the first; those that follow from it come after those that are like it.

    One that has no script of its own is told by its law alone.
    """
    alike = [one for one in group[1:] if one["cause"] == group[0]["cause"]]
    following = [one for one in group[1:] if one["cause"] != group[0]["cause"]]
    lines = []
    for some, heading in ((alike, "wrong in the same way under {} more"), (following, "and its derivatives under {}")):
        if some:
            lines += ["", f"  {heading.format(len(some))} check{'s' * (len(some) > 1)}:"]
        for one in (one for one in some if "script" in one):
            line = one["headline"].partition(": ")[2]
            line = line if len(line) <= LINE else line[:LINE] + " ..."
            lines.append(f"    {line} [{one['engine']}]: {one['script']}")
        laws: dict[str, list[str]] = {}
        for one in (one for one in some if "script" not in one):
            laws.setdefault(one["engine"], []).append(one["headline"].split(": ")[1])
        if laws:
            lines.append("    " + "; ".join(f"{', '.join(named)} [{engine}]" for engine, named in laws.items()))
    return lines
