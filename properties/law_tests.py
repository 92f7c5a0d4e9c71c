"""A law as a pytest test over implementations."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.contracts import Scope
from properties.engines import Engine
from properties.implementations import Implementation
from properties.tally import Tally
from properties.verification import LAWS, verify


def law_test(name: str, implementations: Sequence[Implementation]) -> Callable[..., None]:
    """The test `test_<name>` that checks a law on drawn cases of each implementation.

    It gets the law's share of the examples of the Hypothesis profile that is in force.
    """
    law = LAWS[name]

    def test(implementation: Implementation, scope: Scope, engine: Engine, tally: Tally, data: st.DataObject) -> None:
        verify(law, implementation, data.draw(law.cases(implementation, scope), label="case"), engine, tally)

    test.__name__ = test.__qualname__ = f"test_{name.replace(' ', '_')}"
    test.__doc__ = law.sentence
    examples = max(2, round(settings().max_examples * law.share))
    # the tally is one per test, not per case: it adds up what all of them checked
    allowed = [*settings().suppress_health_check, HealthCheck.function_scoped_fixture]
    decorated = settings(max_examples=examples, suppress_health_check=allowed)(given(data=st.data())(test))
    return pytest.mark.parametrize("implementation", implementations, ids=str)(decorated)
