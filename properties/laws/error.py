"""The law of errors: what the contract forbids raises while tracing, with a message that explains it."""

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Violation
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import traced
from shardproof.properties.laws.law import Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, WrongResult, forward
from shardproof.properties.programs.violation import Broken


def check_error(implementation: Implementation, case: Case, engine: Engine) -> int:
    """A forbidden argument raises before anything runs; the message names it, its value and the mesh.

    Implementations that do not claim explained errors only have to raise something. A NotImplementedError refuses
    nothing: it says that the case is not supported.
    """
    argument = case.forbidden
    values = {"axis_name": case.axis_name, **case.keywords}
    value = repr(values[argument]) if argument in values else ""
    try:
        traced(forward(case, implementation, Seen()), case)
    except NotImplementedError:
        raise
    except WrongResult:  # it accepts the argument, and returns what it should not
        pass
    except Exception as error:
        if "explained_errors" in implementation.features:
            _check_message(case, argument, value, error)
        return 1
    raise Broken("accepted", f"{argument}={value} is accepted: expected an error")


def _check_message(case: Case, argument: str, value: str, error: Exception) -> None:
    text = str(error)
    mesh = "(" + ", ".join(f"{name}={size}" for name, size in case.mesh.shape.items()) + ")"
    plain_value, plain_text = (x.replace("(", "[").replace(")", "]").replace(",]", "]") for x in (value, text))
    missing = [f"the argument {argument!r}"] if f"{argument}=" not in text else []
    missing += [f"its value {value}"] if plain_value not in plain_text else []
    missing += [f"the mesh {mesh}"] if mesh not in text else []
    if missing:
        lacks = f"{type(error).__name__} does not name {' and '.join(missing)}"
        raise Broken("message", f"{lacks}: {text.partition(chr(10))[0]}") from error


def refused_by(implementation: Implementation) -> list[Violation]:
    """The violations that an implementation must refuse."""
    features = implementation.features
    return [
        violation
        for violation in implementation.contract.violations
        if (violation.everyone or "explained_errors" in features)
        and (violation.argument != "axis_index_groups" or "groups" in features)
    ]


ERROR = Law(
    "error",
    "What the contract forbids raises before anything runs, and says which argument, value and mesh.",
    check_error,
    lambda case: case if case.forbidden else None,
    lambda implementation, engine: bool(refused_by(implementation)),
    engines=("simulate",),  # what must be refused is refused while tracing, before any engine
)
