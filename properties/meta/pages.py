"""Writes the tables of the pages: `python -m shardproof.properties.meta.pages`; with `--check` it compares them."""

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cogapp import Cog
from jax import lax
from jax.extend.core import primitives

from shardproof.properties.cases.chain import LINKS
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import FEATURES
from shardproof.properties.engines import ENGINES
from shardproof.properties.engines.simulate import RULES
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.known_defects.registry import EXCUSING
from shardproof.properties.laws import LAWS
from shardproof.properties.performance.commands.tpu import forms_of
from shardproof.properties.performance.compiled import UNSHARDED, Figures, Place, Work, key_of, recorded
from shardproof.properties.performance.shaped import KNOWN
from shardproof.properties.performance.tables import markdown
from shardproof.properties.performance.tpu_compiler import COMPILER, WAYS
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.precision.arithmetic import PATIENCE, ULPS
from shardproof.properties.precision.comparison import VACUOUS
from shardproof.properties.precision.formats import COARSE
from shardproof.properties.precision.judge import DRIFT, FACTOR
from shardproof.properties.precision.runs import MANY, SAMPLES
from shardproof.properties.programs.built_in import IMPLEMENTATIONS, PRODUCTS
from shardproof.properties.programs.examples import SHAPES
from shardproof.properties.runner.given import signature_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
CONTRACTS_PAGE = DOCS / "contracts.md"
DESCRIBE_PAGE = DOCS / "describe.md"
EXAMPLES_PAGE = DOCS / "examples.md"
IMPL_PAGE = DOCS / "implementations.md"
PERFORMANCE_PAGE = DOCS / "performance.md"
REPORT_PAGE = DOCS / "failures.md"
VERIFIED = DOCS / "verified.md"
PAGES = (README, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
PROLOGUE = "from shardproof.properties.meta import pages"

WORST = (
    "overlapping_update",
    "pmax_loses_nan",
    "varying_predicate_type",
    "grad_of_psum_unchecked",
    "batched_product_over_two_axes",
)
"""Defects that give wrong numbers or types without an error, for the front page."""

COMPILED_COLUMNS = (
    "product", "shape", "best of ours", "unsharded us", "floor", "naive", "XLA's own", "ours", "exposed", "permutes",
    "MB naive", "MB ours",
)  # fmt: skip
PLAIN_FORMS = (UNSHARDED, "naive", COMPILER)

OF_NO_ARRAYS = {"after_all", "call", "create_token", "custom_lin", "dce_sink", "get", "stage", "swap"}
"""Primitives of tokens and references, and what JAX itself takes out of every program; each version has its own."""


def laws() -> str:
    """The laws."""
    rows = []
    for law in LAWS.values():
        engines = [engine for engine in ENGINES if any(law.applies_to(one, engine) for one in IMPLEMENTATIONS)]
        rows.append((law.name, law.sentence, ", ".join(engines)))
    return markdown(("law", "what holds", "engines"), rows)


def links() -> str:
    """The transformations around a call."""
    return markdown(("under", "what is around the call"), [(f"`{one.name}`", one.sentence) for one in LINKS.values()])


def defects() -> str:
    """The known defects of JAX and XLA."""
    rows = [(f"`{d.name}`", d.sentence, ", ".join(d.seen_on), "yes" if d in EXCUSING else "") for d in DEFECTS.values()]
    return markdown(("script", "defect", "JAX", "excuses"), rows)


def worst_defects() -> str:
    """The defects of the front page, and how many others there are."""
    rows = [(f"`{name}`", DEFECTS[name].sentence, ", ".join(DEFECTS[name].seen_on)) for name in WORST]
    more = f"{len(DEFECTS) - len(WORST)} more: [all {len(DEFECTS)}](docs/defects.md)."
    return f"{markdown(('script', 'defect', 'JAX'), rows)}\n\n{more}"


def contracts() -> str:
    """The signatures of the contracts."""
    return markdown(("contract", "signature"), [(f"`{name}`", f"`{signature_of(name)}`") for name in CONTRACTS])


def docstrings() -> str:
    """The modules of the first implementations, whose docstrings say how operands are sharded."""
    first = {one.contract.name: one.function.__module__ for one in reversed(IMPLEMENTATIONS)}
    modules: dict[str, list[str]] = {}
    for contract in CONTRACTS:
        path = first[contract].removeprefix("shardproof.").replace(".", "/") + ".py"
        modules.setdefault(path, []).append(f"`{contract}`")
    return markdown(("docstrings of", "contracts"), [(f"`{path}`", ", ".join(of)) for path, of in modules.items()])


def features() -> str:
    """The features, and the contracts that have them."""
    rows = []
    for name, sentence in FEATURES.items():
        having = [c.name for c in CONTRACTS.values() if name in c.features]
        rows.append((f"`{name}`", sentence, "all" if len(having) == len(CONTRACTS) else ", ".join(having)))
    return markdown(("claim", "what is drawn then", "contracts"), rows)


def without_rule() -> str:
    """The primitives that the interpreter has no rule for."""
    modules = (lax, lax.linalg, primitives)
    found = {getattr(module, name).name for module in modules for name in dir(module) if name.endswith("_p")}
    return ", ".join(f"`{name}`" for name in sorted(found - OF_NO_ARRAYS - RULES.keys())) + "."


def samples() -> str:
    """The numbers of the judge of precision."""
    rows = [
        (
            "`SAMPLES`",
            f"{SAMPLES}",
            f"samples of each data set, and half as many on more than {MANY} devices or of many numbers",
        ),
        ("`FACTOR`", f"{FACTOR:g}", "times their largest difference is right; of half as many samples twice that"),
        ("`COARSE`", f"{COARSE:g}", "units in the last place is the interval wide in which a sample rounds"),
        (
            "`ULPS`",
            f"{ULPS:g}",
            "units in the last place may an approximated function be off, `COARSE` times as many in a sample",
        ),
        ("`PATIENCE`", f"{PATIENCE}", "times the steps of float64, and as many more, may a loop take in a sample"),
        ("`DRIFT`", f"1/{1 / DRIFT:g}", "of an element, to which roundings to the nearest may drift one way"),
        ("`VACUOUS`", f"1/{1 / VACUOUS:g}", "of the largest element, beyond which one is undecided"),
    ]
    return markdown(("constant", "value", "what it is"), rows)


def without_timelines() -> str:
    """The contracts whose arrays are of no shape that can be asked for."""
    return f"Contracts without timelines: {', '.join(f'`{name}`' for name in CONTRACTS if name not in KNOWN)}."


def compiled() -> str:
    """The recorded products as XLA:TPU schedules them: the fastest form and those that do not overlap."""
    place, lines = Place(Topology.parse("v5e:2x4"), 4), []
    for way, one, shape in itertools.product(WAYS, PRODUCTS, SHAPES):
        contract = one.contract.name
        work = Work(contract, shape, place, way)
        forms = (UNSHARDED, COMPILER, *(form.name for form in forms_of(contract)))
        known = {form: recorded().get(key_of(work, form)) for form in forms}
        figures = {form: found for form, found in known.items() if isinstance(found, Figures)}
        ours = [form for form in figures if form not in PLAIN_FORMS]
        if None in known.values() or not ours or not figures.keys() >= {*PLAIN_FORMS}:
            continue
        alone, fastest = figures[UNSHARDED], min(ours, key=lambda form: figures[form].total)
        name, least = fastest.removesuffix(contract).rstrip("_"), f"{float(work.floor(alone.seconds)):.2f}"
        times = (f"{figures[form].total / alone.total:.2f}" for form in ("naive", COMPILER, fastest))
        sizes = (f"{figures[form].temporary_bytes / 1e6:.1f}" for form in ("naive", fastest))
        counts = f"{figures[fastest].share:.0%}", str(figures[fastest].permutes)
        lines.append((contract, f"{shape} {way}", name, f"{alone.total:.0f}", least, *times, *counts, *sizes))
    return markdown(COMPILED_COLUMNS, lines, left=3)


def rows_of(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table in a text, by column."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def verified() -> str:
    """The whole run of VERIFIED.md in one sentence."""
    lines = VERIFIED.read_text(encoding="utf-8").splitlines()
    (total,) = [line for line in lines if line.startswith("structures that each law held on")]
    return total


def block(page: Path, name: str, language: str) -> str:
    """The code of a language that stands in a page between the marks of a name."""
    text = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
    return re.split(r"^```\n?", text.partition(f"```{language}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the tables into the pages, or compares them with `--check`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.meta.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a table is not up to date")
    changes = ("--check", "--diff") if parser.parse_args(arguments).check else ("-r",)
    return int(Cog().main(["cog", *changes, "-p", PROLOGUE, *map(str, PAGES)]))


if __name__ == "__main__":
    sys.exit(main())
