"""Tests of a contract with pytest: one for each of its implementations and engines."""

from collections.abc import Callable

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.programs.built_in import IMPLEMENTATIONS

Verify = Callable[[], None]
"""Checks every law on drawn cases; a test of a contract calls it."""


def of_contract(contract: str) -> pytest.MarkDecorator:
    """Runs a test that takes `verify` once for each implementation of a contract and each engine.

    Example:
        >>> @of_contract("all_gather")
        ... def test_all_gather(verify):
        ...     verify()
    """
    pairs = [(one, engine) for one in IMPLEMENTATIONS if one.contract.name == contract for engine in ENGINES]
    if not pairs:
        raise ValueError(f"contract={contract!r}: expected one with implementations")
    return pytest.mark.parametrize(
        ("implementation", "engine"),
        [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}", marks=pytest.mark.engine(pair[1])) for pair in pairs],
    )
