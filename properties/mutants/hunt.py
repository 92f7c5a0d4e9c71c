"""Hunting one planted bug as a run of the suite does."""

from typing import Any

from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.mutants.catalogue import Mutant
from shardproof.properties.programs.expectation import Expectation, Overlap, names_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.given import find_features
from shardproof.properties.runner.profiles import STRUCTURES as PROFILES
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


def find(
    law: Law, implementation: Implementation, structures: int, seed: int, *, engine: str = "simulate", **more: Any
) -> Finding:
    """The finding of a law in this many structures on meshes of all sizes; `more` is of `find_violation`."""
    return find_violation(
        [law],
        implementation,
        engine_named(engine),
        Scope(large=300),
        max_examples=structures,
        random_seed=seed,
        **{"shrink": False, **more},
    )


def hunt(
    mutant: Mutant, *, seed: int, shrink: bool = True, engine: str = "simulate", structures: int = STRUCTURES
) -> Finding:
    """The finding of the law of a bug that ends no process (`runs` is not `isolated`)."""
    return find(LAWS[mutant.law], implementation_of(mutant), structures, seed, engine=engine, shrink=shrink)


def is_smallest(mutant: Mutant, finding: Finding) -> bool:
    """True if the found case is on a mesh of the smallest sizes on which the bug shows."""
    found = finding.violation
    return found is not None and sorted(found.case.mesh.sizes) == sorted(mutant.smallest)
