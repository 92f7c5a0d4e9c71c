"""A failure as JSON: what is needed to run its check again, and nothing that could be executed."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from shardproof.properties.cases import reading
from shardproof.properties.cases.case import Case, bounded
from shardproof.properties.contracts import contract_of, listed
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.violation import Kind
from shardproof.properties.runner.named import is_built_in, name_of, named, source_text
from shardproof.properties.runner.preconditions import NotAFailure, check_case
from shardproof.properties.runner.violation import LawViolation

FORMAT = 4
"""The version of the JSON form; a reader refuses others. Up to the second a file named a function to import."""

KIND = "shardproof failure"
MOST_DEVICES = 256
"""The most devices that a replay makes for XLA, each of which has threads of its own."""
MOST_TEXT, MOST_REASON = 20_000, 300
"""The most characters of what was found, and of the reason for which a file is refused."""

LONGEST = 120
"""The most characters of a name that a person reads; file systems allow 255 bytes, endings included."""


@dataclass(frozen=True)
class Recorded:
    """A failure as a file holds it.

    Arguments:
        headline: the first line of its report.
        law: the law that did not hold.
        name: the name of the implementation in reports.
        built_in: whether that is one of this project's own; other functions are named on the command line.
        program: the name by which a module held the `Program`, if it is one.
        engine: the engine that ran it.
        violated: the kind of violation.
        finding: the violation in words.
        case: the case, with the data set that showed it.
        stated: what a program was said to need, and to be allowed, in words.
    """

    headline: str
    law: str
    name: str
    built_in: bool
    program: str
    engine: str
    violated: Kind
    finding: str
    case: Case
    stated: tuple[str, ...] = ()
    kind: Literal["shardproof failure"] = "shardproof failure"
    format: Literal[4] = 4

    @property
    def listed(self) -> bool:
        """Whether its contract is one of this project's, and not a user's program."""
        return listed(self.case.contract)


def failing_case(violation: LawViolation) -> Case:
    """The case with the one data set on which the violation shows, if it is known."""
    if violation.data is None:
        return violation.case
    return dataclasses.replace(violation.case, data=(violation.data,))


def record(violation: LawViolation) -> dict[str, Any]:
    """A violation as JSON-able data."""
    implementation = violation.implementation
    held = name_of(implementation) if implementation.program is not None else None
    found = Recorded(
        headline=violation.headline[:MOST_TEXT],
        law=violation.law.name,
        name=implementation.name,
        built_in=is_built_in(implementation),
        program=held.qualname if held else "",
        engine=violation.engine,
        violated=violation.kind,
        finding=violation.finding[:MOST_TEXT],
        case=failing_case(violation).named(),
        stated=implementation.stated,
    )
    content: dict[str, Any] = msgspec.to_builtins(found)
    return json.loads(json.dumps(content))


def identity(violation: LawViolation) -> str:
    """A readable name for a failure, the same whenever it is the same function, law and case."""
    implementation, function = violation.implementation, named(violation.implementation.function)
    content = record(violation)
    what = {key: content[key] for key in ("law", "engine", "case", "name")} | {"function": str(function)}
    if not function.importable:  # others of its name are others
        what["source"] = source_text(implementation.function)
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    words = f"{implementation.contract.name}-{implementation.name}-{violation.title}"
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words)[:LONGEST].strip('-')}-{digest}"


def parse(text: str) -> Recorded:
    """The failure that `record` described; nothing is imported or executed.

    Raises:
        NotAFailure: if the text is damaged, of another origin, or of another format; one line says why.
    """
    try:
        content = reading.loaded(text)
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise NotAFailure(f"not a failure of this suite: expected a JSON object with kind={KIND!r}")
        if content.get("format") != FORMAT:
            raise NotAFailure(f"format={reading.shown(content.get('format'))}: expected {FORMAT}: another version's")
        recorded = reading.decoded(Recorded, content)
        recorded = dataclasses.replace(recorded, case=bounded(recorded.case, contract_of))
        _check(recorded)
    except ValueError as error:
        raise NotAFailure(reading.one_line(str(error))[:MOST_REASON]) from error
    return recorded


def _check(recorded: Recorded) -> None:
    """The law, engine and contract are known; what a program means is known, and checked, once it is imported.

    Raises:
        ValueError: naming the field that is wrong, its value, and the ones expected.
    """
    for what, value, known in (("law", recorded.law, LAWS), ("engine", recorded.engine, ENGINES)):
        if value not in known:
            raise reading.Unreadable(f"{what}={reading.shown(value)}: expected one of {', '.join(known)}")
    law, case = LAWS[recorded.law], recorded.case
    if recorded.engine not in law.engines:
        engines = ", ".join(law.engines)
        raise reading.Unreadable(f"engine={recorded.engine!r}: the law {law.name!r} is checked by {engines}")
    if recorded.engine == "simulate" and not all(link.compiled for link in case.links):
        raise reading.Unreadable(f"chain={case.chain}: expected none without `jit` on the engine {recorded.engine!r}")
    if recorded.engine == "xla" and max(case.mesh.devices) >= MOST_DEVICES:
        raise reading.Unreadable(f"devices={reading.shown(case.mesh.devices)}: expected numbers below {MOST_DEVICES}")
    if recorded.listed:
        check_case(recorded.law, case)
