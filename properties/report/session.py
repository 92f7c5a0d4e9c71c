"""The parts of the pytest plugin that set up a run, and say what it was: devices, given functions, header, reports."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from platform import platform, python_version
from typing import Any

import jax
import pytest
from hypothesis import settings
from hypothesis.errors import InvalidArgument

from shardproof.plugin import own
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance import tpu_compiler
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.checking import chosen_laws
from shardproof.properties.report.doctor import version
from shardproof.properties.report.report import ENDINGS, record_of, report_text
from shardproof.properties.runner import profiles
from shardproof.properties.runner.given import SAID, parse_all
from shardproof.properties.runner.platforms import DEVICES, check_devices, check_flags, use
from shardproof.properties.runner.profiles import compiled_of, structures_in_force
from shardproof.properties.runner.tally import Tally

DEFAULTS = {"devices": 8, "platform": "cpu", "engine": "all", "mesh_devices": 300}
"""The defaults of the suite's own tests and of `--impl`."""

LEAST_SIMULATED = 17
"""The least value of `--mesh-devices`: more than there are for XLA in any test."""

MARKERS = (
    "smoke: an implementation of a contract; there is one of each",
    "engine(name): what runs the implementation that a test verifies",
    "tpu: measures time, and needs TPU devices: --platform tpu",
    "gpu: measures time, and needs GPU devices: --platform gpu",
    "tpu_compiler: compiles for TPU topologies, with libtpu, and needs no TPU",
    "needs_devices(n): a case on a fixed mesh of n devices; left out with fewer",
)

COUNTED = pytest.StashKey[list[Tally]]()
"""The tallies of a test, by law."""

FAILURE = pytest.StashKey[dict[str, dict[str, Any]]]()
"""The entries of a test's failures, by law."""

GIVEN = pytest.StashKey[list[Implementation]]()
"""The functions that `--impl` names."""

GIVEN_TESTS = Path(__file__).parents[1] / "given" / "laws.py"
"""The tests of given functions."""

GIVEN_MEASURED = GIVEN_TESTS.with_name("performance.py")
"""The tests that measure given functions, on an accelerator."""

ACCELERATORS = ("tpu", "gpu")
REQUIRED = {name: f"--require-{name.replace('_', '-')}" for name in (*ACCELERATORS, "tpu_compiler")}
"""The markers, and the options that make their tests fail where they cannot run."""

MEASURED, NEEDS = "shardproof measured", "shardproof needs"
"""The properties of a test's report that hold a table, as text, and the accelerator that the test needs."""


@contextmanager
def usage_errors(prefix: str = "") -> Iterator[None]:
    """Turns a RequestError into a `pytest.UsageError`, which is shown in one line."""
    try:
        yield
    except RequestError as error:
        raise pytest.UsageError(f"{prefix}{error}") from None


def make_ready(config: pytest.Config) -> None:
    """Makes the devices, and checks the options that programs' tests have as well; raises `pytest.UsageError`."""
    option = config.getoption
    devices, chosen = option("--devices"), option("--platform")
    if devices is not None and devices < 1:
        raise pytest.UsageError(f"--devices={devices}: expected at least 1")
    with usage_errors("--"):
        chosen_laws(option("--laws"))
    with usage_errors():
        for path in option("--report"):
            if not path.endswith(ENDINGS):
                raise pytest.UsageError(f"--report={path}: expected a file name that ends in .html, .json or .md")
            check_destination("--report", Path(path))
        try:
            check_flags(os.environ.get("XLA_FLAGS", ""))
        except RequestError as error:
            write_reports(config, partial(print, file=sys.stderr), f"Nothing ran: {error}")
            raise
        if chosen in (None, "cpu"):
            if devices is not None:
                jax.config.update("jax_num_cpu_devices", devices)
        elif not hasattr(config, "workerinput"):
            check_devices(chosen, devices or 1)
        if chosen is not None:
            use(chosen)


