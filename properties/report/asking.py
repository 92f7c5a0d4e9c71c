"""One law of one implementation, in this process, after what is known of the others: for `check` and for own tests."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax

from shardproof.properties.cases import suggestion
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.law import LAWS, Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.failures.causes import Told
from shardproof.properties.runner.budgets import structures
from shardproof.properties.runner.draws import Finding
from shardproof.properties.runner.given import named
from shardproof.properties.runner.judging import ENOUGH, require_held
from shardproof.properties.runner.platforms import DEVICES
from shardproof.properties.runner.search import find_violation
from shardproof.properties.runner.tally import HeldOnNothing
from shardproof.properties.runner.violation import LawViolation

LARGE = 1024
"""The most devices of a mesh that is only simulated."""

PATIENCE = 40
"""How many unsupported cases end a law where another has held on none already."""


def asked(implementation: Implementation, laws: str | Iterable[str] | None) -> Sequence[tuple[Law, str]]:
    """The laws to check, each with an engine that can tell whether it holds.

    Arguments:
        implementation: of what.
        laws: their names; None: all that have something to ask of it.

    Raises:
        ValueError: if there is no such law, or none that has something to ask.
    """
    chosen = named("laws", laws, LAWS)
    unknown = [name for name in chosen if name not in LAWS]
    if unknown:
        raise ValueError(f"laws={unknown[0]!r}: no such law; {suggestion.meant(unknown[0], LAWS, of='some of')}")
    if not chosen:
        raise ValueError(f"laws={chosen!r}: expected some of {', '.join(LAWS)}")
    wanted = [(LAWS[name], engine) for name in chosen for engine in LAWS[name].engines_for(implementation)]
    if not wanted:
        raise ValueError(f"laws={list(chosen)!r}: expected one that has something to ask of {implementation}")
    return wanted


def idle_of(implementation: Implementation, laws: str | Iterable[str] | None) -> list[str]:
    """The laws that are asked for by name and have nothing to ask of it."""
    return [name for name in named("laws", laws, LAWS) if not LAWS[name].engines_for(implementation)] if laws else []


def ask(
    law: Law,
    engine: str,
    implementation: Implementation,
    known: Told,
    *,
    max_examples: int,
    random_seed: int | None,
    tell: Callable[[LawViolation], None] = lambda violation: None,
) -> Finding:
    """What is found on the meshes of the devices at hand; whoever tells of a violation adds it to what is known.

    The tally says whether the law held, was broken or does not apply.

    Arguments:
        law: the law.
        engine: the name of what runs it.
        implementation: of what.
        known: what the laws before found.
        max_examples: the structures that a law of share 1 draws to be simulated; fewer are compiled, and fewer drawn of
            contracts that take long: of errors all, and of values mostly.
        random_seed: another seed draws other cases; None draws the same every time.
        tell: called with every violation that is not of a cause that is known, before the smallest is found.

    Raises:
        SuiteError: if the suite itself fails.
    """

    def was_told(violation: LawViolation) -> bool:
        if known.before(violation):
            return True
        tell(violation)
        return False

    devices = len(jax.devices())
    most = devices if engine == "xla" else max(devices, DEVICES)
    found = find_violation(
        law,
        implementation,
        engine_named(engine),
        Scope(max_devices=most, available=most, large=LARGE),
        max_examples=structures(law, known.examples(max_examples), engine, contract=implementation.contract),
        random_seed=random_seed,
        was_told=was_told,
        patience=PATIENCE if known.in_vain else ENOUGH,
    )
    tally = found.tally
    tally.seconds, tally.unclaimed, tally.stated = found.seconds, implementation.unclaimed, implementation.stated
    if found.violation is not None:
        tally.outcome = "failed"
        return found
    try:
        nothing = require_held(law, implementation, tally)
        if nothing:
            tally.skip(nothing)
    except HeldOnNothing as error:
        nothing, known.in_vain, tally.outcome = str(error), True, "failed"
    return dataclasses.replace(found, nothing=nothing)
