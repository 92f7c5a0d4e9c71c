"""The script of a failure: plain JAX that a person can read, run alone, and paste into a bug report."""

from shardproof.properties.cases.data import Data
from shardproof.properties.programs.precision import precision_of
from shardproof.properties.report.scripts import checks, hidden, sent, verdicts
from shardproof.properties.report.scripts.expectations import data_of, gradient_values
from shardproof.properties.report.scripts.parts import Script
from shardproof.properties.report.scripts.source import clashes, named, operand, source_of
from shardproof.properties.runner.violation import LawViolation


def script(violation: LawViolation) -> str:
    """The source of the script that shows a violation again."""
    with precision_of(violation.case):
        parts = Script(violation)
        own = [] if parts.contract.listed else parts.names  # of a user's program, which may be called anything
        parts.names = [operand(i) for i in range(len(own))] or parts.names
        text = _whole(parts)
        if clashes(text, parts.source):
            parts.source = source_of(violation.implementation, renamed=True)
            text = _whole(parts)
        return named(text, own)


def _whole(parts: Script) -> str:
    return parts.whole(_body(parts))


def _body(parts: Script) -> list[str]:
    violation = parts.violation
    data = data_of(parts.case, violation.data)
    kind = violation.law.script
    if kind == "values" and violation.broken.of_derivative:
        kind = "gradient"
    if parts.open and kind != "gradient":
        kind = "values"
    match kind:
        case "error":  # whose case has no right values
            return verdicts.error(parts)
        case "type":
            return verdicts.types(parts, data)
        case "communication":
            return sent.body(parts, data)
        case "overlap":
            return hidden.body(parts, data)
        case "gradient":
            return _gradient(parts, data)
        case "values":
            return _values(parts, data)


def _values(parts: Script, data: Data) -> list[str]:
    """Values are those of the oracle; none, where how far off they may be takes a run of the function, which raises."""
    if parts.child and parts.contract.nonlinear:  # which would take this process along
        return checks.value_runs(parts, data)
    try:
        return checks.value(parts, data)
    except Exception:
        if parts.violation.kind != "raises":
            raise
        return checks.value_runs(parts, data)


def _gradient(parts: Script, data: Data) -> list[str]:
    """Gradients are those of the oracle; where it would take this process along to find them, they are computed."""
    if parts.child:
        return checks.gradient_runs(parts, data)
    try:
        return checks.gradient(parts, gradient_values(parts.violation.implementation, parts.case, data))
    except Exception:
        if parts.violation.difference is not None:
            raise
        return checks.gradient_runs(parts, data)
