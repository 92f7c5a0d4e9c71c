"""Hunting one planted bug the way a run of the suite would."""

from shardproof.properties.communication.sizes import names_of
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.law import LAWS
from shardproof.properties.mutants.catalogue import Mutant
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.overlap import Overlap
from shardproof.properties.runner.budgets import structures
from shardproof.properties.runner.draws import Finding
from shardproof.properties.runner.given import claimed
from shardproof.properties.runner.search import find_violation

STRUCTURES = 200
"""What a run in the default profile draws for a law of share 1, twice as many as `check` by itself."""


def implementation_of(mutant: Mutant) -> Implementation:
    """The bug as its user would bring it, with what it claims and is expected to send."""
    said = mutant.communication
    return Implementation(
        mutant.contract,
        mutant.function.__name__,
        mutant.function,
        claimed(mutant.contract, mutant.claims),
        communication=Expectation.parse(said, names_of(mutant.contract)) if isinstance(said, str) else said,
        overlap=Overlap.parse(mutant.overlap, names_of(mutant.contract)) if mutant.overlap else None,
        whole=mutant.whole,
    )


def budget(mutant: Mutant, engine: str = "") -> int:
    """How many structures a run of the suite draws for its form, on an engine, by default the first of its law's.

    Of a user's function what `check` draws of that contract with so many examples: no more than `pytest --impl` does.
    """
    law = LAWS[mutant.law]
    contract = mutant.contract if mutant.form == "user" else ""
    return structures(law, STRUCTURES, engine or law.engines[0], mutant.form, contract)


def hunt(mutant: Mutant, *, seed: int, shrink: bool = True, engine: str | None = None) -> Finding:
    """What its law finds, within the budget that a run of the suite gives its form.

    Arguments:
        mutant: a bug that ends no process (`runs` is not `isolated`).
        seed: another one draws other cases.
        shrink: whether to look for the smallest case.
        engine: what runs it; by default the first of the law's engines, the interpreter where it can.
    """
    law = LAWS[mutant.law]
    name = engine or law.engines[0]
    return find_violation(
        law,
        implementation_of(mutant),
        engine_named(name),
        Scope(large=1024),
        max_examples=budget(mutant, name),
        random_seed=seed,
        shrink=shrink,
    )


def is_smallest(mutant: Mutant, finding: Finding) -> bool:
    """Whether the case that was found is on a mesh of the sizes of the smallest one on which the bug shows."""
    found = finding.violation
    return found is not None and sorted(found.case.mesh.sizes) == sorted(mutant.smallest)
