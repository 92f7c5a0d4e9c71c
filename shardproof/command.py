"""The command `shardproof`, also `python -m shardproof`: checks, failures, timelines, and this machine.

A command imports JAX, and the functions that it calls, when it runs: `--help` takes no time.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

HELD, VIOLATED, USAGE, NOTHING = range(4)
CODES = "Exit codes: 0 it held, 1 a law is violated, 2 the command cannot be carried out, 3 nothing was checked."
SECTIONS = {
    "Check": ("check", "suite", "replay", "conformance"),
    "Time": ("timeline", "choose", "tpu"),
    "Look": ("report", "compare", "draw", "defects", "doctor"),
}
"""The commands by section, as `--help` lists them."""

CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x", "h100")
"""The names of `performance.chips.CHIPS`, which would take JAX to import."""

SHAPES, WAYS = ("book", "large", "wide"), ("forward", "backward")
"""Those of `programs.examples.SHAPES` and `performance.tpu_compiler`."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Refused(click.ClickException):
    """A command that cannot be carried out; one sentence names the option and its value."""

    exit_code = USAGE


class Command(click.Command):
    """A command that reports wrong arguments in one sentence; other exceptions keep their traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command, on the CPU if it only traces."""
        if "mesh" in ctx.params:
            import_module("jax").config.update("jax_platforms", "cpu")
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name != "drawsvg":
                raise
            reason = f"no picture: {error}; pip install 'shardproof[draw]'"
            if ctx.params["output"] is not None:
                raise Refused(reason) from error
            click.echo(f"Note: {reason}", err=True)
        except Exception as error:
            if reason := refusal(error, ctx.params):
                raise Refused(reason) from error
            raise


def refusal(error: Exception, given: dict[str, Any]) -> str:
    """The message of an error that is about the arguments; empty for others."""
    from shardproof.properties.cases.suggestion import RequestError
    from shardproof.properties.performance.routes import Undetermined

    if isinstance(error, RequestError):
        text = str(error).removeprefix("" if given.get("impl") else "--impl=").replace("--expect-", "--")
        return text.replace("--data-kinds=", "--data=")
    if isinstance(error, Undetermined):
        return f"{given['name']}: overlap is not known: {error}"
    if isinstance(error, NotImplementedError) and "mesh" in given:
        return f"{given['name']} does not support --mesh={given['mesh']}: {error}"
    return f"--output={given['output']}: {error}" if isinstance(error, OSError) and given.get("output") else ""


