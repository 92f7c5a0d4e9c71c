"""The fixtures of the suite's tests."""

from collections.abc import Callable, Iterator

import jax
import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, Engine, engine_named
from shardproof.properties.laws import Law
from shardproof.properties.performance import tpu_compiler as compiling
from shardproof.properties.programs.implementations import Implementation
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


@pytest.fixture(scope="session")
def tpu_compiler(pytestconfig: pytest.Config) -> Iterator[compiling.TpuCompiler]:
    """The compiler for all tests, which are skipped without libtpu, or fail where it is required."""
    if reason := compiling.missing():
        required = "--require-tpu-compiler"
        pytest.fail(f"{required}: {reason}", pytrace=False) if pytestconfig.getoption(required) else pytest.skip(reason)
    with compiling.TpuCompiler() as compiler:
        yield compiler
