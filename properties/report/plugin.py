"""All hooks of the suite's pytest plugin, in the order in which pytest calls them, and the fixtures of its tests.

`shardproof/plugin.py` loads it where the options of a run need it, the `conftest.py` of this checkout always.

Tests of the suite are imported by their names in the package `shardproof`, never by their paths: pytest would take
`properties/given/laws.py` for a module of a package `properties`, a second copy of `shardproof.properties`, and would
put the folder above it first on `sys.path`.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from rich.console import RenderableType

from shardproof.plugin import RUNNING, add_options, own, take_settings, terminal
from shardproof.properties.cases.reading import counted
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, Engine, engine_named
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.performance.tables import text_of
from shardproof.properties.performance.tpu_compiler import TpuCompiler, missing
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.checking import check_here, chosen_laws, conclude
from shardproof.properties.report.failures import replay
from shardproof.properties.report.failures.causes import LEFT_OUT, ReportedCauses, by_cause, group_text
from shardproof.properties.report.failures.evidence import evidence
from shardproof.properties.report.failures.replay import REPLAYED, ReplayItem
from shardproof.properties.report.failures.text import colour, report
from shardproof.properties.report.progress import RunProgress
from shardproof.properties.report.report import print_table
from shardproof.properties.report.session import (
    ACCELERATORS,
    COUNTED,
    DEFAULTS,
    FAILURE,
    GIVEN,
    GIVEN_TESTS,
    MEASURED,
    NEEDS,
    REQUIRED,
    cannot_run,
    header,
    properties_of,
    seed_in_force,
    set_up,
    tallies_of,
    workers_that_fit,
    write_reports,
)
from shardproof.properties.report.watch import WATCH, begin
from shardproof.properties.runner.judging import applicable_laws
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.profiles import DATABASE, seed_of, structures_in_force
from shardproof.properties.runner.tally import IDLE, Tally

ENDED = pytest.StashKey[str]()
"""Why the run ended early."""
HERE = Path(__file__).resolve().parents[1]
PACKAGE = __name__.removesuffix(".report.plugin")

FAILED = pytest.StashKey[list[Any]]()
"""The reports of all failures, while pytest has one for each cause."""
BUILT_IN = HERE / "suite"
"""The tests of this project's own implementations, which only a checkout has."""


def is_of_the_suite(path: Path) -> bool:
    """True if a file or folder is the suite's own, through any link."""
    path = path.resolve()
    return HERE in (path, *path.parents)


class SuiteModule(pytest.Module):
    """A file of tests of the suite."""

    def _getobj(self) -> object:
        parts = self.path.resolve().relative_to(HERE).with_suffix("").parts
        return importlib.import_module(".".join((PACKAGE, *parts)))

    def funcnamefilter(self, name: str) -> bool:
        """True if a function is a test, whatever the settings of the project in which pytest runs."""
        return name.startswith("test_")


