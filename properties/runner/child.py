"""The process that checks a function: it names every case before it runs it, and answers."""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.reading import one_line
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.draws import Finding
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.named import NotAFailure
from shardproof.properties.runner.platforms import use
from shardproof.properties.runner.preconditions import check_case, check_oracle
from shardproof.properties.runner.search import find_violation
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.violation import LawViolation
from shardproof.properties.runner.watching import BUSY_SECONDS, die_with_parent, patience

RENDEZVOUS_SECONDS = (5, 15)
"""After the first, XLA:CPU warns of a collective that some devices do not reach; after the second more, it gives up."""

READY = {"ready": True}
"""What it says when it has imported the function: from now on the limit of a case holds."""


class Source(Protocol):
    """Where the implementation comes from: a name, which the child looks up as well."""

    def load(self) -> Implementation:
        """The implementation."""


@dataclass(frozen=True)
class Task:
    """What the child is to check: laws on cases that are drawn, or the first of them on one case, given as JSON."""

    given: Source
    laws: tuple[str, ...]
    engine: str
    scope: Scope
    max_examples: int
    random_seed: int | None
    platform: str
    busy_seconds: float = BUSY_SECONDS
    known: Mapping[str, str] = field(default_factory=dict)
    """Cases, as JSON, that are not to be run again, and the known defects that ended the process on them."""
    case: str = ""
    diagnose: Callable[[LawViolation], Sequence[str]] | None = None
    """Says in words what is wrong, in the process in which it went wrong."""
    precision: str | None = None
    """The precision of products that JAX is told in the child."""


def serve(connection: Connection, words: str, parent: int) -> None:
    """Runs in the child: checks what it is sent, naming every case before it runs, and answers."""
    die_with_parent(parent)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {patience(*RENDEZVOUS_SECONDS)}".strip()
    with Path(words).open("wb") as log:  # what XLA prints when it aborts fills screens
        os.dup2(log.fileno(), 2)
    started = False
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:  # the parent is done
            return
        jax.config.update("jax_default_matmul_precision", task.precision)
        if not started:
            use(task.platform)
            if task.platform == "cpu":
                jax.config.update("jax_num_cpu_devices", task.scope.available)
            started = True
        try:
            implementation = task.given.load()
            connection.send(READY)
            connection.send(_answer(task, implementation, connection.send))
        except NotAFailure as error:
            connection.send({"refused": str(error)})
        except Exception:
            connection.send({"error": traceback.format_exc()})


def _answer(task: Task, implementation: Implementation, name: Callable[[tuple[str, str]], None]) -> dict[str, Any]:
    """Checks one task, naming every case before it runs."""

    def before(law: Law, case: Case) -> str:
        text = case.to_json()
        name((law.name, text))  # even one that is known: it is traced and interpreted, which may end the process too
        return task.known.get(text, "")

    if task.case:
        case = Case.from_json(task.case, lambda name: implementation.contract)
        found = _judged(task, implementation, case, before(LAWS[task.laws[0]], case))
    else:
        found = find_violation(
            [LAWS[law] for law in task.laws],
            implementation,
            engine_named(task.engine),
            task.scope,
            max_examples=task.max_examples,
            random_seed=task.random_seed,
            before=before,
        )
    violation = found.violation
    report: dict[str, Any] = {
        "error": "",
        "violation": None,
        "tallies": found.tallies,
        "caught_after": found.caught_after,
        "caught_seconds": found.caught_seconds,
        "seconds": found.seconds,
    }
    if violation is not None:
        told = None if task.diagnose is None else task.diagnose(violation)  # here, since it runs the function again
        report["violation"] = (violation.law.name, violation.case.to_json(), violation.broken, violation.origin, told)
    return report


def _judged(task: Task, implementation: Implementation, case: Case, defect: str) -> Finding:
    """How an implementation fares on one case, on which the known defect `defect` ended a process unless it is empty.

    Raises:
        NotAFailure: if its contract says nothing of such a case.
    """
    law = LAWS[task.laws[0]]
    tally = Tally(implementation.contract.name, implementation.name, law.name, task.engine)
    try:
        check_case(law.name, case)  # of a program's, no one could before it was imported
        check_oracle(law.name, case)
    except ValueError as error:
        raise NotAFailure(one_line(str(error))) from error
    try:
        judge(law, implementation, case, engine_named(task.engine), tally, ended_by=defect)
    except LawViolation as violation:
        return Finding(violation, {law.name: tally})
    return Finding(None, {law.name: tally})
