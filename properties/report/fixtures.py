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
from shardproof.properties.report.asking import ask, chosen_laws, conclude, local_search
from shardproof.properties.report.failures.causes import Told
from shardproof.properties.report.progress import Progress
from shardproof.properties.report.session import COUNTED, seed_in_force
from shardproof.properties.runner.judging import asked
from shardproof.properties.runner.search import DATABASE, compiled_of, seed_of, structures_in_force

WIDTH = 160
"""How many columns a table of what was measured has."""


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
    profile, run = settings(), seed_in_force(request.config)
    seed = None if run is None else seed_of(run, implementation, engine)

    def verify() -> None:
        __tracebackhide__ = True
        if not asked(implementation, engine, laws):
            pytest.skip(f"nothing to ask of {implementation} on {engine}: {', '.join(law.name for law in laws)}")
        folder = DATABASE / f"devices-{scope.available}" / f"{implementation}-{engine}"
        kept = profile.database and DirectoryBasedExampleDatabase(folder)
        shrinks = Phase.shrink in profile.phases
        drawn = structures_in_force()
        with Progress(f"check {implementation}", 1, []) as progress:
            progress.engine(engine, drawn if engine == "simulate" else compiled_of(drawn))
            how = {"random_seed": seed, "shrink": shrinks, "database": kept, "before": progress.before}
            find = local_search(implementation, engine, scope, **how)
            answers = ask(implementation, engine, laws, Told(), find, max_examples=drawn, tell=progress.case)
        request.node.stash[COUNTED] = [*answers.tallies.values()]
        conclude(answers, implementation)

    return verify


@pytest.fixture
def record_table(record_property: Callable[[str, object], None]) -> Callable[[RenderableType], None]:
    """Takes a table that is printed at the end of the run."""
    return lambda table: record_property(MEASURED, text_of(table, WIDTH))


@pytest.fixture(scope="session")
def tpu_compiler() -> Iterator[TpuCompiler | None]:
    """The compiler that all tests share; None without libtpu, where a test that needs it fails before it runs."""
    with nullcontext() if missing() else TpuCompiler() as compiler:
        yield compiler
