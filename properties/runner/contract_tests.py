"""A contract as a pytest test: of each of its implementations, on each engine."""

from collections.abc import Callable

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.programs.implementations import IMPLEMENTATIONS

Verify = Callable[[], None]
"""What a test of a contract calls: it asks every law on drawn cases."""


def of_contract(contract: str) -> Callable[[Verify], None]:
    """The test that runs once for each implementation of a contract and each engine.

    Example:
        >>> test_all_gather = of_contract("all_gather")

    Raises:
        ValueError: if the contract has no implementation.
    """
    pairs = [(one, engine) for one in IMPLEMENTATIONS if one.contract.name == contract for engine in ENGINES]
    if not pairs:
        raise ValueError(f"contract={contract!r}: expected one with implementations")

    def test(verify: Verify) -> None:
        verify()

    return pytest.mark.parametrize(
        ("implementation", "engine"),
        [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}", marks=pytest.mark.engine(pair[1])) for pair in pairs],
    )(test)
