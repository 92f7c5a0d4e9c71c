"""The options of the suite, and what they set up: devices, profiles, the given functions."""

import os
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings
from hypothesis.errors import InvalidArgument

from shardproof.properties.contracts.contract import FEATURES
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.report.asking import chosen_laws
from shardproof.properties.report.session import GIVEN, GIVEN_MEASURED, GIVEN_TESTS, DestinationError, check_destination
from shardproof.properties.runner import search
from shardproof.properties.runner.given import SAID, parse_all
from shardproof.properties.runner.platforms import BACKENDS, TooFewDevices, check_devices, check_flags, use
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.stated import GivenError

SIMULATED = 300
"""The most devices of a mesh that is only simulated, unless another number is asked for."""

MARKERS = (
    "engine(name): what runs the implementation that a test verifies",
    "tpu: measures time, and needs TPU devices: --platform tpu",
    "gpu: measures time, and needs GPU devices: --platform gpu",
    "tpu_compiler: compiles for TPU topologies, with libtpu, and needs no TPU",
    "needs_devices(n): a case on a fixed mesh of n devices; left out with fewer",
)


def add_options(parser: pytest.Parser) -> None:
    """Adds all options, in one group.

    Raises:
        pytest.UsageError: if a name is taken.
    """
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    number, several, flag = {"type": int, "metavar": "N"}, {"action": "append", "default": []}, {"action": "store_true"}

    def add(name: str, told: str, **how: Any) -> None:
        try:
            group.addoption(name, help=told, **how)
        except (ValueError, ArgumentError):
            raise pytest.UsageError(
                f"{name}: shardproof cannot add this option of its own, because another plugin or a conftest.py has "
                "one of that name: expected a run without it, by -p no:NAME or --noconftest"
            ) from None

    told = "how many devices to verify on: virtual ones on cpu, the real ones otherwise (default: 8)"
    add("--devices", told, **number, default=8)
    add("--platform", "the platform to verify on (default: cpu)", choices=tuple(BACKENDS), default="cpu")
    told = "what runs the implementations: the NumPy interpreter, XLA, or both (default: all)"
    add("--engine", told, choices=(*ENGINES, "all"), default="all")
    add("--laws", f"the laws that are asked, of {', '.join(LAWS)} (default: all)", metavar="NAMES")
    told = f"the most devices of a mesh that is only simulated (default: {SIMULATED})"
    add("--mesh-devices", told, **number, default=SIMULATED)
    told = (
        "check this function against its contract, or of MODULE:PROGRAM a shardproof.Program, instead of the "
        "built-in ones; may be given more than once"
    )
    add("--impl", told, **several, metavar="CONTRACT=MODULE:FUNCTION")
    told = (
        "what the function of --impl sends, in participants p, bytes n of the full vector, and bytes of a block "
        "of an operand or the result by its name (x, lhs, rhs, w_in, w_out, out), as in permute=p-1,bytes=(p-1)*n/p; "
        "after ;grad: what its reverse mode sends by itself, in the same terms. Where nothing must move (one "
        "participant, empty blocks, whole turns, identities, operands that are the same everywhere) it may also send "
        "less, unless all of it begins with exactly: . The first belongs to the first --impl, and so on"
    )
    add("--expect-communication", told, **several, metavar="EXPRESSIONS")
    told = (
        "what the function of --impl supports beyond its contract's signature, so that it is drawn: all, or some "
        f"of {', '.join(FEATURES)}; the first belongs to the first --impl, and so on"
    )
    add("--claims", told, **several, metavar="NAMES")
    told = (
        "how the function of --impl hides what it sends, forward and in its gradient: exposed<=EXPRESSION, the "
        "most of the time in which something is sent that nothing is computed in, as in exposed<=1/p, on a machine "
        "whose busiest link needs as long as the products; directions=2, if blocks go both ways round a ring; "
        "memory<=EXPRESSION, the most bytes alive on a device; the first belongs to the first --impl, and so on"
    )
    add("--expect-overlap", told, **several, metavar="LIMITS")
    told = "write the table of what was verified to FILE.json or FILE.md; may be given more than once"
    add("--report", told, **several, metavar="FILE")
    for name in ("tpu", "gpu"):
        told = f"tests that need {name.upper()} devices fail where there are none, where otherwise they are skipped"
        add(f"--require-{name}", told, **flag)
    told = "write JAX profiler traces of the rows that tests for accelerators measure to DIR/CONTRACT/FORM"
    add("--profile", told, metavar="DIR")
    told = "tests that compile for TPU topologies fail without libtpu, where otherwise they are skipped"
    add("--require-tpu-compiler", told, **flag)
    told = (
        "run only this recorded failure (.shardproof/failures/*.json), or a folder of them; may be repeated. The "
        "function is named with --impl, or its program_test's file is; one of this project's own needs neither"
    )
    add("--replay", told, **several, metavar="FILE_OR_FOLDER")
    told = (
        "copy a recorded failure to where every run checks it first: properties/regressions/ for one of this "
        "project's own implementations, shardproof_regressions/ beside the test file, or the module of --impl, that is "
        "named as well for one of a Program; runs no tests"
    )
    add("--keep-regression", told, metavar="FILE")


@contextmanager
def usage_errors(prefix: str = "") -> Iterator[None]:
    """Reports what was given and cannot be used in one line.

    Raises:
        pytest.UsageError: with the message of such an error.
    """
    try:
        yield
    except (DestinationError, GivenError, NotAFailure, TooFewDevices) as error:
        raise pytest.UsageError(f"{prefix}{error}") from None


def set_up(config: pytest.Config) -> None:
    """Makes the devices, registers the profiles, and loads the given functions, whose tests a run then has.

    Raises:
        pytest.UsageError: if an option cannot be used, naming it and its value.
    """
    option = config.getoption
    devices, platform, folder = option("--devices"), option("--platform"), option("--profile")
    for name, least in (("--devices", 1), ("--mesh-devices", 17)):
        if option(name) < least:
            raise pytest.UsageError(f"{name}={option(name)}: expected at least {least}")
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise pytest.UsageError(f"--profile={folder}: expected a folder, this is a file")
    try:
        chosen_laws(option("--laws"))
    except ValueError as error:
        raise pytest.UsageError(f"--{error}") from None
    with usage_errors():
        for path in option("--report"):
            if not path.endswith((".json", ".md")):
                raise pytest.UsageError(f"--report={path}: expected a file name that ends in .json or .md")
            check_destination("--report", Path(path))
        check_flags(os.environ.get("XLA_FLAGS", ""))
        given = parse_all(*map(option, ("--impl", *SAID)))
        if platform == "cpu":
            jax.config.update("jax_num_cpu_devices", devices)
        elif not hasattr(config, "workerinput"):
            check_devices(platform, devices)
        use(platform)
        search.register(devices)
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
        config.args = [*map(str, files)]  # wherever pytest runs, these are the tests that were asked for
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def workers_that_fit() -> int:
    """One worker per core, so long as each has 3 GiB: an XLA compilation needs that at its worst."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not told on this system
        return cores
    return max(1, min(cores, memory // (3 * 2**30)))