def set_up(config: pytest.Config) -> None:
    """Makes the devices, registers the profiles, and loads the given functions; raises `pytest.UsageError`."""
    option = config.getoption
    folder = option("--profile")
    if option("--mesh-devices") < LEAST_SIMULATED:
        raise pytest.UsageError(f"--mesh-devices={option('--mesh-devices')}: expected at least {LEAST_SIMULATED}")
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise pytest.UsageError(f"--profile={folder}: expected a folder, this is a file")
    make_ready(config)
    with usage_errors():
        given = parse_all(*map(option, ("--impl", *SAID)))
        profiles.register(option("--devices"))
        chosen = option("--hypothesis-profile", default=None) or ("ci" if os.environ.get("CI") else "dev")
        try:  # before Hypothesis does, which ends in a traceback
            settings.load_profile(chosen)
        except InvalidArgument:
            known = ", ".join(profiles.STRUCTURES)
            raise pytest.UsageError(f"--hypothesis-profile={chosen}: expected one of {known}") from None
        config.stash[GIVEN] = [one.load() for one in given]  # a module may use JAX when it is imported
    if given and not option("--replay") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        measured = option("--platform") != "cpu" or option("--require-tpu") or option("--require-gpu")
        files = [GIVEN_TESTS, GIVEN_MEASURED] if measured else [GIVEN_TESTS]
        config.args = [*map(str, files)]
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def workers_that_fit() -> int:
    """One worker per core, so long as each has 3 GiB: an XLA compilation needs that at its worst."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # unknown on this system
        return cores
    return max(1, min(cores, memory // (3 * 2**30)))


def cannot_run(name: str, config: pytest.Config) -> str:
    """The reason why a test that needs an accelerator, or its compiler, cannot run here; empty if it can."""
    if name == "tpu_compiler":
        return tpu_compiler.missing()
    there, devices = config.getoption("--platform"), config.getoption("--devices")
    kind, workers = name.upper(), getattr(config, "workerinput", {"workercount": 1})["workercount"]
    if there != name:
        return (
            f"this test measures time on {kind} devices, and this run is on {devices} {there} devices: expected "
            f"pytest -m {name} --platform {name} --devices N, on a machine with N {kind} devices"
        )
    if devices < 2:
        return f"this test measures what {kind} devices send to one another: expected --devices of 2 or more"
    if workers > 1:
        return f"this test measures time, which {workers} workers at once would change: expected a run with -n 0"
    return ""


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
    """Writes the text to `path`, or else to the folder for temporary files."""
    try:
        path.write_text(text, encoding="utf-8")
        print_line(f"shardproof: wrote {path}")
    except OSError as error:
        other = Path(tempfile.mkdtemp(prefix="shardproof-")) / path.name
        other.write_text(text, encoding="utf-8")
        print_line(f"shardproof: {path} cannot be written: {error.strerror or error}; wrote {other} instead")


def report_paths(config: pytest.Config) -> list[Path]:
    """The paths of the reports to write: beside a page also its data."""
    paths = [Path(path) for path in own(config, "report") or []]
    return list(dict.fromkeys([*paths, *(path.with_suffix(".json") for path in paths if path.suffix == ".html")]))


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
    devices = f"{own(config, 'devices') or DEVICES} {own(config, 'platform') or 'cpu'} devices"
    versions = f"shardproof: jax {jax.__version__}, jaxlib {version('jaxlib')}, {devices}"
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
        "versions": {name: version(name) for name in ("shardproof", "jax", "jaxlib", "numpy", "hypothesis")}
        | {"python": python_version(), "system": platform()},
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


def write_reports(config: pytest.Config, print_line: Callable[[str], None], ended: str = "") -> None:
    """Writes the reports of a run, which may have ended early for a reason, and prints a line for each."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    ran = [] if terminal is None else [one for kind in ("failed", "error") for one in terminal.stats.get(kind, [])]
    others = [one for one in ran if not getattr(one, "shardproof_failures", [])]
    errors = [{"test": one.nodeid, "text": str(one.longrepr)[-4_000:]} for one in others]
    if paths := report_paths(config):
        record = record_of([] if terminal is None else tallies_of(config), facts(config, ended), errors)
        for path in paths:
            write_somewhere(path, report_text(str(path), record), print_line)
