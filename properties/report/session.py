"""What the parts of the pytest plugin share: given functions, reports, the header, and where results can be written."""

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


class DestinationError(RequestError):
    """A file cannot be written there; the message says why in one line."""


def check_destination(option: str, path: Path) -> None:
    """A file can be written to `path`.

    Raises:
        DestinationError: if it is a folder, its folder is missing, or writing is not allowed.
    """
    folder = path.parent
    if path.is_dir():
        raise DestinationError(f"{option}={path}: expected a file, this is a folder")
    if not folder.is_dir():
        raise DestinationError(f"{option}={path}: expected a file in a folder that exists, {folder} does not")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DestinationError(f"{option}={path}: expected a place that can be written to: permission denied")


def write_somewhere(path: Path, text: str, tell: Callable[[str], None]) -> None:
    """Writes the text to `path`, else to the folder for temporary files, else tells it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
    else:
        tell(f"shardproof: wrote {path}")
        return
    try:
        other = Path(tempfile.mkdtemp(prefix="shardproof-")) / path.name
        other.write_text(text, encoding="utf-8")
    except OSError:
        tell(f"shardproof: {reason}; the report follows\n{text}")
    else:
        tell(f"shardproof: {reason}; wrote {other} instead")


def report_paths(config: pytest.Config) -> list[Path]:
    """Where reports are to be written: beside a page its data."""
    paths = [Path(path) for path in own(config, "report") or []]
    return list(dict.fromkeys([*paths, *(path.with_suffix(".json") for path in paths if path.suffix == ".html")]))


COUNTED = pytest.StashKey[list[Tally]]()
"""What a test counted, by law."""

MADE_TEST = "shardproof_program_test"
"""What a test is marked with that `program_test` made: by an attribute, since a project's markers are its own."""

GIVEN = pytest.StashKey[list[Implementation]]()
"""The functions that `--impl` names."""

GIVEN_TESTS = Path(__file__).parents[1] / "given" / "laws.py"
"""The tests of given functions; in a checkout, reached by a link."""

GIVEN_MEASURED = GIVEN_TESTS.with_name("performance.py")
"""The tests that measure given functions, on an accelerator."""


def seed_in_force(config: pytest.Config) -> int | None:
    """The seed of the run: that which Hypothesis was given, or a new one; None where the cases are the same always."""
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
    """What all tests counted, whichever process ran them."""
    return [Tally.from_json(record) for report in reports_of(config) for record in getattr(report, "shardproof", [])]


def properties_of(config: pytest.Config, wanted: str) -> list[str]:
    """What tests that are over have as a property."""
    ended = [one.user_properties for one in reports_of(config) if getattr(one, "when", "") == "teardown"]
    return [str(value) for properties in ended for name, value in properties if name == wanted]


def header(config: pytest.Config) -> list[str]:
    """What is verified, on what, with which seed."""
    devices, platform = own(config, "devices") or DEVICES, own(config, "platform") or "cpu"
    versions = f"shardproof: jax {jax.__version__}, jaxlib {version('jaxlib')}, {devices} {platform} devices"
    if GIVEN not in config.stash:  # tests of programs alone, which say the rest themselves
        return [versions]
    profile = settings.get_current_profile_name()
    seed = seed_in_force(config)
    told = seed if seed is not None else "fixed by the profile" if settings().derandomize else "fixed"
    contracts = sorted({i.contract.name for i in config.stash[GIVEN] or IMPLEMENTATIONS})
    drawn = structures_in_force()
    return [
        versions,
        f"profile: {profile} ({drawn} structures for each law, {compiled_of(drawn)} compiled), seed: {told}",
        f"contracts: {', '.join(contracts)}",
    ]


def facts(config: pytest.Config, ended: str) -> dict[str, Any]:
    """What a report says of the run: versions, platform, seed, flags, commit, and the command that repeats it.

    Arguments:
        config: the configuration of the run.
        ended: why it ended before its end, if it did.
    """
    suite, seed = GIVEN in config.stash, None
    arguments = [*config.invocation_params.args]
    if suite and (seed := seed_in_force(config)) is not None:
        arguments += [] if any(a.startswith("--hypothesis-seed=") for a in arguments) else [f"--hypothesis-seed={seed}"]
    flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(FLAGS)}
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
        "commit": _commit(config.rootpath),
        "command": " ".join([*set_before, shlex.join(["pytest", *map(str, arguments)])]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended": ended,
    }


FLAGS = ("XLA_FLAGS", "JAX_", "LIBTPU_INIT_ARGS")
"""How the names of variables begin that change what JAX and XLA do."""


def _commit(folder: Path) -> str:
    """The commit of a checkout, and whether anything was changed since; empty of what is none."""
    tell = ["git", "-C", str(folder), "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    try:
        return subprocess.run(tell, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
