"""How pytest imports the tests of the suite: by the name that they have wherever the suite is, never by their path.

By its path pytest takes `properties/given/laws.py` of a checkout for a module of a package `properties`, a second
copy of what is `shardproof.properties`, and puts the folder above it on `sys.path`, before what the user has there.
"""

import importlib
from pathlib import Path

import pytest

from shardproof.properties.engines import ENGINES
from shardproof.properties.report.session import GIVEN, GIVEN_TESTS
from shardproof.properties.runner.judging import asked

HERE = Path(__file__).resolve().parents[1]
PACKAGE = __name__.removesuffix(".report.collecting")

BUILT_IN = HERE / "suite"
"""The tests of this project's own implementations, which only a checkout has."""


def is_of_the_suite(path: Path) -> bool:
    """Whether a file or folder is the suite's own, by whichever link it is reached."""
    path = path.resolve()
    return HERE in (path, *path.parents)


class SuiteModule(pytest.Module):
    """A file of tests of the suite."""

    def _getobj(self) -> object:
        return importlib.import_module(".".join((PACKAGE, *_inside(self.path).with_suffix("").parts)))

    def funcnamefilter(self, name: str) -> bool:
        """What is a test here, whatever the settings of the project say in which pytest runs."""
        return name.startswith("test_")


def _inside(path: Path) -> Path:
    return path.resolve().relative_to(HERE)


def make_module(path: Path, parent: pytest.Collector) -> pytest.Module:
    """The collector of a file of tests, by one name, wherever the run was started and however the file was given."""
    outside = parent.config.rootpath not in path.parents  # pytest has no name for what is not below its root
    told = "/".join((*PACKAGE.split("."), *_inside(path).parts)) if outside else None
    return SuiteModule.from_parent(parent, path=path, nodeid=told)


def parametrize_given(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each given function and engine."""
    if metafunc.definition.path.resolve() == GIVEN_TESTS.resolve() and "engine" in metafunc.fixturenames:
        pairs = [
            pytest.param(function, engine, id=f"{function}-{engine}", marks=pytest.mark.engine(engine))
            for function in metafunc.config.stash[GIVEN]
            for engine in ENGINES
            if asked(function, engine)
        ]
        metafunc.parametrize(("implementation", "engine"), pairs)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out other engines and implementations than what was asked for, and fixed meshes that are larger."""
    devices, engine = config.getoption("--devices"), config.getoption("--engine")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker, runs_on = item.get_closest_marker("needs_devices"), item.get_closest_marker("engine")
        too_large = marker is not None and marker.args[0] > devices
        other = runs_on is not None and engine not in (runs_on.args[0], "all")
        # with --impl only the given functions are checked
        other |= item.path.resolve().parent == BUILT_IN and bool(config.stash[GIVEN])
        (dropped if too_large or other else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
