"""`python -m shardproof.properties.benchmark.readme REPORT.md FAILURE.txt`: writes the README's generated sections."""

import argparse
from pathlib import Path

from shardproof.properties.benchmark.products import markdown
from shardproof.properties.cases.chain import LINKS
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.features import FEATURES
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.known_defects.recorded import RECORDED
from shardproof.properties.laws.law import LAWS
from shardproof.properties.runner.given import signature_of

README = Path(__file__).resolve().parents[2] / "README.md"


def laws() -> str:
    """The laws as a Markdown table."""
    rows = [f"| {law.name} | {law.sentence} | {', '.join(law.engines)} |" for law in LAWS.values()]
    return "\n".join(["| law | what holds | engines |", "|---|---|---|", *rows])


def links() -> str:
    """The transformations around a call as a Markdown table."""
    rows = [f"| `{link.name}` | {link.sentence} |" for link in LINKS.values()]
    return "\n".join(["| under | what is around the call |", "|---|---|", *rows])


def defects() -> str:
    """The known defects as a Markdown table."""
    rows = [
        f"| `{d.name}` | {d.sentence} | {', '.join(d.seen_on)} | {'' if d in RECORDED else 'yes'} |"
        for d in DEFECTS.values()
    ]
    return "\n".join(["| script | defect | JAX | excuses |", "|---|---|---|---|", *rows])


def contracts() -> str:
    """The contracts' signatures as a Markdown table."""
    rows = [f"| `{name}` | `{signature_of(name)}` |" for name in CONTRACTS]
    return "\n".join(["| contract | signature |", "|---|---|", *rows])


def features() -> str:
    """What an implementation may claim as a Markdown table."""
    rows = []
    for name, sentence in FEATURES.items():
        contracts = [c.name for c in CONTRACTS.values() if name in c.features]
        rows.append(
            f"| `{name}` | {sentence} | {'all' if len(contracts) == len(CONTRACTS) else ', '.join(contracts)} |"
        )
    return "\n".join(["| claim | what is drawn then | contracts |", "|---|---|---|", *rows])


def section(text: str, name: str) -> str:
    """What stands between the marks of a section."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0].strip()


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


def verified(report: str) -> str:
    """What a report says of every contract, without its heading."""
    return report.partition("\n")[2].partition("## By implementation")[0]


def main() -> None:
    """Rewrites the sections of the README; those whose source is not given stay as they are."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.benchmark.readme", description=__doc__)
    parser.add_argument("report", nargs="?", type=Path, help="what `pytest --report FILE.md` wrote")
    parser.add_argument("failure", nargs="?", type=Path, help="a failure as it was printed")
    options = parser.parse_args()
    text = README.read_text()
    text = with_section(text, "laws", laws())
    text = with_section(text, "links", links())
    text = with_section(text, "defects", defects())
    text = with_section(text, "features", features())
    text = with_section(text, "contracts", contracts())
    text = with_section(text, "products", markdown())
    if options.report:
        text = with_section(text, "verified", verified(options.report.read_text()))
    if options.failure:
        text = with_section(text, "failure", f"```text\n{options.failure.read_text().strip()}\n```")
    README.write_text(text)


if __name__ == "__main__":
    main()
