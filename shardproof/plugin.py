"""The pytest plugin that is there wherever shardproof is installed: it loads the suite's own if a run asks for it.

A run that does not ask is as if shardproof were not installed: no option, marker, fixture, header or profile is added,
and neither JAX nor Hypothesis is imported. One that has tests made by `program_test` gets the reports of what they
check, and nothing else.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

SUITE = "shardproof.properties.report.plugin"
ASKING = ("--impl", "--replay", "--keep-regression", "--claims", "--expect-communication", "--expect-overlap")
"""The options that ask for the suite. The others belong to these: alone they mean nothing outside of its checkout."""
OPTIONS = (
    *ASKING,
    "--devices",
    "--engine",
    "--laws",
    "--mesh-devices",
    "--platform",
    "--profile",
    "--report",
)
"""All of the suite's options that have a value."""
FLAGS = ("--require-gpu", "--require-tpu", "--require-tpu-compiler")
"""Those that have none."""
TESTS = Path(__file__).parent / "properties"
REPORTS = ("shardproof.properties.report.results", "shardproof.properties.report.failures.showing")
"""What shows and counts what tests check, without any option."""
MADE_TEST = "shardproof_program_test"
"""What `program_test` marks its tests with."""
COUNTED = "shardproof"
"""What their reports have that tell what was counted."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: Sequence[str]
) -> Iterator[None]:
    """Loads the suite, once the run's own plugins and conftest.py have said which options are theirs."""
    asked = [name for name in ASKING if any(text.partition("=")[0] == name for text in args)]
    if asked:
        _check_settings(early_config, args)
        _find_conftests(early_config, args)
    result = yield
    if not asked or early_config.pluginmanager.has_plugin(SUITE):
        return result
    known = vars(parser.parse_known_args(args))
    taken = [name for name in (*OPTIONS, *FLAGS) if name.strip("-").replace("-", "_") in known]
    if set(asked) <= set(taken):  # so it is another's option that was given
        return result
    if taken:
        raise pytest.UsageError(
            f"{asked[0]}: shardproof cannot add its option {taken[0]}, because another plugin or a conftest.py has one "
            "of that name: expected a run without it, by -p no:NAME or --noconftest"
        )
    early_config.pluginmanager.import_plugin(SUITE)
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Waits for tests that `program_test` made."""
    config.pluginmanager.register(Waiting(config), "shardproof waiting")


class Waiting:
    """Loads the reports where there is something to report: a test, or, of a worker's, what comes of it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Looks for tests that `program_test` made."""
        if hasattr(getattr(item, "function", None), MADE_TEST):
            self.load()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Looks for what such a test sent from a worker, and hands on the first, for which the others are too late."""
        ours = hasattr(report, COUNTED) or any(
            str(name).startswith("shardproof ") for name, _ in report.user_properties
        )
        if ours:
            for plugin in self.load():
                getattr(plugin, "pytest_runtest_logreport", lambda report: None)(report)

    def load(self) -> list[object]:
        """Registers what is not there yet; gives that."""
        manager = self.config.pluginmanager
        if manager.has_plugin(SUITE) or manager.has_plugin(REPORTS[0]):
            return []
        before = set(manager.get_plugins())
        for name in REPORTS:
            manager.register(import_module(name), name)
        return [plugin for plugin in manager.get_plugins() if plugin not in before]


def _check_settings(early_config: pytest.Config, args: Sequence[str]) -> None:
    """The settings are those of the user's project: pytest, which knew no option `--replay`, looked beside FILE too.

    Raises:
        pytest.UsageError: if pytest found some there.
    """
    found, here = early_config.inipath, early_config.invocation_params.dir
    named = early_config.known_args_namespace.inifilename
    if "--replay" in args and found and not named and found.parent not in (here, *here.parents):
        raise pytest.UsageError(
            f"--replay: pytest has taken its settings from {found}, which is neither in the working directory nor "
            "above it: expected --replay=FILE, with the equals sign, so that it looks for none beside FILE"
        )


def _find_conftests(early_config: pytest.Config, args: Sequence[str]) -> None:
    """Looks for conftest.py in the user's project alone: not where the suite is, nor beside a file that is replayed."""
    namespace = early_config.known_args_namespace
    values = {value for name, value in pairwise(args) if name in OPTIONS}
    namespace.file_or_dir = [path for path in namespace.file_or_dir if path not in values]
    if early_config.rootpath not in TESTS.parents:
        namespace.confcutdir = str(TESTS)
