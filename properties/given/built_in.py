"""The implementations of this project, each against every law: for where `properties/suite` is not installed."""

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.runner.contract_tests import Verify


@pytest.mark.parametrize(
    ("implementation", "engine"),
    [
        pytest.param(one, engine, id=f"{one}-{engine}", marks=pytest.mark.engine(engine))
        for one in IMPLEMENTATIONS
        for engine in ENGINES
    ],
)
def test_built_in(verify: Verify) -> None:
    """An implementation satisfies every law."""
    verify()
