"""How pytest imports the tests of the suite: by the name that they have wherever the suite is, never by their path.

By its path pytest takes `properties/test_given.py` of a checkout for a module of a package `properties`, a second copy
of what is `shardproof.properties`, and puts the folder above it on `sys.path`, before what the user has there.
"""

import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = __name__.rpartition(".")[0]


def is_of_the_suite(path: Path) -> bool:
    """Whether a file or folder is the suite's own, by whichever link it is reached."""
    path = path.resolve()
    return HERE in (path, *path.parents)


class SuiteModule(pytest.Module):
    """A file of tests of the suite."""

    def _getobj(self) -> object:
        inside = self.path.resolve().relative_to(HERE).with_suffix("")
        return importlib.import_module(".".join((PACKAGE, *inside.parts)))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A file of tests has one name, wherever the run was started and however the file was given."""
    return SuiteModule.from_parent(parent, path=module_path) if is_of_the_suite(module_path) else None


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """A folder of tests is only a folder: a package pytest would import, by its path."""
    return pytest.Dir.from_parent(parent, path=path) if is_of_the_suite(path) else None
