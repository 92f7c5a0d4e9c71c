"""The pytest side of the suite: which tests there are, what they run on, and what becomes of what they raise."""

import time
from collections.abc import Callable

import jax
import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, Engine, engine_named
from shardproof.properties.laws import Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.asking import ask, chosen_laws, conclude, local_search
from shardproof.properties.report.failures.causes import Told
from shardproof.properties.report.session import COUNTED, GIVEN, GIVEN_MEASURED, GIVEN_TESTS, seed_in_force
from shardproof.properties.runner import profiles
from shardproof.properties.runner.judging import asked

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per given function and engine."""
    if metafunc.definition.path.resolve() == GIVEN_TESTS.resolve() and "engine" in metafunc.fixturenames:
        pairs = [
            pytest.param(function, engine, id=f"{function}-{engine}", marks=pytest.mark.engine(engine))
            for function in metafunc.config.stash[GIVEN]
            for engine in ENGINES
            if asked(function, engine)
        ]
        metafunc.parametrize(("implementation", "engine"), pairs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out other engines and implementations than what was asked for, and fixed meshes that are larger."""
    devices, engine = config.getoption("--devices"), config.getoption("--engine")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker, runs_on = item.get_closest_marker("needs_devices"), item.get_closest_marker("engine")
        too_large = marker is not None and marker.args[0] > devices
        other = runs_on is not None and engine not in (runs_on.args[0], "all")
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


@pytest.fixture(scope="session")
def laws(pytestconfig: pytest.Config) -> list[Law]:
    """The laws that are asked."""
    return chosen_laws(pytestconfig.getoption("--laws"))


@pytest.fixture
def verify(
    implementation: Implementation, engine: str, laws: list[Law], scope: Scope, request: pytest.FixtureRequest
) -> Callable[[], None]:
    """Asks the laws of an implementation on an engine, on drawn cases; what they counted goes into the report."""
    profile = settings()
    seed = seed_in_force(request.config)
    if seed is not None:
        seed = profiles.seed_of(seed, implementation, engine)
    elif not profile.derandomize:
        seed = time.time_ns() % 2**32

    def verify() -> None:
        __tracebackhide__ = True
        if not asked(implementation, engine, laws):
            pytest.skip(f"nothing to ask of {implementation} on {engine}: {', '.join(law.name for law in laws)}")
        folder = profiles.DATABASE / f"devices-{scope.available}" / f"{implementation}-{engine}"
        kept = profile.database and DirectoryBasedExampleDatabase(folder)
        shrinks = Phase.shrink in profile.phases
        find = local_search(implementation, engine, scope, random_seed=seed, shrink=shrinks, database=kept)
        start = time.perf_counter()
        answers = ask(implementation, engine, laws, Told(), find, max_examples=profiles.structures_in_force())
        request.node.stash[COUNTED] = [*answers.tallies.values()]
        request.node.stash[COUNTED][0].seconds = time.perf_counter() - start
        conclude(answers, implementation)

    return verify
