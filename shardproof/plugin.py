"""The pytest plugin of every project in which shardproof is installed: its options, which load the suite.

It is separate because pytest imports it everywhere: a run without our options gets these and their settings, but no
marker, fixture, header or profile of ours, and imports neither JAX nor Hypothesis. A run with tests made by
`program_test` gets their reports; the options in `LOADING` load the suite itself.
"""

from argparse import ArgumentError
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SUITE, REPORTS = "shardproof.properties.report.plugin", "shardproof reports"
REPORTING = (
    "pytest_runtest_logstart", "pytest_runtest_makereport", "pytest_sessionfinish", "pytest_terminal_summary",
)  # fmt: skip
"""The hooks of the suite that tests made by `program_test` need, in any project and without an option."""
LOADING = (
    "--impl",
    "--replay",
    "--claims",
    "--expect-communication",
    "--expect-overlap",
    "--data-kinds",
)
"""The options that load the suite. The others belong to these, and some to the tests of programs as well."""
MADE_TEST = "shardproof_program_test"
"""The attribute of tests that `program_test` made: a project's markers are its own."""
FILES = ("--replay", "--report", "--profile")
"""The options whose values are files or folders, which pytest takes for tests until it knows the options."""
TESTS = Path(__file__).parent / "properties"


def _option(help: str, **how: Any) -> dict[str, Any]:
    return {"help": help, **how}


def _list(metavar: str, help: str) -> dict[str, Any]:
    return {"help": help, "metavar": metavar, "action": "append", "default": []}


OPTIONS = {
    "--devices": _option(
        "how many devices to verify on: virtual ones on cpu, the real ones otherwise (default: 8)",
        type=int,
        metavar="N",
    ),
    "--platform": _option("the platform to verify on (default: cpu)", choices=("cpu", "gpu", "tpu")),
    "--engine": _option(
        "what runs the implementations: the NumPy interpreter, XLA, or both (default: all)",
        choices=("simulate", "xla", "all"),
    ),
    "--laws": _option(
        "the laws to check, of value, gradient, type, error, communication, overlap, agreement (default: all)",
        metavar="NAMES",
    ),
    "--mesh-devices": _option(
        "the most devices of a mesh that is only simulated (default: 300)",
        type=int,
        metavar="N",
    ),
    "--report": _list(
        "FILE",
        "write what was verified and what failed to FILE.html, a page, with its data in FILE.json beside it, to "
        "FILE.json alone, or to FILE.md; may be given more than once",
    ),
    "--impl": _list(
        "CONTRACT=MODULE:FUNCTION",
        "check this function against its contract, or of MODULE:PROGRAM a shardproof.Program, instead of the built-in"
        " ones; may be given more than once",
    ),
    "--expect-communication": _list(
        "EXPRESSIONS",
        "what the function of --impl sends, in participants p, bytes n of the full vector, and bytes of a block of an"
        " operand or the result by its name (x, lhs, rhs, w_in, w_out, out), as in permute=p-1,bytes=(p-1)*n/p; after"
        " ;grad: what its reverse mode sends by itself, in the same terms. Where nothing must move (one participant, "
        "empty blocks, whole turns, identities, operands that are the same everywhere) it may also send less, unless "
        "all of it begins with exactly: . The first belongs to the first --impl, and so on",
    ),
    "--claims": _list(
        "NAMES",
        "what the function of --impl supports beyond its contract's signature, so that it is drawn: all, or some of "
        "the claims that docs/contracts.md lists; the first belongs to the first --impl, and so on",
    ),
    "--expect-overlap": _list(
        "LIMITS",
        "how the function of --impl hides what it sends, forward and in its gradient: exposed<=EXPRESSION, the most "
        "of the time in which something is sent that nothing is computed in, as in exposed<=1/p, on a machine whose "
        "busiest link needs as long as the products; directions=2, if blocks go both ways round a ring; "
        "memory<=EXPRESSION, the most bytes alive on a device; the first belongs to the first --impl, and so on",
    ),
    "--data-kinds": _list(
        "KINDS",
        "the kinds of data that the function of --impl is run on, of exact, distinct, real, special, nan, scaled, "
        "partial and zeros (default: all that its contract has); the first belongs to the first --impl, and so on",
    ),
    "--replay": _list(
        "FILE_OR_FOLDER",
        "run only this recorded failure (.shardproof/failures/*.json), or a folder of them; may be repeated. The "
        "function is named with --impl, or its program_test's file is; one of this project's own needs neither",
    ),
    "--require-tpu": _option(
        "tests that need TPU devices fail where there are none, instead of being skipped",
        action="store_true",
    ),
    "--require-gpu": _option(
        "tests that need GPU devices fail where there are none, instead of being skipped",
        action="store_true",
    ),
    "--require-tpu-compiler": _option(
        "tests that compile for TPU topologies fail without libtpu, instead of being skipped",
        action="store_true",
    ),
    "--profile": _option(
        "write JAX profiler traces of the rows that tests for accelerators measure to DIR/CONTRACT/FORM",
        metavar="DIR",
    ),
}
SETTINGS: dict[str, Any] = {
    "devices": "int",
    "platform": "string",
    "engine": "string",
    "laws": "string",
    "mesh_devices": "int",
    "report": "args",
}
"""The options that are settings of a project as well, as in `shardproof_devices = 4`, with their types."""

RUNNING: list[pytest.Config] = []
"""The runs of pytest that this process is in, the innermost last."""

