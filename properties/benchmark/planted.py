"""What each planted bug costs to catch and to shrink, and the mesh that is left."""

import statistics

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from shardproof.properties.mutants import MUTANTS, Mutant
from shardproof.properties.mutants.hunt import budget, hunt, is_smallest
from shardproof.properties.runner.draws import Finding

COLUMNS = ("planted bug", "law", "structures", "seconds to catch", "to shrink", "shrunk to", "smallest")


def measure(seeds: range) -> None:
    """Prints a table for the first seed, and for every seed the medians and how many are caught and shrunk."""
    drawn = [m for m in MUTANTS.values() if m.runs != "isolated"]
    console = Console(width=130)
    for seed in seeds:
        found = {m: hunt(m, seed=seed) for m in track(drawn, f"seed {seed}", transient=True)}
        if seed == seeds.start:
            console.print(table(found))
        console.print(summary(seed, found))
        for mutant, finding in found.items():
            if not is_smallest(mutant, finding):
                console.print(f"  {mutant}: {outcome(finding)}, smallest {sizes(mutant.smallest)}", markup=False)


def table(found: dict[Mutant, Finding]) -> Table:
    """One row per planted bug."""
    result = Table(title=f"{len(found)} planted bugs, each hunted by its law in the default budget, one process")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    for mutant, finding in found.items():
        result.add_row(
            escape(str(mutant)),
            mutant.law,
            f"{finding.caught_after} of {budget(mutant)}",
            f"{finding.caught_seconds:.2f}",
            f"{finding.seconds - finding.caught_seconds:.2f}",
            outcome(finding),
            sizes(mutant.smallest),
        )
    return result


def summary(seed: int, found: dict[Mutant, Finding]) -> str:
    """One seed in a sentence."""
    caught = [f for f in found.values() if f.violation is not None]
    shrunk = sum(is_smallest(m, f) for m, f in found.items())
    return (
        f"seed {seed}: {len(caught)} of {len(found)} caught, in the median after "
        f"{statistics.median(f.caught_after for f in caught):.0f} cases and "
        f"{statistics.median(f.caught_seconds for f in caught):.2f} s, shrunk in "
        f"{statistics.median(f.seconds - f.caught_seconds for f in caught):.2f} s, "
        f"{shrunk} ({100 * shrunk / len(found):.1f}%) to the smallest mesh"
    )


def outcome(finding: Finding) -> str:
    """The sizes of the mesh that was left."""
    return "missed" if finding.violation is None else sizes(finding.violation.case.mesh.sizes)


def sizes(of: tuple[int, ...]) -> str:
    """Sizes of axes, in no order."""
    return "x".join(map(str, sorted(of)))
