"""A failure as JSON: what is needed to run its check again, and nothing that could be executed."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, get_args

from shardproof.properties.cases import reading
from shardproof.properties.cases.case import Case
from shardproof.properties.communication.sizes import names_of
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.features import FEATURES
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.overlap import Overlap
from shardproof.properties.programs.violation import Kind
from shardproof.properties.runner.named import Named, NotAFailure, importable, named, source_text
from shardproof.properties.runner.preconditions import check_case
from shardproof.properties.runner.violation import LawViolation

FORMAT = 2
"""The version of the JSON form; a reader refuses a newer one. In the first, what is wrong was told in words alone."""

KIND = "shardproof failure"
MOST_DEVICES = 256
"""The most devices that a replay makes for XLA, each of which has threads of its own."""
MOST_TEXT, MOST_PATH, MOST_REASON = 20_000, 4096, 300
"""The most characters of what was found, of a path, and of the reason for which a file is refused."""

LONGEST = 120
"""The most characters of a name that a person reads; file systems allow 255 bytes, endings included."""


@dataclass(frozen=True)
class Recorded:
    """A failure read from a file."""

    law: str
    implementation: Named
    engine: str
    violated: Kind
    finding: str
    case: Case


def failing_case(violation: LawViolation) -> Case:
    """The case with the one data set on which the violation shows, if it is known."""
    if violation.data is None:
        return violation.case
    return dataclasses.replace(violation.case, data=(violation.data,))


def record(violation: LawViolation) -> dict[str, Any]:
    """A violation as JSON-able data."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "headline": violation.headline[:MOST_TEXT],
        "law": violation.law.name,
        "implementation": _written(named(violation.implementation)),
        "engine": violation.engine,
        "violated": violation.kind,
        "finding": violation.finding[:MOST_TEXT],
        "case": json.loads(failing_case(violation).to_json()),
    }


def _written(name: Named) -> dict[str, Any]:
    content = dataclasses.asdict(name)
    if not name.program:  # so that versions that know of no programs can read it
        del content["program"]
    return content


def identity(violation: LawViolation) -> str:
    """A readable name for a failure, the same whenever it is the same function, law and case."""
    content = record(violation)
    what = {key: content[key] for key in ("law", "engine", "case")}
    what["function"] = [content["implementation"][key] for key in ("contract", "name", "module", "qualname")]
    if not importable(named(violation.implementation)):  # others of its name are others
        what["source"] = source_text(violation.implementation.function)
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    implementation = violation.implementation
    words = f"{implementation.contract}-{implementation.name}-{violation.title}"
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words)[:LONGEST].strip('-')}-{digest}"


def parse(text: str) -> Recorded:
    """The failure that `record` described; nothing is imported or executed, and nothing is what it could not have been.

    Raises:
        NotAFailure: if the text is damaged, of another origin, or of a newer format; one line says why.
    """
    try:
        content = reading.loaded(text)
    except ValueError as error:
        raise NotAFailure(reading.one_line(str(error))) from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise NotAFailure(f"not a failure of this suite: expected a JSON object with kind={KIND!r}")
    if type(content.get("format")) is not int or not 1 <= content["format"] <= FORMAT:
        found = reading.shown(content.get("format"))
        raise NotAFailure(f"format={found}: expected at most {FORMAT}; a newer version wrote this")
    try:
        return _recorded(content)
    except NotAFailure:
        raise
    except ValueError as error:
        reason = reading.one_line(str(error))
        raise NotAFailure(f"damaged: {reason[:MOST_REASON]}") from error


def _recorded(content: Any) -> Recorded:
    """The failure in a JSON object.

    Raises:
        ValueError: if there is none.
    """
    known = content["format"] > 1
    told = ("violated",) if known else ()
    names = ("kind", "format", "headline", "law", "implementation", "engine", *told, "finding", "case")
    record = reading.fields("failure", content, names)
    reading.text("headline", record["headline"], most=MOST_TEXT, printable=False)
    law = LAWS[reading.one_of("law", record["law"], LAWS)]
    engine = reading.one_of("engine", record["engine"], ENGINES)
    if engine not in law.engines:
        raise ValueError(f"engine={engine!r}: the law {law.name!r} is checked by {', '.join(law.engines)}")
    case = Case.from_json(json.dumps(record["case"]))
    function = _function(record["implementation"])
    if not function.program:  # what a program means is known once it is imported, and the case is checked then
        reading.one_of("contract", case.contract, CONTRACTS)
    reading.one_of("implementation contract", function.contract, (case.contract,))
    if engine == "xla" and max(case.mesh.devices) >= MOST_DEVICES:
        raise ValueError(f"devices={case.mesh.devices}: expected numbers below {MOST_DEVICES}")
    if not function.program:
        check_case(law.name, case)
    finding = reading.text("finding", record["finding"], most=MOST_TEXT, printable=False)
    violated = _violated(record["violated"]) if known else _in_words(finding)
    return Recorded(law.name, function, engine, violated, finding, case)


def _violated(value: Any) -> Kind:
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    return kinds[reading.one_of("violated", value, kinds)]


def _in_words(finding: str) -> Kind:
    """What the first format says of a process that did not survive the case; of others it does not matter."""
    words: dict[str, Kind] = {"aborts the process": "aborts", "does not finish": "unfinished", "takes more": "memory"}
    return next((kind for start, kind in words.items() if finding.startswith(start)), "values")


def _function(content: Any) -> Named:
    """What a file says of the function."""
    record = reading.fields(
        "implementation",
        content,
        [field.name for field in dataclasses.fields(Named)],
        optional=("expectation", "overlap", "program"),
    )
    features = reading.items("features", record["features"], most=len(FEATURES))
    expectation = reading.text("expectation", record.get("expectation", ""))
    overlap = reading.text("overlap", record.get("overlap", ""))
    contract = reading.identifier("implementation contract", record["contract"])
    program = reading.truth("program", record.get("program", False))
    if program and (features or expectation or overlap or (contract in CONTRACTS and CONTRACTS[contract].listed)):
        raise ValueError(f"implementation contract={contract!r}: expected a program, of which a file says no more")
    if not program and contract not in CONTRACTS:
        told = (
            "no contract; if it is a program, no module holds it by a name, and the script beside it shows the failure"
        )
        raise NotAFailure(f"implementation contract={contract!r}: {told}")
    if expectation:
        Expectation.parse(expectation, names_of(contract))
    if overlap:
        Overlap.parse(overlap, names_of(contract))
    return Named(
        contract=contract,
        name=reading.text("name", record["name"]),
        module=reading.text("module", record["module"]),  # of a name that nothing can be imported by, no more is said
        qualname=reading.text("qualname", record["qualname"]),
        path=reading.text("path", record["path"], most=MOST_PATH),
        features=tuple(reading.one_of("feature", feature, sorted(FEATURES)) for feature in features),
        invariant=None if record["invariant"] is None else reading.truth("invariant", record["invariant"]),
        expectation=expectation,
        overlap=overlap,
        program=program,
    )
