"""The functions given with `--impl`, each against every law of its contract, in a process of its own."""

from collections import defaultdict

import pytest
from hypothesis import settings

from shardproof.properties.contracts import Scope
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.precision import of_products
from shardproof.properties.report.failures.causes import LEFT_OUT, Told
from shardproof.properties.report.failures.text import diagnosed
from shardproof.properties.runner.budgets import structures
from shardproof.properties.runner.child import Source, Task
from shardproof.properties.runner.isolation import check_isolated, unending
from shardproof.properties.runner.tally import Tally

KNOWN = pytest.StashKey[defaultdict[Source, Told]]()
"""What was told of each function in this run, or in this worker of it."""


@pytest.fixture
def known(implementation: Implementation, given_law: str, pytestconfig: pytest.Config) -> Told:
    """What was told of the function; a law that this answers is not checked, nor counted."""
    found = pytestconfig.stash.setdefault(KNOWN, defaultdict(Told))[implementation.given]
    if found.answers(LAWS[given_law]):
        pytest.skip(f"{LEFT_OUT}: {implementation}: {given_law}")
    return found


def test_given(
    known: Told,
    implementation: Implementation,
    given_law: str,
    given_engine: str,
    scope: Scope,
    tally: Tally,
    pytestconfig: pytest.Config,
) -> None:
    """A given function satisfies the law."""
    seed = pytestconfig.getoption("--hypothesis-seed", default=None)
    task = Task(
        given=implementation.given,
        law=given_law,
        engine=given_engine,
        scope=scope,
        max_examples=structures(LAWS[given_law], settings().max_examples, given_engine),
        random_seed=None if seed in (None, "random") else int(seed),
        diagnose=diagnosed,
        platform=pytestconfig.getoption("--platform"),
        precision=of_products(),
    )
    if hung := unending(task):
        pytest.fail(
            f"{implementation}: {given_law}: not run on {given_engine}: it did not end under {hung}", pytrace=False
        )
    found = check_isolated(task)
    tally.add(found.tally)
    tally.unclaimed, tally.stated = implementation.unclaimed, implementation.stated
    if found.violation is not None:
        known.add(found.violation)
        raise found.violation  # and that it held on something is for the plugin to see, as of every law
