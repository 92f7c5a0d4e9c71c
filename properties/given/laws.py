"""The functions given with `--impl`, each against every law of its contract, in a process of its own."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import pytest

from shardproof.properties.contracts import Scope
from shardproof.properties.laws import Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import matmul_precision
from shardproof.properties.report.checking import check_laws, conclude
from shardproof.properties.report.failures.causes import ReportedCauses
from shardproof.properties.report.failures.evidence import examine
from shardproof.properties.report.failures.text import find_diagnosis
from shardproof.properties.report.session import COUNTED, seed_in_force
from shardproof.properties.runner.child import Source, Task
from shardproof.properties.runner.isolation import check_isolated, unending
from shardproof.properties.runner.profiles import structures_in_force
from shardproof.properties.runner.search import Finding

REPORTED = pytest.StashKey[defaultdict[Source, ReportedCauses]]()
"""The causes that were reported of each function in this run, or in this worker of it."""


def test_given(
    implementation: Implementation,
    engine: str,
    laws: Sequence[Law],
    scope: Scope,
    request: pytest.FixtureRequest,
) -> None:
    """A given function satisfies every law."""
    structures = structures_in_force()
    task = Task(
        given=implementation.given,
        laws=(),
        engine=engine,
        scope=scope,
        max_examples=0,
        random_seed=seed_in_force(request.config),
        diagnose=examine if request.config.getoption("--report") else find_diagnosis,
        platform=request.config.getoption("--platform"),
        options={"jax_default_matmul_precision": matmul_precision()},
    )
    if hung := unending(task):
        pytest.fail(f"{implementation}: not run on {engine}: it did not end under {hung}", pytrace=False)

    def find(laws: Sequence[Law], *, max_examples: int, **_: object) -> Finding:
        return check_isolated(
            dataclasses.replace(task, laws=tuple(law.name for law in laws), max_examples=max_examples)
        )

    reported = request.config.stash.setdefault(REPORTED, defaultdict(ReportedCauses))[implementation.given]
    verdicts = check_laws(implementation, engine, laws, reported, find, max_examples=structures)
    for tally in verdicts.tallies.values():
        tally.unclaimed, tally.stated = implementation.unclaimed, implementation.stated
    request.node.stash[COUNTED] = [*verdicts.tallies.values()]
    conclude(verdicts, implementation)
