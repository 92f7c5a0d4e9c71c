"""Shared parts of the pytest plugin: given functions, reports, the header, and where results can be written."""

import os
import platform
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings

from shardproof.plugin import own
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.doctor import version as known_version
from shardproof.properties.runner.platforms import DEVICES
from shardproof.properties.runner.search import compiled_of, structures_in_force
from shardproof.properties.runner.tally import Tally


def check_destination(option: str, path: Path) -> None:
    """Raises RequestError if `path` is a folder, its folder is missing, or writing is not allowed."""
    folder = path.parent
    if path.is_dir():
        raise RequestError(f"{option}={path}: expected a file, this is a folder")
    if not folder.is_dir():
        raise RequestError(f"{option}={path}: expected a file in a folder that exists, {folder} does not")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise RequestError(f"{option}={path}: expected a place that can be written to: permission denied")


def write_somewhere(path: Path, text: str, print_line: Callable[[str], None]) -> None:
    """Writes the text to `path`, else to the folder for temporary files, else prints it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
    else:
        print_line(f"shardproof: wrote {path}")
        return
    try:
        other = Path(tempfile.mkdtemp(prefix="shardproof-")) / path.name
        other.write_text(text, encoding="utf-8")
    except OSError:
        print_line(f"shardproof: {reason}; the report follows\n{text}")
    else:
        print_line(f"shardproof: {reason}; wrote {other} instead")


def report_paths(config: pytest.Config) -> list[Path]:
    """The paths of the reports to write: beside a page also its data."""
    paths = [Path(path) for path in own(config, "report") or []]
    return list(dict.fromkeys([*paths, *(path.with_suffix(".json") for path in paths if path.suffix == ".html")]))


COUNTED = pytest.StashKey[list[Tally]]()
"""The tallies of a test, by law."""

MADE_TEST = "shardproof_program_test"
"""The attribute of tests that `program_test` made: a project's markers are its own."""

GIVEN = pytest.StashKey[list[Implementation]]()
"""The functions that `--impl` names."""

GIVEN_TESTS = Path(__file__).parents[1] / "given" / "laws.py"
"""The tests of given functions."""

GIVEN_MEASURED = GIVEN_TESTS.with_name("performance.py")
"""The tests that measure given functions, on an accelerator."""


def seed_in_force(config: pytest.Config) -> int | None:
    """The seed of the run, given or new; None where the cases are always the same."""
    seed = config.getoption("--hypothesis-seed", default=None)
    if seed not in (None, "random"):
        return int(seed)
    if settings().derandomize or config.stash.get(GIVEN, []):
        return None
    if not hasattr(config.option, "shardproof_seed"):  # of which workers get a copy
        config.option.shardproof_seed = time.time_ns() % 2**32
    return int(config.option.shardproof_seed)


def reports_of(config: pytest.Config) -> list[Any]:
    """The reports of all tests, whichever process ran them, in the process that has the terminal."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    return [one for some in terminal.stats.values() for one in some]


def tallies_of(config: pytest.Config) -> list[Tally]:
    """The tallies of all tests, whichever process ran them."""
    return [Tally.from_json(record) for report in reports_of(config) for record in getattr(report, "shardproof", [])]


def properties_of(config: pytest.Config, wanted: str) -> list[str]:
    """The values of a property of the tests that have ended."""
    ended = [one.user_properties for one in reports_of(config) if getattr(one, "when", "") == "teardown"]
    return [str(value) for properties in ended for name, value in properties if name == wanted]


def header(config: pytest.Config) -> list[str]:
    """The lines on the versions, devices, profile, seed and contracts of a run."""
    devices, platform = own(config, "devices") or DEVICES, own(config, "platform") or "cpu"
    versions = f"shardproof: jax {jax.__version__}, jaxlib {version('jaxlib')}, {devices} {platform} devices"
    if GIVEN not in config.stash:  # tests of programs alone, which state the rest themselves
        return [versions]
    profile = settings.get_current_profile_name()
    seed = seed_in_force(config)
    shown = seed if seed is not None else "fixed by the profile" if settings().derandomize else "fixed"
    contracts = sorted({i.contract.name for i in config.stash[GIVEN] or IMPLEMENTATIONS})
    drawn = structures_in_force()
    return [
        versions,
        f"profile: {profile} ({drawn} structures for each law, {compiled_of(drawn)} compiled), seed: {shown}",
        f"contracts: {', '.join(contracts)}",
    ]


def facts(config: pytest.Config, ended: str) -> dict[str, Any]:
    """The facts of a run for its report, with the command that repeats it, and why it ended early, if it did."""
    describe = ["git", "-C", str(config.rootpath), "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    try:
        commit = subprocess.run(describe, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # not in a checkout
        commit = ""
    suite, seed = GIVEN in config.stash, None
    arguments = [*config.invocation_params.args]
    if suite and (seed := seed_in_force(config)) is not None:
        arguments += [] if any(a.startswith("--hypothesis-seed=") for a in arguments) else [f"--hypothesis-seed={seed}"]
    prefixes = ("XLA_FLAGS", "JAX_", "LIBTPU_INIT_ARGS")  # of what changes what JAX and XLA do
    flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
    set_before = [f"{name}={shlex.quote(value)}" for name, value in flags.items()]
    shardy = getattr(jax.config, "jax_use_shardy_partitioner", None)
    return {
        "header": header(config),
        "versions": {name: known_version(name) for name in ("shardproof", "jax", "jaxlib", "numpy", "hypothesis")}
        | {"python": platform.python_version(), "system": platform.platform()},
        "platform": own(config, "platform") or "cpu",
        "devices": own(config, "devices") or DEVICES,
        "profile": settings.get_current_profile_name() if suite else "",
        "seed": "fixed" if seed is None else str(seed),
        "flags": flags | ({} if shardy is None else {"partitioner": "shardy" if shardy else "gspmd"}),
        "commit": commit,
        "command": " ".join([*set_before, shlex.join(["pytest", *map(str, arguments)])]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended": ended,
    }
