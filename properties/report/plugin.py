"""The pytest side of the suite: which tests there are, what they run on, and what becomes of what they raise."""

import time
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from hypothesis import Phase, is_hypothesis_test, seed, settings
from hypothesis.errors import FlakyFailure, Unsatisfiable

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, Engine, engine_named
from shardproof.properties.laws.law import LAWS
from shardproof.properties.report.session import COUNTED, GIVEN, GIVEN_MEASURED, GIVEN_TESTS
from shardproof.properties.runner import profiles
from shardproof.properties.runner.judging import require_held
from shardproof.properties.runner.search import smallest
from shardproof.properties.runner.tally import Enough, Tally
from shardproof.properties.runner.violation import LawViolation, first_of

pytest_plugins = (
    "shardproof.properties.report.collecting",
    "shardproof.properties.report.options",  # the first of those that have options: it names their group
    "shardproof.properties.performance.measured.accelerators",
    "shardproof.properties.performance.measured.compiling",
    "shardproof.properties.report.results",
    "shardproof.properties.report.failures.plugin",
    "shardproof.properties.report.failures.showing",
)

OF_GIVEN = (GIVEN_TESTS.name, GIVEN_MEASURED.name)


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
            for engine in law.engines_for(function)
        ]
        metafunc.parametrize(("implementation", "given_law", "given_engine"), found)


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
        own = item.path.resolve().parent == GIVEN_TESTS.resolve().parent
        other |= own and (item.path.name in OF_GIVEN) != bool(config.stash[GIVEN])
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
    except FlakyFailure as failure:
        violation = first_of(failure)
        raise violation from violation.__cause__
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
