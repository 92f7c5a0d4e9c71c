"""Every annotation that a run with `--jaxtyping-packages` checks is one that can be checked: its packages import."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

TOX = Path(__file__).resolve().parents[2] / "tox.ini"

IMPORTS = """
import importlib, pkgutil, sys
from jaxtyping import install_import_hook

*packages, checker = sys.argv[1].split(",")
with install_import_hook(packages, checker):
    for package in packages:
        folder = importlib.import_module(package)
        for module in pkgutil.walk_packages(getattr(folder, "__path__", ()), f"{package}."):
            importlib.import_module(module.name)
print("imported", checker)
"""


def imported(packages: str) -> subprocess.CompletedProcess[str]:
    """A process that imports all modules of the packages, their annotations checked by the last one named."""
    return subprocess.run([sys.executable, "-c", IMPORTS, packages], capture_output=True, text=True, check=False)


@pytest.mark.lengthy
def test_what_is_checked_at_run_time_imports() -> None:
    """A protocol that cannot be checked at run time, say, would end the typed runs before their first test."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(TOX)
    option, _, packages = tox["typed"]["packages"].partition("=")
    run = imported(packages)
    assert option == "--jaxtyping-packages"
    assert (run.returncode, run.stdout) == (0, "imported beartype.beartype\n"), run.stderr
