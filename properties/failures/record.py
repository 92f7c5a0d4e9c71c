"""A failure as JSON: what is needed to run its check again, and nothing that could be executed."""

import dataclasses
import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from properties.cases import Case
from properties.communication.expectation import Expectation
from properties.contracts import CONTRACTS
from properties.contracts.contract import FEATURES
from properties.engines import ENGINES
from properties.engines.simulate import UnwrittenRead
from properties.failures.lookup import Named, NotAFailure, named
from properties.laws.violation import LawViolation
from properties.transformations import TRANSFORMATIONS
from properties.verification import LAWS

FORMAT = 1
"""The version of the JSON form; a reader refuses a newer one."""

KIND = "shardproof failure"
MOST_DEVICES = 4096
"""No machine that compiles and runs has more; the number decides how many virtual ones are made."""

DEATHS = ("aborts the process", "does not finish", "takes more than")
"""How findings begin where the process that ran the case did not survive it."""


@dataclass(frozen=True)
class Recorded:
    """A failure read from a file."""

    law: str
    implementation: Named
    engine: str
    finding: str
    case: Case


def law_of(violation: LawViolation) -> str:
    """The law that was broken, by the name that it is registered under."""
    if violation.registered or violation.law in LAWS:
        return violation.registered or violation.law
    return "transformed gradient" if violation.law.startswith("gradient") else "transformation"


def died(finding: str) -> bool:
    """Whether the finding is that the process did not survive the case."""
    return finding.startswith(DEATHS)


def unwritten(finding: str) -> bool:
    """Whether the finding is that a result depends on memory that was never written."""
    return finding.startswith(f"raises {UnwrittenRead.__name__}")


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
        "headline": violation.headline,
        "law": law_of(violation),
        "implementation": dataclasses.asdict(named(violation.implementation)),
        "engine": violation.engine,
        "finding": violation.finding,
        "case": json.loads(failing_case(violation).to_json()),
    }


def identity(violation: LawViolation) -> str:
    """A readable name for a failure, the same whenever it is the same function, law and case."""
    content = record(violation)
    what = {key: content[key] for key in ("law", "engine", "case")}
    what["function"] = [content["implementation"][key] for key in ("contract", "name", "module", "qualname")]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    implementation = violation.implementation
    words = f"{implementation.contract}-{implementation.name}-{violation.law}"
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words).strip('-')}-{digest}"


def parse(text: str) -> Recorded:
    """The failure that `record` described; nothing is imported or executed.

    Raises:
        NotAFailure: if the text is damaged, of another origin, or of a newer format.
    """
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise NotAFailure(f"not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise NotAFailure(f"not a failure of this suite: expected a JSON object with kind={KIND!r}")
    if not isinstance(content.get("format"), int) or not 1 <= content["format"] <= FORMAT:
        raise NotAFailure(f"format={content.get('format')!r}: expected at most {FORMAT}; a newer version wrote this")
    try:
        fields = content["implementation"]
        invariant = None if fields["invariant"] is None else bool(fields["invariant"])
        texts = {key: str(fields[key]) for key in ("contract", "name", "module", "qualname", "path")}
        expectation = str(fields.get("expectation", ""))
        if expectation:
            Expectation.parse(expectation)
        function = Named(
            **texts, features=tuple(map(str, fields["features"])), invariant=invariant, expectation=expectation
        )
        recorded = Recorded(
            str(content["law"]), function, str(content["engine"]), str(content["finding"]),
            Case.from_json(json.dumps(content["case"])),
        )  # fmt: skip
        _check(recorded)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise NotAFailure(f"damaged: {type(error).__name__}: {error}") from error
    return recorded


def _check(recorded: Recorded) -> None:
    """What is read is what could have been written.

    Raises:
        ValueError: if it is not.
    """
    case, function = recorded.case, recorded.implementation
    _one_of("law", recorded.law, LAWS)
    _one_of("engine", recorded.engine, ENGINES)
    _one_of("contract", case.contract, CONTRACTS)
    _one_of("implementation contract", function.contract, (case.contract,))
    _one_of("around", case.around, TRANSFORMATIONS)
    for feature in function.features:
        _one_of("feature", feature, sorted(FEATURES))
    for name in case.keywords:
        _one_of("parameter", name, (*CONTRACTS[case.contract].parameters, "axis_index_groups"))
    if not case.operands:
        raise ValueError("operands=(): expected at least one")
    for operand in case.operands:
        if not all(str(n).isdigit() for n in operand.block):
            raise ValueError(f"block={operand.block}: expected sizes")
        math.prod(operand.placement.global_shape(operand.block, case.mesh))
    if recorded.engine == "xla" and max(case.mesh.devices) >= MOST_DEVICES:
        raise ValueError(f"devices={case.mesh.devices}: expected numbers below {MOST_DEVICES}")
    if recorded.law != "error":
        case.mesh.axis_size(case.axes)


def _one_of(what: str, value: Any, known: Any) -> None:
    if value not in known:
        raise ValueError(f"{what}={value!r}: expected one of {', '.join(map(str, known))}")
