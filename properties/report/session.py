"""What the parts of the pytest plugin share: the given functions, where their tests are, and the header.

It is no plugin itself: pytest rewrites the asserts of a plugin, and will not if another has imported it before.
"""

from importlib.metadata import version
from pathlib import Path

import jax
import pytest
from hypothesis import settings

from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.runner.profiles import compiled_of, structures_in_force
from shardproof.properties.runner.tally import Tally

COUNTED = pytest.StashKey[list[Tally]]()
"""What a test counted, by law."""

TABLES = pytest.StashKey[list[str]]()
"""The tables that are printed of what was measured."""

MADE_TEST = "shardproof_program_test"
"""What a test is marked with that `program_test` made: by an attribute, since a project's markers are its own."""

GIVEN = pytest.StashKey[list[Implementation]]()
"""The functions that `--impl` names."""

GIVEN_TESTS = Path(__file__).parents[1] / "suite" / "test_given.py"
"""The tests of given functions; in a checkout, reached by a link."""

GIVEN_MEASURED = GIVEN_TESTS.with_name("test_given_performance.py")
"""The tests that measure given functions, on an accelerator."""


def seed_in_force(config: pytest.Config) -> int | None:
    """The seed that Hypothesis was given, if it was."""
    seed = config.getoption("--hypothesis-seed", default=None)
    return None if seed in (None, "random") else int(seed)


def header(config: pytest.Config) -> list[str]:
    """What is verified, on what, with which seed."""
    profile = settings.get_current_profile_name()
    seed = config.getoption("--hypothesis-seed", default=None)
    if seed is None:
        seed = "fixed by the profile" if settings().derandomize else "new in every run"
    contracts = sorted({i.contract.name for i in config.stash[GIVEN] or IMPLEMENTATIONS})
    devices, platform = config.getoption("--devices"), config.getoption("--platform")
    drawn = structures_in_force()
    return [
        f"shardproof: jax {jax.__version__}, jaxlib {version('jaxlib')}, {devices} {platform} devices",
        f"profile: {profile} ({drawn} structures of each implementation, {compiled_of(drawn)} compiled), seed: {seed}",
        f"contracts: {', '.join(contracts)}",
    ]
