"""The rate at which planted bugs are caught, each by its law within the budget that a run of the suite gives it."""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from shardproof.properties.mutants import MUTANTS, Mutant
from shardproof.properties.mutants.hunt import hunt


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `measure`."""
    parser.add_argument("--seed", type=int, default=None, help="what is drawn (default: another one in every run)")
    parser.add_argument("--contract", help="the bugs of one contract")
    parser.add_argument("--law", help="the bugs of one law")
    parser.add_argument("--json", type=Path, help="a file that gets a line for every bug as it is hunted")


def measure(options: argparse.Namespace) -> None:
    """Prints how many bugs each law caught of how many, and those that it missed."""
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    chosen = [
        mutant
        for mutant in MUTANTS.values()
        if mutant.runs != "isolated"
        and options.contract in (None, mutant.contract)
        and options.law in (None, mutant.law)
    ]
    found: dict[Mutant, bool] = {}
    for mutant in track(chosen, f"seed {seed}", transient=True):
        found[mutant] = hunt(mutant, seed=seed, shrink=False).violation is not None
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps([mutant.name, mutant.contract, mutant.law, found[mutant]]) + "\n")
    console = Console()
    console.print(table(found, seed))
    for mutant, caught in found.items():
        if not caught:
            console.print(f"missed: {mutant} ({mutant.law}): {mutant.sentence}", markup=False)


def table(found: dict[Mutant, bool], seed: int) -> Table:
    """The rate of each law, and of all."""
    result = Table("law", "planted", "caught", "rate", title=f"planted bugs, seed {seed}")
    planted = Counter(mutant.law for mutant in found)
    caught = Counter(mutant.law for mutant, is_caught in found.items() if is_caught)
    for law, count in (*planted.items(), ("all", planted.total())):
        number = caught.total() if law == "all" else caught[law]
        result.add_row(law, str(count), str(number), f"{number / max(count, 1):.1%}")
    return result
