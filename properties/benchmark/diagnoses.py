"""What is said of each planted bug, beside the sentence that says what is wrong with it."""

from rich.console import Console
from rich.progress import track

from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import hunt
from shardproof.properties.report.failures.text import diagnosed

UNEXPLAINED = ("other values", "another formula")
"""How a diagnosis begins that explains nothing."""


def measure(seeds: range) -> None:
    """Prints all diagnoses, of the first case that was caught and of the smallest one, and how many explain nothing."""
    drawn = [m for m in MUTANTS.values() if m.runs != "isolated"]
    console = Console(width=160, highlight=False)
    for seed in seeds:
        for shrink in (False, True):
            told = unexplained = 0
            kind = "shrunk" if shrink else "as caught"
            for mutant in track(drawn, f"seed {seed}, {kind}", transient=True):
                violation = hunt(mutant, seed=seed, shrink=shrink).violation
                if violation is None or violation.difference is None:
                    continue
                lines = diagnosed(violation)
                told += 1
                unexplained += any(line.startswith(UNEXPLAINED) for line in lines)
                text = [f"{mutant}: {mutant.sentence}", f"  {violation.case}", *(f"    {line}" for line in lines)]
                console.print("\n".join(text), markup=False)
            share = 100 * unexplained / max(told, 1)
            console.print(f"seed {seed}, {kind}: {told} diagnoses, {unexplained} ({share:.1f}%) explain nothing")
