"""The pytest plugin that is there wherever shardproof is installed: it loads the suite's own if a run asks for it.

pytest imports it in every project, so it is apart from the rest: a run that does not ask is as if shardproof were not
installed, with no option, marker, fixture, header or profile of ours, and neither JAX nor Hypothesis imported. One that
has tests made by `program_test` gets the reports of what they check, and nothing else.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

SUITE, REPORTS = "shardproof.properties.report.plugin", "shardproof reports"
ASKING = ("--impl", "--replay", "--keep-regression", "--claims", "--expect-communication", "--expect-overlap")
"""The options that ask for the suite. The others belong to these: alone they mean nothing outside of its checkout."""
FILES = ("--replay", "--keep-regression", "--report", "--profile")
"""The options whose values are files or folders, which pytest takes for tests until it knows the options."""
TESTS = Path(__file__).parent / "properties"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: Sequence[str]
) -> Iterator[None]:
    """Loads the suite, once the run's own plugins and conftest.py have said which options are theirs."""
    asked = [name for name in ASKING if any(text.partition("=")[0] == name for text in args)]
    if asked:
        _look_in_the_project_alone(early_config, args)
    result = yield
    theirs = vars(parser.parse_known_args(args))
    if any(name.strip("-").replace("-", "_") not in theirs for name in asked):
        early_config.pluginmanager.import_plugin(SUITE)
    return result


def pytest_itemcollected(item: pytest.Item) -> None:
    """Loads the reports for the first test that `program_test` made, which marks it with an attribute."""
    if hasattr(getattr(item, "function", None), "shardproof_program_test"):
        _load_reports(item.config)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> None:
    """Loads them in a process that collects nothing, once a worker sends a report of such a test."""
    if hasattr(report, "shardproof"):
        _load_reports(config)


def _load_reports(config: pytest.Config) -> None:
    """Registers the hooks that report what tests check, unless they are there."""
    manager = config.pluginmanager
    if not manager.has_plugin(SUITE) and not manager.has_plugin(REPORTS):
        suite = import_module(SUITE)
        manager.register(SimpleNamespace(**{name: getattr(suite, name) for name in suite.REPORTING}), REPORTS)


def _look_in_the_project_alone(early_config: pytest.Config, args: Sequence[str]) -> None:
    """Takes settings and conftest.py of the user's project, not those where the suite is or beside a file in `FILES`.

    Raises:
        pytest.UsageError: if pytest has found settings beside a file.
    """
    found, here, namespace = early_config.inipath, early_config.invocation_params.dir, early_config.known_args_namespace
    if "--replay" in args and found and not namespace.inifilename and found.parent not in (here, *here.parents):
        raise pytest.UsageError(
            f"--replay: pytest has taken its settings from {found}, which is neither in the working directory nor "
            "above it: expected --replay=FILE, with the equals sign, so that it looks for none beside FILE"
        )
    values = {value for name, value in pairwise(args) if name in FILES}
    namespace.file_or_dir = [path for path in namespace.file_or_dir if path not in values]
    if early_config.rootpath not in TESTS.parents:
        namespace.confcutdir = str(TESTS)