class Commands(click.Group):
    """The commands in sections."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a list for each section."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(90)) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that is named; click's own errors are one sentence as well."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise Refused(error.format_message()) from None


@click.group(cls=Commands, epilog=CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shardproof")
def main() -> None:
    """Check a sharded JAX function against the same function without a mesh.

    A function is named MODULE:FUNCTION, from the current directory or wherever Python finds it; or FILE.py:FUNCTION.
    """


def options(*them: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Some options in one decorator, in their order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(them), command)


PATH = click.Path(path_type=Path)
MESH = options(
    click.option("--mesh", default="tp=4", show_default=True, metavar="AXES", help="Names and sizes, as in dp=2,tp=4."),
    click.option("--axis", default="", metavar="NAMES", help="The axis tuple, as in tp,dp. [default: all axes]"),
)
OUTPUT = click.option("--output", type=PATH, help="The picture. [default: named by its subject]")
MACHINE = options(
    click.option("--machine", type=click.Choice(CHIPS), default="v5e", show_default=True, help="A published chip."),
    click.option("--dtype", default="bfloat16", show_default=True, help="Of all floating arrays."),
    click.option("--gradient", is_flag=True, help="With its gradient."),
)
SHAPE = click.option(
    "--shape",
    default="",
    metavar="SIDES",
    help="Whole arrays: 512x2048,2048x8192; of a user's 512x2048@tp,int32:9.",
)
COMPILED = options(
    click.option("--topology", default="v5e:2x4", show_default=True, help="The chips, as in v5p:2x2x1."),
    click.option("--model", type=int, default=4, show_default=True, help="The size of the model axis."),
    click.option("--shape", multiple=True, type=click.Choice(SHAPES), help="Which shapes. [default: all]"),
    click.option("--recorded", is_flag=True, help="From what is recorded, to which what is new is added."),
)
SAID = options(
    click.option("--communication", metavar="EXPRESSIONS", help="What it sends: permute=p-1,bytes=(p-1)*n/p."),
    click.option("--overlap", metavar="LIMITS", help="How it hides that: exposed<=1/p."),
    click.option("--claims", metavar="NAMES", help="What it supports beyond its contract's signature: all, or names."),
    click.option("--data", metavar="KINDS", help="The kinds of data that it is run on: exact,real. [default: all]"),
)


@main.command()
@click.argument("name")
@click.option("--laws", metavar="NAMES", help="The laws, as in value,gradient. [default: all]")
@click.option("--max-examples", type=click.IntRange(1), default=50, show_default=True, help="Structures for each law.")
@click.option("--max-seconds", type=click.FloatRange(0, min_open=True), help="How long it may draw.")
@click.option("--seed", "random_seed", type=click.IntRange(0), help="Draws other cases. [default: the same every time]")
@SAID
def check(
    name: str, communication: str | None, overlap: str | None, claims: str | None, data: str | None, **how: Any
) -> None:
    """Check a function, and print what held.

    NAME is CONTRACT=MODULE:FUNCTION, or MODULE:PROGRAM of a shardproof.Program; FILE.py in place of MODULE is taken.
    """
    from shardproof.properties.report.checking import check_implementation
    from shardproof.properties.report.progress import warn_once
    from shardproof.properties.runner.given import Given
    from shardproof.properties.runner.platforms import make_devices

    make_devices()
    given = Given.parse(name, communication, claims, overlap, data)
    try:
        with warn_once():
            click.echo(check_implementation(given.load(), **how))
    except AssertionError as error:
        end(error, str(error))


def end(error: AssertionError, text: str) -> NoReturn:
    """Prints why a check failed, and exits with its code."""
    from shardproof.properties.runner.tally import HeldOnNothing

    click.echo(text)
    raise SystemExit(NOTHING if isinstance(error, HeldOnNothing) else VIOLATED)


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--smoke", is_flag=True, help="One implementation of each contract, on few cases: about 90 CPU seconds.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def suite(arguments: tuple[str, ...], *, smoke: bool) -> None:
    """Check the implementations of this project.

    ARGUMENTS are those of pytest: -n auto, --engine simulate, -k moe.
    """
    rooms = Path(__file__).parent / "properties"
    tests, built_in = (rooms / "suite").resolve(), (rooms / "given" / "built_in.py").resolve()
    if tests.exists():  # a checkout, with its settings wherever this runs
        root = tests.parents[1]
        where = ["-c", root / "pyproject.toml", "--rootdir", root, built_in if smoke else tests]
    else:
        where = ["-p", "shardproof.properties.report.plugin", built_in]
    how = ["--hypothesis-profile=few", "-m", "smoke"] if smoke else []
    how += [] if sys.stdout.isatty() else ["-v"]  # a line for each test, which a pipe passes on at once
    command = [sys.executable, "-m", "pytest", *map(str, where), *how, *arguments]
    raise SystemExit({0: HELD, 1: VIOLATED, 5: NOTHING}.get(subprocess.run(command, check=False).returncode, USAGE))


@main.command()
@click.argument("file", type=PATH)
@click.option("--impl", metavar="NAME", help="CONTRACT=MODULE:FUNCTION or MODULE:PROGRAM. [default: the built-in one]")
@SAID
def replay(file: Path, impl: str | None, **said: str | None) -> None:
    """Check a recorded failure again.

    FILE is one of .shardproof/failures/*.json. Nothing in it is executed.
    """
    from shardproof.properties.laws.law import LawViolation
    from shardproof.properties.report.failures.replay import read, run_isolated, source_of
    from shardproof.properties.report.failures.text import render
    from shardproof.properties.runner.given import Given

    recorded = read(file)
    claims = (said[name] for name in ("communication", "claims", "overlap", "data"))
    try:
        run_isolated(recorded, source_of(recorded, [Given.parse(impl, *claims)] if impl else []))
    except AssertionError as error:
        end(error, render(error) if isinstance(error, LawViolation) else str(error))
    click.echo(f"{file}: {recorded.law} holds")


@main.command()
@click.option(
    "--minutes",
    type=click.FloatRange(0),
    default=5,
    show_default=True,
    help="Nothing more is run then; what was found wrong is still made smaller.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws other programs.")
@click.option("--operations", default="", metavar="NAMES", help="As in slice,pad. [default: all]")
@click.option("--axes", type=click.Choice(["auto", "explicit"]), help="Type of the axes of meshes. [default: both]")
@click.option(
    "--exhaustive",
    type=click.IntRange(0),
    default=0,
    metavar="SETS",
    help="All layouts of each operation with SETS of drawn parameters, instead of drawn programs.",
)
@click.option("--platform", default="cpu", show_default=True, help="Any platform of JAX, a PJRT plugin's as well.")
@click.option("--devices", type=click.IntRange(1), default=8, show_default=True, help="Number of devices to use.")
@click.option("--import", "preload", default="", metavar="MODULE", help="Imported before anything runs.")
@click.option("--json", type=PATH, help="Write all that was found to this file.")
@click.option("--scripts", type=PATH, default=".shardproof/conformance", show_default=True)
@click.option("--compare", nargs=2, type=PATH, help="Two such files: what changed instead.")
def conformance(
    compare: tuple[Path, Path] | None, platform: str, devices: int, preload: str, axes: str | None, **how: Any
) -> None:
    """Print what JAX and XLA do with layouts, by operation.

    Programs of global arrays are drawn, and run with layouts and without. XLA_FLAGS are heeded.
    """
    import_module("jax").config.update("jax_platforms", "cpu")
    from shardproof.properties.conformance import commands
    from shardproof.properties.conformance.workers import Where

    if compare:
        commands.compare(*compare)
        return
    outcome = commands.search(**how, axes=axes or "", where=Where(platform, devices, preload))
    if not outcome.programs:
        raise SystemExit(NOTHING)
    raise SystemExit(VIOLATED if any(one.confirmed for one in outcome.findings) else HELD)


@main.command()
@click.argument("name")
@MESH
@OUTPUT
@MACHINE
@SHAPE
@click.option("--sources", is_flag=True, help="Print where the machine's figures are from as well.")
def timeline(**given: Any) -> None:
    """Print and draw what a published chip would do when.

    NAME is an implementation, contract[implementation], a contract that has only one, CONTRACT=MODULE:FUNCTION, or with
    --shape MODULE:FUNCTION or MODULE:PROGRAM.
    """
    from shardproof.properties.performance.commands.drawing import draw_timeline

    draw_timeline(**given)


@main.command()
@click.argument("name")
@MESH
@MACHINE
@SHAPE
def choose(name: str, mesh: str, axis: str, machine: str, dtype: str, gradient: bool, shape: str) -> None:
    """Print the fastest form of a contract for a shape.

    NAME is a contract, or one of its forms: contract[implementation]. Functions of yours have no other forms.
    """
    from shardproof.properties.contracts import CONTRACTS
    from shardproof.properties.performance.choosing import choose
    from shardproof.properties.performance.shaped import KNOWN, parse_shapes
    from shardproof.properties.report.arguments import find, parse_axes, parse_dtype, parse_mesh

    if ":" in name:
        raise Refused(
            f"{name}: expected a contract, whose forms are compared; shardproof timeline {name} times this one"
        )
    contract, on = name if name in CONTRACTS else find(name, KNOWN).contract.name, parse_mesh(mesh)
    shapes, axes, of = parse_shapes(shape) if shape else None, parse_axes(axis, on), parse_dtype(dtype)
    click.echo(choose(contract, shapes, machine, mesh=on, axis_name=axes, dtype=of, gradient=gradient))


@main.command()
@COMPILED
@click.option("--way", multiple=True, type=click.Choice(WAYS), help="Which ways. [default: both]")
@click.option("--contract", multiple=True, help="Which products. [default: all]")
@click.option("--steps", default="", metavar="FORM", help="The schedule of one form instead, such as paired.")
def tpu(**given: Any) -> None:
    """Print products as XLA:TPU schedules them.

    Without --recorded this takes libtpu; no TPU is needed.
    """
    from shardproof.properties.performance.commands.tpu import print_schedules

    print_schedules(**given)


@main.command()
@click.argument("file", type=PATH, default="report.json")
@click.option("--output", type=PATH, help="The page, or FILE.md. [default: beside the data]")
@click.option("--open/--no-open", "opens", default=True, help="Open it in a browser.")
def report(file: Path, output: Path | None, *, opens: bool) -> None:
    """Write the page of a run, and open it.

    FILE is what `pytest --report FILE.json` wrote. [default: report.json]
    """
    from shardproof.properties.report.report import ENDINGS, read_record, report_text

    path = output or file.with_suffix(".html")
    if path.suffix not in ENDINGS:
        raise Refused(f"--output={path}: expected a file name that ends in one of {', '.join(ENDINGS)}")
    path.write_text(report_text(str(path), read_record(file)), encoding="utf-8")
    click.echo(f"wrote {path}")
    if opens and path.suffix == ".html":
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


@main.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
def compare(before: Path, after: Path) -> None:
    """Print how two runs differ, law by law.

    BEFORE and AFTER are what `pytest --report FILE.json` wrote. Exits with 1 if a law is newly violated.
    """
    from shardproof.properties.report.compare import compare
    from shardproof.properties.report.report import read_record

    lines, worse = compare(read_record(before), read_record(after))
    click.echo("\n".join(lines))
    raise SystemExit(VIOLATED if worse else HELD)


@main.command()
@click.argument("name")
@MESH
@OUTPUT
@SHAPE
def draw(name: str, mesh: str, axis: str, output: Path | None, shape: str) -> None:
    """Print and draw who sends what to whom.

    NAME is an implementation, contract[implementation], a contract that has only one, CONTRACT=MODULE:FUNCTION, or with
    --shape MODULE:FUNCTION or MODULE:PROGRAM.
    """
    from shardproof.properties.performance.commands.drawing import draw_steps
    from shardproof.properties.report.arguments import parse_axes, parse_mesh

    on = parse_mesh(mesh)
    for line in draw_steps(name, on, parse_axes(axis, on), shape, output):
        click.echo(line)


@main.command()
@click.argument("names", nargs=-1)
def defects(names: tuple[str, ...]) -> None:
    """Print which known defects this JAX has.

    The script of each runs here, all of them in minutes. NAMES are those of properties/known_defects.
    """
    from shardproof.properties.known_defects.shown import shown

    for line in shown(names):
        click.echo(line)


@main.command()
def doctor() -> None:
    """Print what is installed, the devices, and what cannot run."""
    from shardproof.properties.report.doctor import examine

    lines, works = examine()
    click.echo("\n".join(lines))
    raise SystemExit(HELD if works else USAGE)
