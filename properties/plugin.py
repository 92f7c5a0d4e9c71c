"""The pytest side of the suite: options, devices, header, and the report at the end."""

import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import Phase, is_hypothesis_test, seed, settings
from hypothesis.errors import InvalidArgument, Unsatisfiable

from shardproof.properties import profiles
from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.contract import FEATURES
from shardproof.properties.destinations import DestinationError, check_destination, write_somewhere
from shardproof.properties.engines import ENGINES, Engine, engine_named
from shardproof.properties.given import GivenError, parse_all
from shardproof.properties.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.judging import require_held
from shardproof.properties.laws.violation import LawViolation
from shardproof.properties.platforms import BACKENDS, TooFewDevices, check_devices
from shardproof.properties.report import FAILURE, print_table, report_text
from shardproof.properties.search import smallest
from shardproof.properties.tally import Tally
from shardproof.properties.verdict import Enough
from shardproof.properties.verification import LAWS

pytest_plugins = ("shardproof.properties.collecting", "shardproof.properties.failures.plugin")
TALLIES = pytest.StashKey[list[Tally]]()
GIVEN = pytest.StashKey[list[Implementation]]()
COUNTED = pytest.StashKey[Tally]()
OUTCOME = pytest.StashKey[str]()
GIVEN_TESTS = "test_given.py"
HERE = Path(__file__).parent
"""Where the tests of given functions are imported from: in a checkout, a link."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the README's table."""
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    group.addoption(
        "--devices",
        type=int,
        default=8,
        metavar="N",
        help="how many devices to verify on: virtual ones on cpu, the real ones otherwise (default: 8)",
    )
    group.addoption(
        "--platform",
        choices=tuple(BACKENDS),
        default="cpu",
        help="the platform to verify on (default: cpu)",
    )
    group.addoption(
        "--engine",
        choices=(*ENGINES, "all"),
        default="all",
        help="what runs the implementations: the NumPy interpreter, XLA, or both (default: all)",
    )
    group.addoption(
        "--mesh-devices",
        type=int,
        default=4096,
        metavar="N",
        help="the most devices of a mesh that is only simulated (default: 4096)",
    )
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="CONTRACT=MODULE:FUNCTION",
        help="check this function against its contract instead of the built-in ones; may be given more than once",
    )
    group.addoption(
        "--expect-communication",
        action="append",
        default=[],
        metavar="EXPRESSIONS",
        help="what the function of --impl sends, in members p, bytes n of the full vector, and bytes of a device's "
        "block of an operand or the result by its name (x, lhs, rhs, w_in, w_out, out), as in "
        "permute=p-1,bytes=(p-1)*n/p; after ;grad: what its reverse mode sends by itself, in the same terms. Where "
        "nothing must move (one member, empty blocks, whole turns, identities, operands that are the same everywhere) "
        "it may also send less, unless all of it begins with exactly: . The first belongs to the first --impl, and "
        "so on",
    )
    group.addoption(
        "--claims",
        action="append",
        default=[],
        metavar="NAMES",
        help="what the function of --impl supports beyond its contract's signature, so that it is drawn: all, or some "
        f"of {', '.join(FEATURES)}; the first belongs to the first --impl, and so on",
    )
    group.addoption(
        "--report",
        action="append",
        default=[],
        metavar="FILE",
        help="write the table of what was verified to FILE.json or FILE.md; may be given more than once",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the devices, before JAX's backends start, and registers the profiles, before Hypothesis loads one."""
    devices, platform = config.getoption("--devices"), config.getoption("--platform")
    if devices < 1:
        raise pytest.UsageError(f"--devices={devices}: expected at least 1")
    if config.getoption("--mesh-devices") < 17:
        raise pytest.UsageError(f"--mesh-devices={config.getoption('--mesh-devices')}: expected at least 17")
    for path in config.getoption("--report"):
        if not path.endswith((".json", ".md")):
            raise pytest.UsageError(f"--report={path}: expected a file name that ends in .json or .md")
        try:
            check_destination("--report", Path(path))
        except DestinationError as error:
            raise pytest.UsageError(str(error)) from None
    try:
        given = parse_all(*map(config.getoption, ("--impl", "--expect-communication", "--claims")))
    except GivenError as error:
        raise pytest.UsageError(str(error)) from None
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
    elif not hasattr(config, "workerinput"):
        try:
            check_devices(platform, devices)
        except TooFewDevices as error:
            raise pytest.UsageError(str(error)) from None
    jax.config.update("jax_platforms", BACKENDS[platform])
    profiles.register(devices)
    load_profile(config.getoption("--hypothesis-profile", default=None))
    config.stash[TALLIES] = []
    try:  # a module may use JAX when it is imported, so the devices come first
        config.stash[GIVEN] = [one.load() for one in given]
    except GivenError as error:
        raise pytest.UsageError(str(error)) from None
    if given and not config.getoption("--replay") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(HERE / GIVEN_TESTS)]  # wherever pytest runs, these are the tests that were asked for
    config.addinivalue_line("markers", "law(name, engine): the law that a test checks, and what runs it")
    config.addinivalue_line("markers", "needs_devices(n): a case on a fixed mesh of n devices; left out with fewer")