TAKEN = pytest.StashKey[list[str]]()
"""The options whose names the project, or another plugin, has taken."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the settings; the options follow once those of the project are known."""
    for name, kind in SETTINGS.items():
        parser.addini(f"shardproof_{name}", f"the value of --{name.replace('_', '-')}", type=kind, default=None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: Sequence[str]
) -> Iterator[None]:
    """Adds the options that the run's own plugins and conftest.py do not have, and loads the suite for some of them."""
    loading = [name for name in LOADING if any(text.partition("=")[0] == name for text in args)]
    if loading:
        _look_in_the_project_alone(early_config, args)
    result = yield
    if early_config.pluginmanager.has_plugin(SUITE):  # a checkout's conftest.py loads it
        return result
    taken = early_config.stash[TAKEN] = add_options(parser)
    if set(loading) - {*taken}:
        if taken:
            raise pytest.UsageError(
                f"{taken[0]}: shardproof cannot add this option of its own, because another plugin or a conftest.py "
                "has one of that name: expected a run without it, by -p no:NAME or --noconftest"
            )
        early_config.pluginmanager.import_plugin(SUITE)
    return result


def add_options(parser: pytest.Parser) -> list[str]:
    """Adds all options in one group, and returns those whose names are taken."""
    group, taken = parser.getgroup("shardproof", "shardproof: verification of distributed JAX"), []
    for name, how in OPTIONS.items():
        try:
            group.addoption(name, **how)
        except (ValueError, ArgumentError):
            taken.append(name)
    return taken


def own(config: pytest.Config, name: str) -> Any:
    """The value of one of our options, by its name in the settings; None if it is not given, or taken."""
    if f"--{name.replace('_', '-')}" in config.stash.get(TAKEN, []):
        return None
    return config.getoption(name, default=None)


def take_settings(config: pytest.Config) -> bool:
    """Takes options that the command line does not give from the settings; returns whether any has a value."""
    for name in SETTINGS:
        option = f"--{name.replace('_', '-')}"
        if option not in config.stash.get(TAKEN, []) and own(config, name) in (None, []):
            value = config.getini(f"shardproof_{name}")
            choices = OPTIONS[option].get("choices")
            if value and choices and value not in choices:
                raise pytest.UsageError(f"shardproof_{name}={value!r}: expected one of {', '.join(choices)}")
            setattr(config.option, name, [] if name == "report" and value is None else value)
    return any(own(config, name) not in (None, []) for name in SETTINGS)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes the devices for tests of programs: the suite makes its own."""
    RUNNING.append(config)
    if take_settings(config) and not config.pluginmanager.has_plugin(SUITE):
        import_module("shardproof.properties.report.session").make_ready(config)
        import_module("shardproof.properties.report.watch").begin(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Forgets the run."""
    if config in RUNNING:  # unless another plugin ended it before
        RUNNING.remove(config)


def terminal() -> pytest.TerminalReporter | None:
    """The reporter of the innermost run of pytest in this process, if it writes to a terminal."""
    reporter: Any = RUNNING[-1].pluginmanager.get_plugin("terminalreporter") if RUNNING else None
    return reporter if reporter is not None and reporter.isatty else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests of programs on other engines than that of `--engine`."""
    engine = own(config, "engine")
    others = {"simulate": "xla", "xla": "simulate"}.get(engine)
    dropped = [item for item in items if _is_of_a_program(item) and item.name.endswith(f"[{others}]")]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Loads the reports for the first test that `program_test` made."""
    if _is_of_a_program(item):
        _load_reports(item.config)


def _is_of_a_program(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "function", None), MADE_TEST)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> None:
    """Loads them in a process that collects nothing, once a worker sends a report of such a test."""
    if hasattr(report, "shardproof"):
        _load_reports(config)


def _load_reports(config: pytest.Config) -> None:
    """Registers the hooks that report on tests of programs, once."""
    manager = config.pluginmanager
    if not manager.has_plugin(SUITE) and not manager.has_plugin(REPORTS):
        suite = import_module(SUITE)
        manager.register(SimpleNamespace(**{name: getattr(suite, name) for name in REPORTING}), REPORTS)


def _look_in_the_project_alone(early_config: pytest.Config, args: Sequence[str]) -> None:
    """Takes settings and conftest.py of the user's project, not the suite's, or those beside a file in `FILES`."""
    found, here, namespace = early_config.inipath, early_config.invocation_params.dir, early_config.known_args_namespace
    if "--replay" in args and found and not namespace.inifilename and found.parent not in (here, *here.parents):
        raise pytest.UsageError(
            f"--replay: pytest has taken its settings from {found}, which is neither in the working directory nor "
            "above it: expected --replay=FILE, with the equals sign, so that it looks for none beside FILE"
        )
    values = {value for name, value in pairwise(args) if name in FILES}
    namespace.file_or_dir = [path for path in namespace.file_or_dir if path not in values]
    if early_config.rootpath not in TESTS.parents:
        namespace.confcutdir = str(TESTS)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints why a requested report was not written."""
    manager, paths = config.pluginmanager, own(config, "report")
    there = config.option.collectonly or manager.has_plugin(SUITE) or manager.has_plugin(REPORTS)
    if paths and not there:
        named = f"--report={', '.join(map(str, paths))}"
        terminalreporter.write_line(f"shardproof: {named}: not written: only tests made by program_test have a report")
