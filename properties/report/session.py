"""What the parts of the pytest plugin share: the given functions, where their tests are, reports, and the header."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings

from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.search import compiled_of, structures_in_force
from shardproof.properties.runner.tally import Tally

COUNTED = pytest.StashKey[list[Tally]]()
"""What a test counted, by law."""

MADE_TEST = "shardproof_program_test"
"""What a test is marked with that `program_test` made: by an attribute, since a project's markers are its own."""

GIVEN = pytest.StashKey[list[Implementation]]()
"""The functions that `--impl` names."""

GIVEN_TESTS = Path(__file__).parents[1] / "given" / "laws.py"
"""The tests of given functions; in a checkout, reached by a link."""

GIVEN_MEASURED = GIVEN_TESTS.with_name("performance.py")
"""The tests that measure given functions, on an accelerator."""


def seed_in_force(config: pytest.Config) -> int | None:
    """The seed that Hypothesis was given, if it was."""
    seed = config.getoption("--hypothesis-seed", default=None)
    return None if seed in (None, "random") else int(seed)


def reports_of(config: pytest.Config) -> list[Any]:
    """The reports of all tests, whichever process ran them, in the process that has the terminal."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    return [one for some in terminal.stats.values() for one in some]


def properties_of(config: pytest.Config, wanted: str) -> list[str]:
    """What tests that are over have as a property."""
    ended = [one.user_properties for one in reports_of(config) if getattr(one, "when", "") == "teardown"]
    return [str(value) for properties in ended for name, value in properties if name == wanted]


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
