"""All hooks of the suite's pytest plugin, in the order in which pytest calls them; the work is done where they point.

`shardproof/plugin.py` loads it where a run asks for it, the `conftest.py` of this checkout always.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.report import accelerators, collecting, options, results, session
from shardproof.properties.report.failures import replay, showing

pytest_plugins = ("shardproof.properties.report.fixtures",)

REPORTING = ("pytest_runtest_makereport", "pytest_sessionfinish", "pytest_terminal_summary")
"""The hooks that tests made by `program_test` need, in any project and without an option."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of `pytest --help`."""
    options.add_options(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Keeps a regression instead of running tests, if that is asked for."""
    return replay.keep_regression(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the devices before JAX's backends start, and registers the profiles before Hypothesis loads one."""
    replay.choose_failures(config)  # which may need more devices
    options.set_up(config)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Gives each worker enough memory."""
    return options.workers_that_fit()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says what is verified, on what."""
    return session.header(config)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Takes a folder of the suite for a folder: a package pytest would import, by its path."""
    return pytest.Dir.from_parent(parent, path=path) if collecting.is_of_the_suite(path) else None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Imports tests of the suite by their names."""
    return collecting.make_module(module_path, parent) if collecting.is_of_the_suite(module_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Gives the session the files of `--replay`, so that nothing that lies beside one is imported."""
    report: Any = yield
    if isinstance(collector, pytest.Session):
        report.result = [*report.result, *replay.replay_files(collector)]
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each function of `--impl` and engine."""
    collecting.parametrize_given(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not asked for; of a replay nothing else runs."""
    collecting.deselect(config, items)
    replay.leave_replays(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose devices or compiler are missing, unless they are required."""
    accelerators.skip_if_missing(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails one whose devices or compiler are required, and missing."""
    accelerators.fail_if_missing(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Shows a violation in place of a traceback, and sends what a test counted along with its report."""
    report: Any = yield
    showing.show_violations(item, call, report)
    results.send_tallies(item, report)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fails a run that did not do what was asked for, and has pytest print one failure for each cause."""
    if session.config.pluginmanager.has_plugin("terminalreporter"):  # which workers have not
        results.require_results(session)
        showing.show_causes(session.config, exitstatus)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was verified and measured, after the failures and before the list of them, which has all."""
    showing.restore_failures(terminalreporter)
    results.write_results(terminalreporter)
    accelerators.write_tables(terminalreporter)
