"""Sets up what the options of the plugin ask for: devices, profiles, the given functions."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import pytest
from hypothesis import settings
from hypothesis.errors import InvalidArgument

from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.report import watch
from shardproof.properties.report.report import ENDINGS, write_reports
from shardproof.properties.report.session import GIVEN, GIVEN_MEASURED, GIVEN_TESTS, check_destination
from shardproof.properties.report.verdicts import chosen_laws
from shardproof.properties.runner import search
from shardproof.properties.runner.given import SAID, parse_all
from shardproof.properties.runner.platforms import check_devices, check_flags, use

DEFAULTS = {"devices": 8, "platform": "cpu", "engine": "all", "mesh_devices": 300}
"""The defaults of the suite's own tests and of `--impl`."""

LEAST_SIMULATED = 17
"""The least value of `--mesh-devices`: more than there are for XLA in any test."""

MARKERS = (
    "engine(name): what runs the implementation that a test verifies",
    "tpu: measures time, and needs TPU devices: --platform tpu",
    "gpu: measures time, and needs GPU devices: --platform gpu",
    "tpu_compiler: compiles for TPU topologies, with libtpu, and needs no TPU",
    "needs_devices(n): a case on a fixed mesh of n devices; left out with fewer",
)


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
    devices, platform = option("--devices"), option("--platform")
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
        if platform in (None, "cpu"):
            if devices is not None:
                jax.config.update("jax_num_cpu_devices", devices)
        elif not hasattr(config, "workerinput"):
            check_devices(platform, devices or 1)
        if platform is not None:
            use(platform)


def set_up_programs(config: pytest.Config) -> None:
    """Sets up a run of programs' tests alone."""
    make_ready(config)
    watch.begin(config)


def set_up(config: pytest.Config) -> None:
    """Makes the devices, registers the profiles, and loads the given functions; raises `pytest.UsageError`."""
    option = config.getoption
    platform, folder = option("--platform"), option("--profile")
    if option("--mesh-devices") < LEAST_SIMULATED:
        raise pytest.UsageError(f"--mesh-devices={option('--mesh-devices')}: expected at least {LEAST_SIMULATED}")
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise pytest.UsageError(f"--profile={folder}: expected a folder, this is a file")
    make_ready(config)
    with usage_errors():
        given = parse_all(*map(option, ("--impl", *SAID)))
        search.register(option("--devices"))
        chosen = option("--hypothesis-profile", default=None) or ("ci" if os.environ.get("CI") else "dev")
        try:  # before Hypothesis does, which ends in a traceback
            settings.load_profile(chosen)
        except InvalidArgument:
            known = ", ".join(search.STRUCTURES)
            raise pytest.UsageError(f"--hypothesis-profile={chosen}: expected one of {known}") from None
        config.stash[GIVEN] = [one.load() for one in given]  # a module may use JAX when it is imported
    if given and not option("--replay") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        measured = platform != "cpu" or option("--require-tpu") or option("--require-gpu")
        files = [GIVEN_TESTS, GIVEN_MEASURED] if measured else [GIVEN_TESTS]
        config.args = [*map(str, files)]
    watch.begin(config)
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
