"""The functions given with `--impl`, each against every law of its contract, in a process of its own."""

import pytest
from hypothesis import settings

from properties.contracts import Scope
from properties.engines import Engine
from properties.implementations import Implementation
from properties.isolation import Task, check_isolated
from properties.tally import Tally


def test_given(
    implementation: Implementation,
    given_law: str,
    scope: Scope,
    engine: Engine,
    tally: Tally,
    pytestconfig: pytest.Config,
) -> None:
    """A given function satisfies the law."""
    profile = settings()
    seed = pytestconfig.getoption("--hypothesis-seed", default=None)
    task = Task(
        given=implementation.given,
        law=given_law,
        engine=engine.name,
        scope=scope,
        max_examples=profile.max_examples,
        random_seed=None if seed in (None, "random") else int(seed),
        platform=pytestconfig.getoption("--platform"),
    )
    found = check_isolated(task)
    tally.add(found.tally)
    if found.violation is not None:
        raise found.violation
