"""`python -m shardproof.properties.benchmark.readme REPORT.md FAILURE.txt`: writes what is generated in the READMEs."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from shardproof.properties.benchmark import examples, moe, moe_growth, option_table, parity, products, survivors, tpu
from shardproof.properties.benchmark.tables import markdown
from shardproof.properties.cases.chain import LINKS
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.features import FEATURES
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.known_defects.recorded import RECORDED
from shardproof.properties.laws.law import LAWS
from shardproof.properties.performance.shaped import KNOWN
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.runner.given import signature_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CONTRACTS_PAGE = ROOT / "properties/contracts/README.md"
COUNTING_PAGE = ROOT / "properties/performance/README.md"
DEFECTS_PAGE = ROOT / "properties/known_defects/README.md"
IMPL_PAGE = ROOT / "impl/README.md"
REPORTS_PAGE = ROOT / "properties/report/README.md"
SUITE_PAGE = ROOT / "properties/README.md"
VERIFIED_PAGE = ROOT / "properties/suite/VERIFIED.md"

HOMES: Mapping[str, Path] = {
    "program": README,
    "program-failure": README,
    "program-tests": README,
    "mine": README,
    "contracts": README,
    "claims": README,
    "laws": README,
    "verified": README,
    "worst": README,
    "timeline": README,
    "choose": README,
    "step": CONTRACTS_PAGE,
    "docstrings": CONTRACTS_PAGE,
    "features": CONTRACTS_PAGE,
    "links": CONTRACTS_PAGE,
    "timelines": COUNTING_PAGE,
    "crossover": COUNTING_PAGE,
    "without-timelines": COUNTING_PAGE,
    "compiled": COUNTING_PAGE,
    "compiled-elsewhere": COUNTING_PAGE,
    "choose-compiled": COUNTING_PAGE,
    "defects": DEFECTS_PAGE,
    "survivors": IMPL_PAGE,
    "products": IMPL_PAGE,
    "moe": IMPL_PAGE,
    "moe-dispatches": IMPL_PAGE,
    "moe-growth": IMPL_PAGE,
    "global-moe": IMPL_PAGE,
    "losses": IMPL_PAGE,
    "parity": IMPL_PAGE,
    "distillation": IMPL_PAGE,
    "failure": REPORTS_PAGE,
    "options": REPORTS_PAGE,
    "verified-in-full": VERIFIED_PAGE,
}
"""The file that each section is in."""

PAGES = (*dict.fromkeys(HOMES.values()), SUITE_PAGE)
"""All README files."""

WORST = (
    "overlapping_update",
    "pmax_loses_nan",
    "varying_predicate_type",
    "grad_of_psum_unchecked",
    "pmean_uneven_groups",
    "product_over_three_axes",
)
"""Defects that give wrong numbers or types without an error, for the front page."""

SHORT = ("contract", "implementations", "cases", "meshes", "largest mesh")
"""The columns of what is verified that the front page has."""


def laws() -> str:
    """The laws as a Markdown table."""
    rows = [(law.name, law.sentence, ", ".join(law.engines)) for law in LAWS.values()]
    return markdown(("law", "what holds", "engines"), rows)


def links() -> str:
    """The transformations around a call as a Markdown table."""
    rows = [(f"`{link.name}`", link.sentence) for link in LINKS.values()]
    return markdown(("under", "what is around the call"), rows)


def defects() -> str:
    """The known defects as a Markdown table."""
    rows = [(f"`{d.name}`", d.sentence, ", ".join(d.seen_on), "" if d in RECORDED else "yes") for d in DEFECTS.values()]
    return markdown(("script", "defect", "JAX", "excuses"), rows)


def worst() -> str:
    """The defects of the front page as a Markdown table, and how many others there are."""
    rows = [(f"`{name}`", DEFECTS[name].sentence, ", ".join(DEFECTS[name].seen_on)) for name in WORST]
    more = f"{len(DEFECTS) - len(WORST)} more: [all {len(DEFECTS)}](properties/known_defects/README.md)."
    return f"{markdown(('script', 'defect', 'JAX'), rows)}\n\n{more}"


def contracts() -> str:
    """The contracts' signatures as a Markdown table."""
    return markdown(("contract", "signature"), [(f"`{name}`", f"`{signature_of(name)}`") for name in CONTRACTS])


def docstrings() -> str:
    """The modules whose docstrings say how operands are sharded as a Markdown table.

    Of every contract the module that has its first implementation, or the built-in one.
    """
    modules: dict[str, list[str]] = {}
    first = {i.contract: i.function.__module__ for i in reversed(IMPLEMENTATIONS)}
    for contract in CONTRACTS:
        path = first[contract].removeprefix("shardproof.").replace(".", "/") + ".py"
        modules.setdefault(path, []).append(f"`{contract}`")
    return markdown(("docstrings of", "contracts"), [(f"`{path}`", ", ".join(of)) for path, of in modules.items()])


