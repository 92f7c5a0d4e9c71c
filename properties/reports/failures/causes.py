"""What failures have in common: one mistake breaks many laws; failures of one kind are told once, the worst first."""

import re
from collections.abc import Iterable, Mapping, Sequence

from shardproof.properties.laws.violation import DEATHS, RAISED
from shardproof.properties.runner.violation import LawViolation

ROUNDING = "rounding"
SITE = re.compile(r'File "([^"]*)", line (\d+)')


def cause(violation: LawViolation) -> str:
    """The implementation, and the kind of its mistake: where it raises, or which values are how wrong."""
    return f"{violation.implementation}: {_mistake(violation)}"


def _mistake(violation: LawViolation) -> str:
    finding, difference = violation.finding, violation.difference
    if violation.kind in RAISED:
        sites = SITE.findall("\n".join(violation.origin))
        return f"{finding.partition(':')[0]} at {':'.join(sites[-1]) if sites else violation.title}"
    if violation.kind in DEATHS:
        return finding
    if difference is None:
        return violation.law.name
    if difference.of == "replica":
        return "replicas differ"
    whose = "derivatives" if violation.broken.of_derivative else "result"
    if not difference.comparable:
        return f"shape or dtype of the {whose}"
    return f"{ROUNDING if difference.rounding else 'wrong values'} of the {whose}"


def entry(violation: LawViolation, text: str) -> dict[str, str]:
    """What is kept of a failure until all are known."""
    return {
        "headline": violation.headline,
        "engine": violation.engine,
        "cause": cause(violation),
        "text": text,
    }


def by_cause(entries: Iterable[Mapping[str, str]]) -> list[list[Mapping[str, str]]]:
    """Failures of one cause together, in their order, those that are only of rounding last."""
    groups: dict[str, list[Mapping[str, str]]] = {}
    for one in entries:
        groups.setdefault(one["cause"], []).append(one)
    return sorted(groups.values(), key=lambda group: f": {ROUNDING} of " in group[0]["cause"])


def told(group: Sequence[Mapping[str, str]]) -> str:
    """The text of the first failure of a cause, and a line for each of the others."""
    return "\n".join([group[0]["text"].rstrip(), *others(group)])


def others(group: Sequence[Mapping[str, str]]) -> list[str]:
    """A line for each failure but the first."""
    if len(group) == 1:
        return []
    lines = [
        "",
        f"  wrong in the same way under {len(group) - 1} more check{'s' * (len(group) > 2)}:",
    ]
    for one in group[1:]:
        script = f": {one['script']}" if "script" in one else ""
        lines.append(f"    {one['headline'].partition(': ')[2]} [{one['engine']}]{script}")
    return lines
