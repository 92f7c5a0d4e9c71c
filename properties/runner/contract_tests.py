"""Tests of a contract with pytest: one for each of its implementations and engines."""

from collections.abc import Callable

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.programs.built_in import IMPLEMENTATIONS

Verify = Callable[[], None]
"""Checks every law on drawn cases; a test of a contract calls it."""


def of_contract(contract: str = "") -> pytest.MarkDecorator:
    """Runs a test that takes `verify` once for each implementation of a contract, or of all, and each engine.

    Example:
        >>> @of_contract("all_gather")
        ... def test_all_gather(verify):
        ...     verify()
    """
    found = [one for one in IMPLEMENTATIONS if contract in ("", one.contract.name)]
    if not found:
        raise ValueError(f"contract={contract!r}: expected one with implementations")
    first = {one.contract.name: one for one in reversed(found)}.values()
    parameters = [
        pytest.param(
            one,
            engine,
            id=f"{one.name if contract else one}-{engine}",
            marks=[pytest.mark.engine(engine), *([pytest.mark.smoke] if one in first else [])],
        )
        for one in found
        for engine in ENGINES
    ]
    return pytest.mark.parametrize(("implementation", "engine"), parameters)
