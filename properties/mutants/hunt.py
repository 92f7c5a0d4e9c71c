"""Hunting one planted bug as a run of the suite does."""

from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.mutants.catalogue import Mutant
from shardproof.properties.programs.expectation import Expectation, Overlap, names_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.given import find_features
from shardproof.properties.runner.search import STRUCTURES as PROFILES
from shardproof.properties.runner.search import Finding, find_violation

STRUCTURES = PROFILES["dev"]
"""The structures of a default run."""


def implementation_of(mutant: Mutant) -> Implementation:
    """The bug as its user would bring it, with what it claims and is expected to send."""
    said, contract = mutant.communication, CONTRACTS[mutant.contract]
    return Implementation(
        contract,
        mutant.function.__name__,
        mutant.function,
        find_features(mutant.contract, mutant.claims),
        communication=Expectation.parse(said, names_of(contract)) if isinstance(said, str) else said,
        overlap=Overlap.parse(mutant.overlap, names_of(contract)) if mutant.overlap else None,
        whole=mutant.whole,
    )


def hunt(
    mutant: Mutant, *, seed: int, shrink: bool = True, engine: str = "simulate", structures: int = STRUCTURES
) -> Finding:
    """The finding of its law.

    Arguments:
        mutant: a bug that ends no process (`runs` is not `isolated`).
        seed: another one draws other cases.
        shrink: whether to look for the smallest case.
        engine: what runs it.
        structures: how many are drawn.
    """
    return find_violation(
        [LAWS[mutant.law]],
        implementation_of(mutant),
        engine_named(engine),
        Scope(large=300),
        max_examples=structures,
        random_seed=seed,
        shrink=shrink,
    )


def is_smallest(mutant: Mutant, finding: Finding) -> bool:
    """True if the found case is on a mesh of the smallest sizes on which the bug shows."""
    found = finding.violation
    return found is not None and sorted(found.case.mesh.sizes) == sorted(mutant.smallest)
