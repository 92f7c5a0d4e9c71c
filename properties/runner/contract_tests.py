"""A contract as a pytest test: of each of its implementations, on each engine."""

from collections.abc import Callable

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.programs.built_in import IMPLEMENTATIONS

Verify = Callable[[], None]
"""What a test of a contract calls: it asks every law on drawn cases."""


def of_contract(contract: str) -> pytest.MarkDecorator:
    """Runs a test that takes `verify` once for each implementation of a contract and each engine.

    Example:
        >>> @of_contract("all_gather")
        ... def test_all_gather(verify):
        ...     verify()

    Raises:
        ValueError: if the contract has no implementation.
    """
    found = [one for one in IMPLEMENTATIONS if one.contract.name == contract]
    if not found:
        raise ValueError(f"contract={contract!r}: expected one with implementations")
    pairs = [(one, engine) for one in found for engine in ENGINES]
    return pytest.mark.parametrize(
        ("implementation", "engine"),
        [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}", marks=pytest.mark.engine(pair[1])) for pair in pairs],
    )
