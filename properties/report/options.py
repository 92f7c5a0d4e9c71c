"""The options of the suite, and what they set up: devices, profiles, the given functions, the header."""

import os
from pathlib import Path

import jax
import pytest
from hypothesis import settings
from hypothesis.errors import InvalidArgument

from shardproof.properties.contracts.features import FEATURES
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.report.asking import chosen_laws
from shardproof.properties.report.destinations import DestinationError, check_destination
from shardproof.properties.report.session import GIVEN, GIVEN_MEASURED, GIVEN_TESTS, header
from shardproof.properties.runner import profiles
from shardproof.properties.runner.given import SAID, GivenError, parse_all
from shardproof.properties.runner.platforms import BACKENDS, TooFewDevices, check_devices, use

SIMULATED = 300
"""The most devices of a mesh that is only simulated, unless another number is asked for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options in the table of `properties/report/README.md`."""
    group = parser.getgroup("shardproof", "shardproof: verification of distributed JAX")
    group.addoption(
        "--devices",
        type=int,
        default=8,
        metavar="N",
        help="how many devices to verify on: virtual ones on cpu, the real ones otherwise (default: 8)",
    )
    group.addoption(
        "--platform",
        choices=tuple(BACKENDS),
        default="cpu",
        help="the platform to verify on (default: cpu)",
    )
    group.addoption(
        "--engine",
        choices=(*ENGINES, "all"),
        default="all",
        help="what runs the implementations: the NumPy interpreter, XLA, or both (default: all)",
    )
    group.addoption(
        "--laws",
        metavar="NAMES",
        help=f"the laws that are asked, of {', '.join(LAWS)} (default: all)",
    )
    group.addoption(
        "--mesh-devices",
        type=int,
        default=SIMULATED,
        metavar="N",
        help=f"the most devices of a mesh that is only simulated (default: {SIMULATED})",
    )
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="CONTRACT=MODULE:FUNCTION",
        help="check this function against its contract, or of MODULE:PROGRAM a shardproof.Program, instead of the "
        "built-in ones; may be given more than once",
    )
    group.addoption(
        "--expect-communication",
        action="append",
        default=[],
        metavar="EXPRESSIONS",
        help="what the function of --impl sends, in participants p, bytes n of the full vector, and bytes of a block "
        "of an operand or the result by its name (x, lhs, rhs, w_in, w_out, out), as in permute=p-1,bytes=(p-1)*n/p; "
        "after ;grad: what its reverse mode sends by itself, in the same terms. Where nothing must move (one "
        "participant, empty blocks, whole turns, identities, operands that are the same everywhere) it may also send "
        "less, unless all of it begins with exactly: . The first belongs to the first --impl, and so on",
    )
    group.addoption(
        "--claims",
        action="append",
        default=[],
        metavar="NAMES",
        help="what the function of --impl supports beyond its contract's signature, so that it is drawn: all, or some "
        f"of {', '.join(FEATURES)}; the first belongs to the first --impl, and so on",
    )
    group.addoption(
        "--expect-overlap",
        action="append",
        default=[],
        metavar="LIMITS",
        help="how the function of --impl hides what it sends, forward and in its gradient: exposed<=EXPRESSION, the "
        "most of the time in which something is sent that nothing is computed in, as in exposed<=1/p, on a machine "
        "whose busiest link needs as long as the products; directions=2, if blocks go both ways round a ring; "
        "memory<=EXPRESSION, the most bytes alive on a device; the first belongs to the first --impl, and so on",
    )
    group.addoption(
        "--report",
        action="append",
        default=[],
        metavar="FILE",
        help="write the table of what was verified to FILE.json or FILE.md; may be given more than once",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the devices, before JAX's backends start, and registers the profiles, before Hypothesis loads one."""
    devices, platform = config.getoption("--devices"), config.getoption("--platform")
    if devices < 1:
        raise pytest.UsageError(f"--devices={devices}: expected at least 1")
    if config.getoption("--mesh-devices") < 17:
        raise pytest.UsageError(f"--mesh-devices={config.getoption('--mesh-devices')}: expected at least 17")
    try:
        chosen_laws(config.getoption("--laws"))
    except ValueError as error:
        raise pytest.UsageError(f"--{error}") from None
    for path in config.getoption("--report"):
        if not path.endswith((".json", ".md")):
            raise pytest.UsageError(f"--report={path}: expected a file name that ends in .json or .md")
        try:
            check_destination("--report", Path(path))
        except DestinationError as error:
            raise pytest.UsageError(str(error)) from None
    try:
        given = parse_all(*map(config.getoption, ("--impl", *SAID)))
    except GivenError as error:
        raise pytest.UsageError(str(error)) from None
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
    elif not hasattr(config, "workerinput"):
        try:
            check_devices(platform, devices)
        except TooFewDevices as error:
            raise pytest.UsageError(str(error)) from None
    use(platform)
    profiles.register(devices)
    load_profile(config.getoption("--hypothesis-profile", default=None))
    try:  # a module may use JAX when it is imported, so the devices come first
        config.stash[GIVEN] = [one.load() for one in given]
    except GivenError as error:
        raise pytest.UsageError(str(error)) from None
    if given and not config.getoption("--replay") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        measured = platform != "cpu" or any(config.getoption(f"--require-{name}") for name in ("tpu", "gpu"))
        files = [GIVEN_TESTS, GIVEN_MEASURED] if measured else [GIVEN_TESTS]
        config.args = [*map(str, files)]  # wherever pytest runs, these are the tests that were asked for
    config.addinivalue_line("markers", "engine(name): what runs the implementation that a test verifies")
    config.addinivalue_line("markers", "tpu: measures time, and needs TPU devices: --platform tpu")
    config.addinivalue_line("markers", "gpu: measures time, and needs GPU devices: --platform gpu")
    config.addinivalue_line("markers", "needs_devices(n): a case on a fixed mesh of n devices; left out with fewer")


def load_profile(name: str | None) -> None:
    """Loads the profile that was asked for, or the default, before Hypothesis does, which ends in a traceback.

    Raises:
        pytest.UsageError: if there is no such profile.
    """
    chosen = name or ("ci" if os.environ.get("CI") else "dev")
    try:
        settings.load_profile(chosen)
    except InvalidArgument:
        known = ", ".join(profiles.STRUCTURES)
        raise pytest.UsageError(f"--hypothesis-profile={chosen}: expected one of {known}") from None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker per core, so long as each has 3 GiB: an XLA compilation needs that at its worst."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not told on this system
        return cores
    return max(1, min(cores, memory // (3 * 2**30)))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The first lines of a run."""
    return header(config)
