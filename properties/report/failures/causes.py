"""The cause of a violation: a report shows each cause once, however many laws and engines it breaks."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardproof.properties.laws import Law
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.programs.violation import DEATHS, RAISED

ROUNDING = "rounding"
VALUES = "wrong values of the {}"
RESULT, DERIVATIVES = "result", "derivatives"

LEFT_OUT = "not checked, since the values are wrong"
"""The reason to leave out the laws that `ReportedCauses.decide`."""

Entry = Mapping[str, Any]
"""The parts of a failure, by `entry`; with the paths of its files, `script` and `json`, if it has any."""


def cause(violation: LawViolation) -> str:
    """The implementation, and the kind of its mistake: where it raises, or which values are how wrong."""
    return f"{violation.implementation}: {_mistake(violation)}"


def _mistake(violation: LawViolation) -> str:
    finding, difference = violation.finding, violation.difference
    if violation.kind in RAISED:
        origin = "\n".join(violation.origin) if violation.kind == "raises" else ""
        sites = re.findall(r'File "([^"]*)", line (\d+)', origin)
        return f"{finding.partition(':')[0]} at {':'.join(sites[-1]) if sites else 'no place of its own'}"
    if violation.kind in DEATHS:
        return finding
    whose = DERIVATIVES if violation.broken.of_derivative else RESULT
    if violation.kind in ("shape", "dtype", "tree"):  # after which no law can compare values
        return f"form of the {whose}"
    if difference is None:
        return VALUES.format(whose) if violation.kind == "values" else violation.law.name
    if difference.of == "replica":
        return "replicas differ"
    return f"{ROUNDING} of the {whose}" if difference.rounding else VALUES.format(whose)


def _source(cause: str, causes: Collection[str]) -> str:
    """Which of some causes explains one: itself, or wrong values that make derivatives wrong; "" if none does."""
    implementation, _, mistake = cause.partition(": ")
    above = f"{implementation}: {VALUES.format(RESULT)}" if mistake == VALUES.format(DERIVATIVES) else ""
    return next((one for one in (cause, above) if one in causes), "")


def entry(violation: LawViolation, text: str) -> dict[str, str]:
    """The parts of a failure that its report takes."""
    known = {"headline": violation.headline, "engine": violation.engine, "cause": cause(violation)}
    return known | {"text": text}


@dataclass
class ReportedCauses:
    """The causes that were reported of a function: later searches end at them."""

    causes: set[str] = field(default_factory=set)
    held_on_nothing: bool = False
    """True if a law held on nothing."""
    stuck: str = ""
    """Why nothing more is compiled, as it would not end, or fail again."""

    def add(self, violation: LawViolation) -> None:
        """Notes a violation as reported."""
        self.causes.add(cause(violation))
        if violation.kind == "deadlock":
            self.stuck = "devices would wait for one another for ever"
        elif violation.kind == "unfinished":
            self.stuck = f"it did not end on {violation.engine}"
        elif violation.leaks:
            self.stuck = "it keeps arrays"

    def covers(self, violation: LawViolation) -> bool:
        """True if the cause of a violation was reported, or one that it follows from."""
        return bool(_source(cause(violation), self.causes))

    def decide(self, law: Law) -> bool:
        """True if a law need not be checked: it compares engines, and values are wrong by more than rounding."""
        return law.between_engines and any(one.endswith(f": {VALUES.format(RESULT)}") for one in self.causes)


def by_cause(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Failures of one cause with those that follow from it, in their order, those of rounding alone last.

    Of those with one script and one cause, such as a regression that is found again, the first is reported.
    """
    first: dict[object, Entry] = {}
    for number, one in enumerate(entries):
        first.setdefault((one.get("script", number), one["cause"]), one)
    entries = list(first.values())
    causes = {one["cause"] for one in entries}
    above = {own: _source(own, causes - {own}) for own in causes}
    groups: dict[str, list[Entry]] = {}
    for one in sorted(entries, key=lambda one: bool(above[one["cause"]])):
        groups.setdefault(above[one["cause"]] or one["cause"], []).append(one)
    return sorted(groups.values(), key=lambda group: f": {ROUNDING} of " in group[0]["cause"])


def group_text(group: Sequence[Entry]) -> str:
    """The text of the first failure of a cause, and a line for each of the others."""
    return "\n".join([group[0]["text"].rstrip(), *lines_of_others(group)])


def lines_of_others(group: Sequence[Entry]) -> list[str]:
    """Lines for the failures but the first, by law alone where there is no script; consequences come last."""
    same = [one for one in group[1:] if one["cause"] == group[0]["cause"]]
    following = [one for one in group[1:] if one["cause"] != group[0]["cause"]]
    lines = []
    for some, heading in ((same, "wrong in the same way under {} more"), (following, "and its derivatives under {}")):
        if some:
            lines += ["", f"  {heading.format(len(some))} check{'s' * (len(some) > 1)}:"]
        laws: dict[str, list[str]] = {}
        for one in some:
            _, law, *_ = one["headline"].split(": ")
            if "script" in one:
                line = one["headline"].partition(": ")[2]
                line = line if len(line) <= 200 else line[:200] + " ..."
                lines.append(f"    {line} [{one['engine']}]: {one['script']}")
            else:
                laws.setdefault(one["engine"], []).append(law)
        if laws:
            lines.append("    " + "; ".join(f"{', '.join(names)} [{engine}]" for engine, names in laws.items()))
    return lines
