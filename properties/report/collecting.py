"""How pytest imports the tests of the suite: by the name that they have wherever the suite is, never by their path.

By its path pytest takes `properties/suite/test_given.py` of a checkout for a module of a package `properties`, a second
copy of what is `shardproof.properties`, and puts the folder above it on `sys.path`, before what the user has there.
"""

import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
PACKAGE = __name__.removesuffix(".report.collecting")


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


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A file of tests has one name, wherever the run was started and however the file was given."""
    if not is_of_the_suite(module_path):
        return None
    outside = parent.config.rootpath not in module_path.parents  # pytest has no name for what is not below its root
    told = "/".join((*PACKAGE.split("."), *_inside(module_path).parts)) if outside else None
    return SuiteModule.from_parent(parent, path=module_path, nodeid=told)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """A folder of tests is only a folder: a package pytest would import, by its path."""
    return pytest.Dir.from_parent(parent, path=path) if is_of_the_suite(path) else None
