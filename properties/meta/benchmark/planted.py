"""The rate at which planted bugs are caught, each by its law within the structures of a default run."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws import LAWS
from shardproof.properties.mutants import MUTANTS, Mutant
from shardproof.properties.mutants.changes import KINDS, MESH_ORDER
from shardproof.properties.mutants.generated import Generated, generate
from shardproof.properties.mutants.hunt import hunt
from shardproof.properties.programs.built_in import IMPLEMENTATIONS

BY_HAND = "by hand"
"""The kind of the bugs that a person wrote."""

OUTCOMES = ("caught", "missed", "survived")


@dataclass(frozen=True)
class Outcome:
    """One planted bug, and how it fared."""

    kind: str  # `by hand`, or what kind of change a machine made
    law: str  # the law that is to catch it
    contract: str  # the contract that it breaks
    bug: str  # its name, or the implementation and the change
    outcome: str  # `caught`; `missed`; or `survived`: nothing that the law looks at was other than without the change


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `measure`."""
    parser.add_argument("--seed", type=int, default=None, help="what is drawn (default: another one in every run)")
    parser.add_argument("--contract", choices=CONTRACTS, metavar="CONTRACT", help="the bugs of one contract")
    parser.add_argument("--law", choices=LAWS, metavar="LAW", help="the bugs of one law")
    kinds = (BY_HAND, *(kind.name for kind in (*KINDS, MESH_ORDER)))
    parser.add_argument("--kind", choices=kinds, metavar="KIND", help=f"the bugs of one kind: {', '.join(kinds)}")
    parser.add_argument(
        "--generated", type=int, default=10, help="of each generated kind, how many; 0: all (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="a file that gets a line for every bug as it is hunted")


def measure(options: argparse.Namespace) -> None:
    """Prints how many bugs of each kind each law caught of how many, and those that it missed."""
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    found: list[Outcome] = []
    for bug in track([*choose(options, seed)], f"seed {seed}", transient=True):
        found.append(try_to_catch(bug, seed))
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(found[-1])) + "\n")
    console = Console(soft_wrap=True)
    console.print(table(found, seed))
    for one in sorted(found, key=lambda one: one.outcome):
        if one.outcome != "caught":
            console.print(f"{one.outcome}: {one.bug} ({one.kind}, {one.law})", markup=False)


def choose(options: argparse.Namespace, seed: int) -> Iterator[Mutant | Generated]:
    """The bugs that are asked for; of those that are generated, a seed chooses as many of each kind."""
    if options.kind in (None, BY_HAND):
        for mutant in MUTANTS.values():
            asked = options.contract in (None, mutant.contract) and options.law in (None, mutant.law)
            if asked and mutant.runs != "isolated":
                yield mutant
    kinds = [k for k in (*KINDS, MESH_ORDER) if options.kind in (None, k.name) and options.law in (None, k.law)]
    if kinds:
        changed = [i for i in IMPLEMENTATIONS if options.contract in (None, i.contract.name)]
        generated = [*generate(changed, kinds)]
        order = np.random.default_rng(seed).permutation(len(generated))
        for kind in kinds:
            yield from [generated[i] for i in order if generated[i].kind is kind][: options.generated or None]


def try_to_catch(bug: Mutant | Generated, seed: int) -> Outcome:
    """A bug, hunted by its law."""
    if isinstance(bug, Mutant):
        outcome = "missed" if hunt(bug, seed=seed, shrink=False).violation is None else "caught"
        return Outcome(BY_HAND, bug.law, bug.contract, f"{bug}: {bug.sentence}", outcome)
    return Outcome(bug.kind.name, bug.kind.law, bug.implementation.contract.name, str(bug), bug.hunt(seed=seed))


def table(found: list[Outcome], seed: int) -> Table:
    """The rate of each kind and law, and of all: of what changes anything."""
    result = Table("kind", "law", *OUTCOMES, "rate", title=f"planted bugs, seed {seed}")
    counts = Counter((one.kind, one.law, one.outcome) for one in found)
    for kind, law in (*dict.fromkeys((one.kind, one.law) for one in found), ("all", "")):
        caught, missed, survived = (
            sum(n for (k, w, o), n in counts.items() if o == outcome and (kind == "all" or (k, w) == (kind, law)))
            for outcome in OUTCOMES
        )
        rate = f"{caught / (caught + missed):.1%}" if caught + missed else ""
        result.add_row(kind, law, str(caught), str(missed), str(survived), rate)
    return result
