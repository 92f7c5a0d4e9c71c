"""Compares two runs, law by law: what is newly violated, held, new, gone, weaker or slower, and how the runs differ."""

from collections.abc import Iterator

from shardproof.properties.cases.reading import counted
from shardproof.properties.report.report import Record
from shardproof.properties.runner.tally import Tally

SLOWER, SECONDS, WEAKER = 1.5, 2.0, 0.5
"""The factor, and the seconds of the processor, from which something is slower; and the part of the structures on which
a law held before from which it is weaker."""

HEADINGS = {
    "violated": "NEWLY VIOLATED",
    "mended": "violated no more",
    "lost": "held before, and holds on nothing now",
    "weaker": "weaker",
    "slower": "slower",
    "gone": "gone",
    "new": "new",
}
"""The kinds of changes, the worst first; `violated` alone is an error."""


def compare(before: Record, after: Record) -> tuple[list[str], bool]:
    """The lines that say how two runs differ, and whether something is newly violated."""
    found: dict[str, list[str]] = {name: [] for name in HEADINGS}
    for name, line in (*_verdicts(before, after), *_slower(before, after)):
        found[name].append(line)
    lines = [*_header(before, after), ""]
    found |= {name: _by_implementation(found[name]) for name in ("gone", "new")}
    for name, some in found.items():
        lines += [f"{HEADINGS[name]} ({len(some)}):", *(f"  {line}" for line in some), ""] if some else []
    same = sum(key in _tallies(before) for key in _tallies(after))
    none = "" if any(found.values()) else "; no difference"
    return [*lines, f"{counted(same, 'law')} of implementations in both runs{none}"], bool(found["violated"])


def _by_implementation(lines: list[str]) -> list[str]:
    """Lines `NAME (ENGINE): LAW` as one for each name and engine."""
    laws: dict[str, list[str]] = {}
    for line in lines:
        name, _, law = line.rpartition(": ")
        laws.setdefault(name, []).append(law)
    return [f"{name}: {', '.join(some)}" for name, some in laws.items()]


def _tallies(record: Record) -> dict[tuple[str, ...], Tally]:
    tallies = [Tally.from_json(one) for one in record["verified"]]
    return {(t.contract, t.implementation, t.law, t.engine): t for t in tallies}


def _header(before: Record, after: Record) -> Iterator[str]:
    """The facts that differ between the runs, after a line with those that are the same."""
    facts = ("platform", "devices", "profile", "seed", "commit", "command", "ended")
    flat = [one["versions"] | one["flags"] | {name: one[name] for name in facts} for one in (before, after)]
    names = list(dict.fromkeys([*flat[0], *flat[1]]))
    pairs = {name: tuple(one.get(name, "not set") for one in flat) for name in names}
    same = [f"{name} {was or 'none'}" for name, (was, now) in pairs.items() if was == now and name != "command"]
    yield f"the same: {', '.join(same)}"
    for name, (was, now) in pairs.items():
        if was != now:
            yield f"{name}: {was or 'none'} -> {now or 'none'}"


def _verdicts(before: Record, after: Record) -> Iterator[tuple[str, str]]:
    was, now = _tallies(before), _tallies(after)
    for key in [*was, *(key for key in now if key not in was)]:
        one, other = was.get(key), now.get(key)
        name = f"{(one or now[key]).name}, {key[2]} ({key[3]})"
        if other is None or (one is None and other.outcome != "failed"):
            yield ("gone" if other is None else "new"), f"{(one or now[key]).name} ({key[3]}): {key[2]}"
        elif one is None:
            yield "violated", f"{name}: {_state(other)}"
        elif other.outcome == "failed" and one.outcome != "failed":
            yield "violated", f"{name}: {_state(one)} -> {_state(other)}"
        elif one.outcome == "failed" and other.outcome != "failed":
            yield ("mended" if other.verifies else "lost"), f"{name}: {_state(one)} -> {_state(other)}"
        elif one.verifies and not other.verifies:
            yield "lost", f"{name}: {_state(one)} -> {_state(other)}"
        elif other.verifies and (part := _weaker(one, other)):
            yield "weaker", f"{name}: {part}"
    tests = [{error["test"] for error in record["errors"]} for record in (before, after)]
    yield from (("violated", f"{test}: fails without a verdict") for test in sorted(tests[1] - tests[0]))


def _state(tally: Tally) -> str:
    if tally.outcome == "failed":
        return tally.failure.get("headline", "").split(": ", 2)[-1] or "failed"
    return f"held on {counted(tally.structures, 'structure')}" if tally.verifies else "held on nothing"


def _weaker(one: Tally, other: Tally) -> str:
    """In what way a law held on less than before; empty if it did not."""
    if other.structures <= WEAKER * one.structures:
        return f"{_state(one)} -> {_state(other)}"
    for kind, reasons in other.reasons.items():
        if new := [reason for reason in reasons if reason not in one.reasons[kind]]:
            return f"{kind} now: {new[0]}{f', and {len(new) - 1} more reasons' if new[1:] else ''}"
    return ""


def _slower(before: Record, after: Record) -> Iterator[tuple[str, str]]:
    """The implementations that take more compilations, or time of the processor, for each structure."""
    now = _costs(after)
    for name, one in _costs(before).items():
        other = now.get(name, one)
        for what, least in (("seconds", SECONDS), ("compilations", 0)):
            a, b = one[what] / one["structures"], other[what] / other["structures"]
            if b > SLOWER * a and other[what] - one[what] > least:
                yield "slower", f"{name}: {a:.2g} -> {b:.2g} {what} for each structure"


def _costs(record: Record) -> dict[str, dict[str, float]]:
    costs: dict[str, dict[str, float]] = {}
    for (*_, engine), tally in _tallies(record).items():
        cost = costs.setdefault(f"{tally.name} ({engine})", {"structures": 1, "seconds": 0, "compilations": 0})
        for what in cost:
            cost[what] += getattr(tally, what)
    return costs
