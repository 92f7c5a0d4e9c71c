"""Tests that compile for TPU topologies: skipped without the TPU's compiler, or failed where that was forbidden.

`@pytest.mark.tpu_compiler` needs libtpu and no TPU. All tests of a process share one that compiles, and what it has
compiled.
"""

from collections.abc import Iterator

import pytest

from shardproof.properties.performance.tpu_compiler import Compiled, NotCompiled, Request, TpuCompiler, missing

MARKER, REQUIRED = "tpu_compiler", "--require-tpu-compiler"


class Compiling:
    """One compiler, started when it is first asked, and what it has compiled by what was asked for."""

    def __init__(self) -> None:
        self._compiler: TpuCompiler | None = None
        self._known: dict[str, Compiled | NotCompiled] = {}

    def compile(self, request: Request) -> Compiled:
        """What becomes of a program.

        Raises:
            NotCompiled: if it cannot be compiled.
            NoTpuCompiler: without libtpu.
        """
        key = str(request.to_json())
        if key not in self._known:
            self._compiler = self._compiler or TpuCompiler()
            try:
                self._known[key] = self._compiler.compile(request)
            except NotCompiled as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, NotCompiled):
            raise found
        return found

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self._compiler is not None:
            self._compiler.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that forbids to leave these tests out."""
    parser.getgroup("shardproof", "shardproof: verification of distributed JAX").addoption(
        REQUIRED,
        action="store_true",
        help="tests that compile for TPU topologies fail without libtpu, where otherwise they are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known, also where the suite runs in another project."""
    config.addinivalue_line("markers", f"{MARKER}: compiles for TPU topologies, with libtpu, and needs no TPU")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that has no compiler, unless one is required."""
    if item.get_closest_marker(MARKER) and not item.config.getoption(REQUIRED) and (reason := missing()):
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fails a test that has no compiler where one is required."""
    if item.get_closest_marker(MARKER) and (reason := missing()):
        pytest.fail(f"{REQUIRED}: {reason}", pytrace=False)


@pytest.fixture(scope="session")
def tpu_compiler() -> Iterator[Compiling]:
    """The compiler that all tests share."""
    compiling = Compiling()
    yield compiling
    compiling.end()