def claims() -> str:
    """What an implementation may claim, in a line."""
    return ", ".join(f"`{name}`" for name in FEATURES) + "."


def features() -> str:
    """What an implementation may claim, and of which contracts, as a Markdown table."""
    rows = []
    for name, sentence in FEATURES.items():
        named = [c.name for c in CONTRACTS.values() if name in c.features]
        rows.append((f"`{name}`", sentence, "all" if len(named) == len(CONTRACTS) else ", ".join(named)))
    return markdown(("claim", "what is drawn then", "contracts"), rows)


def without_timelines() -> str:
    """The contracts whose arrays are of no shape that can be asked for, in a line."""
    names = [f"`{name}`" for name in CONTRACTS if name not in KNOWN]
    return f"Contracts without timelines: {', '.join(names)}."


def options() -> str:
    """The options of pytest that the suite adds as a Markdown table."""
    return markdown(("option", "what it does"), option_table.rows())


def verified(report: str) -> str:
    """What a report says of every contract, without its heading."""
    return report.partition("\n")[2].partition("## By implementation")[0]


def cells(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table in a text, by column."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def in_short(full: str) -> str:
    """The table of what is verified with the columns of the front page, and the run in one sentence."""
    rows = [[f"`{row['contract']}`", *(row[name] for name in SHORT[1:])] for row in cells(full)]
    (total,) = [line for line in full.splitlines() if " cases checked on " in line]
    return f"{markdown(SHORT, rows, left=1)}\n\n{total}"


COMPUTED = {
    "laws": laws,
    "links": links,
    "defects": defects,
    "worst": worst,
    "contracts": contracts,
    "docstrings": docstrings,
    "claims": claims,
    "features": features,
    "options": options,
    "without-timelines": without_timelines,
    "compiled": tpu.recorded,
    "compiled-elsewhere": tpu.elsewhere,
    "products": products.markdown,
    "parity": parity.markdown,
}
"""The sections that follow from the suite alone."""

TRACED = {"moe-dispatches": moe.markdown, "moe-growth": moe_growth.markdown}
"""Those that follow from it and from the order in which a version of JAX, which they name, traces equations."""


def section(name: str) -> str:
    """What stands between the marks of a section."""
    text = HOMES[name].read_text(encoding="utf-8")
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0].strip()


def block(name: str, language: str) -> str:
    """The code of a language in a section."""
    return section(name).partition(f"```{language}\n")[2].partition("```")[0]


def with_section(text: str, name: str, content: str) -> str:
    """The text with a section replaced.

    Raises:
        ValueError: if it has none of that name.
    """
    before, start, rest = text.partition(f"<!-- {name} -->\n")
    if not start:
        raise ValueError(f"name={name!r}: the text has no <!-- {name} -->")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{start}\n{content.strip()}\n\n{end}{after}"


def write(name: str, content: str) -> None:
    """Replaces a section in the file that has it."""
    path = HOMES[name]
    path.write_text(with_section(path.read_text(encoding="utf-8"), name, content), encoding="utf-8")


def with_output(name: str, printed: str) -> str:
    """A section with what its program or commands print."""
    return f"{section(name).partition('```text')[0]}```text\n{printed.strip()}\n```"


def main() -> None:
    """Rewrites the sections; those whose source is not given stay as they are."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.benchmark.readme", description=__doc__)
    parser.add_argument("report", nargs="?", type=Path, help="what `pytest --report FILE.md` wrote")
    parser.add_argument("failure", nargs="?", type=Path, help="the failure of ring_shift as it was printed")
    parser.add_argument("--run", action="store_true", help="run the programs and commands whose output is printed")
    arguments = parser.parse_args()
    for name, computed in (COMPUTED | TRACED).items():
        write(name, computed())
    if arguments.report:
        write("verified-in-full", verified(arguments.report.read_text(encoding="utf-8")))
    write("verified", in_short(section("verified-in-full")))
    if arguments.failure:
        write("failure", f"```text\n{arguments.failure.read_text(encoding='utf-8').strip()}\n```")
    if arguments.run:
        write("survivors", survivors.markdown())
        write("moe", with_output("moe", examples.of_program(block("moe", "python"))))
        for name in ("timeline", "timelines"):
            write(name, with_output(name, examples.of_commands(block(name, "sh"))))


if __name__ == "__main__":
    main()