pytest_addoption = add_options  # which does nothing where the installed plugin has added them
pytest_report_header = header
pytest_xdist_auto_num_workers = pytest.hookimpl(tryfirst=True, optionalhook=True)(workers_that_fit)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the devices before JAX's backends start, and registers the profiles before Hypothesis loads one."""
    take_settings(config)
    for name, value in DEFAULTS.items():
        if getattr(config.option, name) is None:
            setattr(config.option, name, value)
    replay.choose_failures(config)  # which may need more devices
    set_up(config)
    begin(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Shows a bar of the run, where workers share a terminal and pytest writes a dot for each test."""
    reporter, option = terminal(), session.config.option
    if reporter is not None and getattr(option, "numprocesses", None) and option.verbose == 0:
        session.config.pluginmanager.register(RunProgress(session, reporter))


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Collects a folder of the suite without importing it as a package."""
    return pytest.Dir.from_parent(parent, path=path) if is_of_the_suite(path) else None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Imports tests of the suite by one name, wherever the run was started and however the file was given."""
    if not is_of_the_suite(module_path):
        return None
    outside = parent.config.rootpath not in module_path.parents  # pytest has no name for what is not below its root
    inside = module_path.resolve().relative_to(HERE).parts
    nodeid = "/".join((*PACKAGE.split("."), *inside)) if outside else None
    return SuiteModule.from_parent(parent, path=module_path, nodeid=nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Gives the session the files of `--replay`, so that nothing beside one is imported."""
    report: Any = yield
    if isinstance(collector, pytest.Session):
        report.result += [ReplayItem.of(collector, path) for path in collector.config.stash[REPLAYED]]
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each function of `--impl` and engine."""
    if metafunc.definition.path.resolve() == GIVEN_TESTS.resolve() and "engine" in metafunc.fixturenames:
        pairs = [
            pytest.param(function, engine, id=f"{function}-{engine}", marks=pytest.mark.engine(engine))
            for function in metafunc.config.stash[GIVEN]
            for engine in ENGINES
            if applicable_laws(function, engine)
        ]
        metafunc.parametrize(("implementation", "engine"), pairs)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out other engines and implementations than those selected, and larger meshes; of a replay all others."""
    devices, engine = config.getoption("--devices"), config.getoption("--engine")
    selected: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker, runs_on = item.get_closest_marker("needs_devices"), item.get_closest_marker("engine")
        too_large = marker is not None and marker.args[0] > devices
        other = runs_on is not None and engine not in (runs_on.args[0], "all")
        # with --impl only the given functions are checked
        other |= item.path.resolve().parent == BUILT_IN and bool(config.stash[GIVEN])
        (dropped if too_large or other else selected).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = selected
    replay.leave_replays(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose devices or compiler are missing, unless they are required."""
    for name, option in REQUIRED.items():
        if item.get_closest_marker(name):
            item.user_properties.append((NEEDS, name))
            if not item.config.getoption(option) and (reason := cannot_run(name, item.config)):
                pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails one whose devices or compiler are required, and missing."""
    for name, option in REQUIRED.items():
        if item.get_closest_marker(name) and (reason := cannot_run(name, item.config)):
            pytest.fail(f"{option}: {reason}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Shows a violation in place of a traceback, and sends a test's tallies along with its report."""
    report: Any = yield
    if call.excinfo is not None and report.failed:
        show_violations(item, call.excinfo, report)
    counted = item.stash.get(COUNTED, []) if report.when == "teardown" else []
    for tally in counted:
        tally.failure = item.stash.get(FAILURE, {}).get(tally.law, {})
    report.shardproof = [tally.to_json() for tally in counted]
    if WATCH in item.config.stash:
        item.config.stash[WATCH].send(verified=report.shardproof)
    return report


def pytest_runtest_logstart(nodeid: str) -> None:
    """Sends which test begins, for the report of a run that it ends."""
    for config in RUNNING[-1:]:
        if WATCH in config.stash:
            config.stash[WATCH].send(begun=nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fails a run that did not do what its options require, and has pytest print one failure for each cause."""
    if session.config.pluginmanager.has_plugin("terminalreporter"):  # which workers have not
        if session.exitstatus == pytest.ExitCode.OK and unmet(session.config, tallies_of(session.config)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        show_causes(session.config, exitstatus)
        interrupted = "interrupted" if exitstatus == pytest.ExitCode.INTERRUPTED else ""
        if why := session.shouldfail or session.shouldstop or interrupted:
            why = str(why).replace("after 1 failures", "after 1 failure")
            session.config.stash[ENDED] = f"The run ended before its end: {why}"


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Prints what was verified and measured, between the failures and the list of all of them."""
    if FAILED in config.stash:  # pytest lists and counts all of them, after it has printed them
        terminalreporter.stats["failed"] = config.stash[FAILED]
    tallies = tallies_of(config)
    for problem in nothing_selected(config, exitstatus) or unmet(config, tallies):
        terminalreporter.write_line(f"ERROR: {problem}", red=True)
    if tallies:
        given = GIVEN not in config.stash or bool(config.stash[GIVEN])  # without the options: programs
        print_table(tallies, terminalreporter, given=given)
    if tallies and not any(tally.verifies or tally.outcome == "failed" for tally in tallies):
        terminalreporter.write_line("nothing was verified: no law held on any case", yellow=True)
    for line in left_out(terminalreporter):
        terminalreporter.write_line(line)
    write_reports(config, terminalreporter.write_line, config.stash.get(ENDED, ""))
    tables = properties_of(config, MEASURED)
    if tables:
        terminalreporter.section("what was measured", sep="=")
    for text in tables:
        terminalreporter.write_line(text)


def nothing_selected(config: pytest.Config, exitstatus: int) -> list[str]:
    """An error, if the options selected no test, or a file is missing."""
    if exitstatus != pytest.ExitCode.NO_TESTS_COLLECTED:
        return []
    files = [] if config.option.pyargs else [str(arg).partition("::")[0] for arg in config.args]
    for file in files:
        if not (config.invocation_params.dir / file).exists():
            return [f"{file}: no such file or folder"]
    chosen = {"-k": config.getoption("keyword"), "-m": config.getoption("markexpr")}
    by = ", ".join(f"{option} {text!r}" for option, text in chosen.items() if text)
    expected = f"{by}: nothing was checked: expected an expression that selects a test"
    return [expected] if by and not config.getoption("collectonly") else []


def unmet(config: pytest.Config, tallies: list[Tally]) -> list[str]:
    """The options whose demands were not met, a sentence each."""
    selected = {*ACCELERATORS} if config.option.collectonly else {*properties_of(config, NEEDS)}
    errors = [
        f"{REQUIRED[name]}: no test that needs {name.upper()} devices was selected"
        for name in ACCELERATORS
        if config.getoption(REQUIRED[name], default=False) and name not in selected
    ]
    given = config.stash.get(GIVEN, [])
    if not given:
        return errors
    # beside `--replay` these are only for import, and a run that has measured them did what it should
    checks = not config.getoption("--replay") and not config.option.collectonly and not properties_of(config, MEASURED)
    if checks and not tallies:
        names = ", ".join(map(str, given))
        errors.append(f"--impl: nothing checked {names}: no law was collected from {GIVEN_TESTS}")
    skipped = {(t.contract, t.implementation) for t in tallies if t.outcome in IDLE}
    verified = {(t.contract, t.implementation) for t in tallies if t.verifies and not LAWS[t.law].partial}
    inapplicable = [one for one in given if (one.contract.name, one.name) in skipped - verified]
    return errors + [
        f"--impl: no law that covers all cases held for {one}; the others do not apply" for one in inapplicable
    ]


def left_out(terminalreporter: pytest.TerminalReporter) -> list[str]:
    """The skips of laws that were left out since the values are wrong, which pytest alone does not print."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = [str(one[2]).removeprefix("Skipped: ") for one in skipped if isinstance(one, tuple)]  # of any plugin
    return [reason for reason in dict.fromkeys(reasons) if reason.startswith(LEFT_OUT)]


def violations_in(error: BaseException) -> Iterator[LawViolation]:
    """The violations in an exception, or in a group of them."""
    if isinstance(error, LawViolation):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from violations_in(part)


def show_violations(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException], made: Any) -> None:
    """Writes the script and the case of a failed law, and shows its text, or why none is replayed, for a traceback."""
    if isinstance(raised.value, NotAFailure):
        made.longrepr = raised.getrepr(style="value")
    found = list(violations_in(raised.value))
    if not found:
        return
    entries, wanted = [report(violation) for violation in found], bool(own(item.config, "report"))
    item.stash[FAILURE] = {
        one.law.name: {**entry, "evidence": evidence(one)} if wanted else entry
        for one, entry in zip(found, entries, strict=True)
    }
    # sent along, as the report is, where another process has the terminal
    made.shardproof_failures = entries
    named = [(f"shardproof {name}", one[name]) for one in entries for name in one if name != "text"]
    item.user_properties.extend(named)  # for JUnit XML, which has the text anyway
    made.user_properties.extend(named)
    text = AssertionError("\n\n".join(map(group_text, by_cause(entries))) + "\n")
    shown = pytest.ExceptionInfo.from_exception(text.with_traceback(raised.tb)).getrepr(style="value")
    if shown.reprcrash is not None:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        shown.reprcrash.message = found[0].headline + more
        shown.reprcrash.path, shown.reprcrash.lineno = os.fspath(item.path), item.location[1] or 0
    made.longrepr = shown


@dataclass
class Text:
    """The text of a failure, coloured where the terminal is; `reprcrash` has its place and headline."""

    text: str
    reprcrash: object

    def __str__(self) -> str:
        return self.text

    def toterminal(self, writer: Any) -> None:
        """Writes the text."""
        writer.line(colour(self.text) if writer.hasmarkup else self.text)
        writer.line()


def once_per_cause(reports: list[Any]) -> list[Any]:
    """The first report of each cause, with a line for each other violation of it; other failures as they are."""
    entries = [
        {**entry, "number": number}
        for number, one in enumerate(reports)
        for entry in getattr(one, "shardproof_failures", [{"cause": one.nodeid}])
    ]
    texts: dict[int, list[str]] = {}
    for group in by_cause(entries):
        texts.setdefault(group[0]["number"], []).extend([group_text(group)] if "text" in group[0] else [])
    for number, some in texts.items():
        if some:
            reports[number].longrepr = Text("\n\n".join(some) + "\n", reports[number].longrepr.reprcrash)
    return [reports[number] for number in texts]


def show_causes(config: pytest.Config, exitstatus: int) -> None:
    """Has pytest print one failure for each cause."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    printed = exitstatus != pytest.ExitCode.INTERNAL_ERROR and not config.getoption("no_summary")
    if printed and terminal.stats.get("failed"):
        config.stash[FAILED] = terminal.stats["failed"]
        terminal.stats["failed"] = once_per_cause(config.stash[FAILED])


@pytest.fixture(scope="session")
def devices(pytestconfig: pytest.Config) -> int:
    """The number of devices; fewer than requested are a failure."""
    wanted, found = pytestconfig.getoption("--devices"), len(jax.devices())
    if found < wanted:  # something made JAX's devices before this plugin could
        pytest.fail(f"--devices={wanted}: expected {counted(wanted, 'device')}, found {found}", pytrace=False)
    return int(wanted)


@pytest.fixture(scope="session")
def scope(devices: int, pytestconfig: pytest.Config) -> Scope:
    """The scope of cases on this machine."""
    return Scope(max_devices=devices, available=devices, large=pytestconfig.getoption("--mesh-devices"))


@pytest.fixture(scope="session")
def engines() -> dict[str, Engine]:
    """The engines, by name."""
    return {name: engine_named(name) for name in ENGINES}


@pytest.fixture(scope="session")
def laws(pytestconfig: pytest.Config) -> list[Law]:
    """The laws that `--laws` names."""
    return chosen_laws(pytestconfig.getoption("--laws"))


@pytest.fixture
def verify(
    implementation: Implementation, engine: str, laws: list[Law], scope: Scope, request: pytest.FixtureRequest
) -> Callable[[], None]:
    """Checks the laws on an implementation and an engine, on drawn cases; their tallies go into the report."""
    profile, run = settings(), seed_in_force(request.config)
    seed = None if run is None else seed_of(run, implementation, engine)

    def verify() -> None:
        __tracebackhide__ = True
        if not applicable_laws(implementation, engine, laws):
            names = ", ".join(law.name for law in laws)
            pytest.skip(f"no law applies to {implementation} on {engine}: {names}")
        folder = DATABASE / f"devices-{scope.available}" / f"{implementation}-{engine}"
        database = profile.database and DirectoryBasedExampleDatabase(folder)
        verdicts = check_here(
            implementation, engine, laws, ReportedCauses(), scope, max_examples=structures_in_force(),
            random_seed=seed, shrink=Phase.shrink in profile.phases, database=database,
        )  # fmt: skip
        request.node.stash[COUNTED] = [*verdicts.tallies.values()]
        conclude(verdicts, implementation)

    return verify


@pytest.fixture
def record_table(record_property: Callable[[str, object], None]) -> Callable[[RenderableType], None]:
    """A function whose table is printed at the end of the run, 160 columns wide."""
    return lambda table: record_property(MEASURED, text_of(table, 160))


@pytest.fixture(scope="session")
def tpu_compiler() -> Iterator[TpuCompiler | None]:
    """The compiler for all tests; None without libtpu, where a test that needs it fails before it runs."""
    with nullcontext() if missing() else TpuCompiler() as compiler:
        yield compiler
