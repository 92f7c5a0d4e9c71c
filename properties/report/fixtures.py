"""The fixtures of the suite's tests."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import jax
import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from rich.console import RenderableType

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, Engine, engine_named
from shardproof.properties.laws import Law
from shardproof.properties.performance.tables import text_of
from shardproof.properties.performance.tpu_compiler import TpuCompiler, missing
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.accelerators import MEASURED
from shardproof.properties.report.failures.causes import ReportedCauses
from shardproof.properties.report.session import COUNTED, seed_in_force
from shardproof.properties.report.verdicts import check_here, chosen_laws, conclude
from shardproof.properties.runner.judging import applicable_laws
from shardproof.properties.runner.search import DATABASE, seed_of, structures_in_force


@pytest.fixture(scope="session")
def devices(pytestconfig: pytest.Config) -> int:
    """The number of devices; fewer than requested are a failure."""
    wanted, found = pytestconfig.getoption("--devices"), len(jax.devices())
    if found < wanted:  # something made JAX's devices before this plugin could
        pytest.fail(f"--devices={wanted}: expected {wanted} devices, found {found}", pytrace=False)
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