def load_profile(name: str | None) -> None:
    """Loads the profile that was asked for, or the default, before Hypothesis does, which ends in a traceback.

    Raises:
        pytest.UsageError: if there is no such profile.
    """
    chosen = name or ("ci" if os.environ.get("CI") else "dev")
    try:
        settings.load_profile(chosen)
    except InvalidArgument:
        known = ", ".join(profiles.NAMES)
        raise pytest.UsageError(f"--hypothesis-profile={chosen}: expected one of {known}") from None


def mark(law: str, engine: str) -> pytest.MarkDecorator:
    """Says of a test which law it checks, and what on."""
    return pytest.mark.law(law, engine)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per given function and law."""
    if "given_law" in metafunc.fixturenames:
        given = metafunc.config.stash[GIVEN]
        found = [
            pytest.param(function, law.name, engine, id=f"{function}-{law.name}-{engine}", marks=mark(law.name, engine))
            for function in given
            for law in LAWS.values()
            for engine in law.engines
        ]
        metafunc.parametrize(("implementation", "given_law", "given_engine"), found)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker per core, so long as each has 3 GiB: an XLA compilation needs that at its worst."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not told on this system
        return cores
    return max(1, min(cores, memory // (3 * 2**30)))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is verified, on what, with which seed."""
    profile = settings.get_current_profile_name()
    seed = config.getoption("--hypothesis-seed", default=None)
    if seed is None:
        seed = "fixed by the profile" if settings().derandomize else "new in every run"
    contracts = sorted({i.contract for i in config.stash[GIVEN] or IMPLEMENTATIONS})
    devices, platform = config.getoption("--devices"), config.getoption("--platform")
    return [
        f"shardproof: jax {jax.__version__}, jaxlib {version('jaxlib')}, {devices} {platform} devices",
        f"profile: {profile} ({settings().max_examples} structures per law), seed: {seed}",
        f"contracts: {', '.join(contracts)}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out other engines and implementations than what was asked for, and fixed meshes that are larger."""
    devices, engine = config.getoption("--devices"), config.getoption("--engine")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker, law = item.get_closest_marker("needs_devices"), item.get_closest_marker("law")
        too_large = marker is not None and marker.args[0] > devices
        other = law is not None and engine not in (law.args[1], "all")
        # with --impl only the given functions are checked, without it only the built-in ones
        own = item.path.resolve().parent == HERE.resolve()
        other |= own and (item.path.name == GIVEN_TESTS) != bool(config.stash[GIVEN])
        (dropped if too_large or other else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(scope="session")
def devices(pytestconfig: pytest.Config) -> int:
    """How many devices there are, which is as many as were asked for.

    Too few is a failure: what was asked for would not be verified.
    """
    wanted, found = pytestconfig.getoption("--devices"), len(jax.devices())
    if found < wanted:  # something made JAX's devices before this plugin could
        pytest.fail(f"--devices={wanted}: expected {wanted} devices, found {found}", pytrace=False)
    return int(wanted)


@pytest.fixture(scope="session")
def scope(devices: int, pytestconfig: pytest.Config) -> Scope:
    """What cases may use on this machine."""
    return Scope(max_devices=devices, available=devices, large=pytestconfig.getoption("--mesh-devices"))


@pytest.fixture(scope="session")
def engines() -> dict[str, Engine]:
    """What runs the implementations, by name."""
    return {name: engine_named(name) for name in ENGINES}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Takes what Hypothesis has found and shrunk to the smallest mesh, with data that shows the mistake.

    Under one `--hypothesis-seed` each implementation, law and engine draws cases of its own.
    """
    law, run = pyfuncitem.get_closest_marker("law"), pyfuncitem.config.getoption("--hypothesis-seed", default=None)
    if law is not None and run is not None and is_hypothesis_test(pyfuncitem.obj):
        seed(profiles.seed_of(run, pyfuncitem.funcargs.get("implementation"), *law.args))(pyfuncitem.obj)
    try:
        result = yield
    except Unsatisfiable:  # everything drawn was rejected
        if pyfuncitem.get_closest_marker("law") is not None:
            _require_held(pyfuncitem)  # says what became of it
        raise
    except Enough:
        result = None
    except LawViolation as violation:
        drawn = is_hypothesis_test(pyfuncitem.obj) and pyfuncitem.get_closest_marker("law") is not None
        if not drawn or Phase.shrink not in settings().phases:
            raise
        given: dict[str, Any] = pyfuncitem.funcargs
        raise smallest(violation, given["scope"], given["engines"][violation.engine]) from violation.__cause__
    if pyfuncitem.get_closest_marker("law") is not None:
        _require_held(pyfuncitem)
    return result


def _require_held(item: pytest.Function) -> None:
    """A law that was drawn cases for held on one; skips the test if it does not apply."""
    law = item.get_closest_marker("law")
    assert law is not None
    given: dict[str, Any] = item.funcargs
    if {"tally", "implementation"} <= set(given) and law.args[0] in LAWS:
        reason = require_held(LAWS[law.args[0]], given["implementation"], given["tally"])
        if reason:
            given["tally"].skip(reason)
            pytest.skip(reason)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Counts what a test verifies; travels to the report with the test's own result."""
    implementation = request.getfixturevalue("implementation")
    law, engine = request.node.get_closest_marker("law").args
    counted = Tally(implementation.contract, implementation.name, law, engine)
    start = time.perf_counter()
    yield counted
    counted.seconds = time.perf_counter() - start
    request.node.stash[COUNTED] = counted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Sends what a test counted along with its last report, which comes from whichever worker ran it."""
    report = yield
    if call.when == "call":
        item.stash[OUTCOME] = report.outcome
    if call.when == "teardown" and COUNTED in item.stash:
        counted = item.stash[COUNTED]
        counted.outcome = item.stash.get(OUTCOME, "failed")
        counted.failure = item.stash.get(FAILURE, {})
        report.shardproof = counted.to_json()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Kept for `pytest_terminal_summary`."""
    if _config is not None and hasattr(report, "shardproof"):
        _config.stash[TALLIES].append(Tally.from_json(report.shardproof))


_config: pytest.Config | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remembers where the reports of this run go."""
    global _config
    _config = session.config


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that was to check a given function and checked none is an error."""
    config = session.config
    if must_check(config) and not hasattr(config, "workerinput") and session.exitstatus == pytest.ExitCode.OK:
        if not config.stash[TALLIES]:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif inapplicable(config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def must_check(config: pytest.Config) -> bool:
    """Whether laws are to be checked of given functions: beside `--replay` these are only what may be imported."""
    return bool(config.stash[GIVEN]) and not config.option.collectonly and not config.getoption("--replay")


def inapplicable(config: pytest.Config) -> list[str]:
    """The given functions that a law was skipped for because it does not apply, and that nothing else held of."""
    tallies: list[Tally] = config.stash[TALLIES]
    skipped = {(t.contract, t.implementation) for t in tallies if t.outcome == "skipped"}
    verified = {(t.contract, t.implementation) for t in tallies if t.verifies and not LAWS[t.law].partial}
    return [str(one) for one in config.stash[GIVEN] if (one.contract, one.name) in skipped - verified]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was verified, and writes it where `--report` says."""
    tallies = config.stash[TALLIES]
    if must_check(config) and not tallies:
        names = ", ".join(str(one) for one in config.stash[GIVEN])
        where = HERE / GIVEN_TESTS
        terminalreporter.write_line(
            f"ERROR: --impl: nothing checked {names}: no law was collected from {where}", red=True
        )
    for name in inapplicable(config):
        told = f"ERROR: --impl: nothing checked {name}: laws that do not apply, and none of all cases that held"
        terminalreporter.write_line(told, red=True)
    if tallies:
        print_table(tallies, terminalreporter, given=bool(config.stash[GIVEN]))
    for path in config.getoption("--report"):
        text = report_text(path, tallies, pytest_report_header(config))
        write_somewhere(Path(path), text, terminalreporter.write_line)
