"""Checking one implementation outside of pytest: law by law, to the smallest case that breaks one."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
from hypothesis import HealthCheck, Phase, given, seed, settings

from properties import failures
from properties.cases import Case
from properties.contracts import Scope
from properties.engines import Engine, engine_named
from properties.given import check_contract, check_signature
from properties.implementations import Implementation
from properties.laws.violation import LawViolation
from properties.tally import Tally
from properties.verification import LAWS, Law, verify


@dataclass(frozen=True)
class Finding:
    """How an implementation fared under a law.

    Arguments:
        law: the law's name.
        violation: the smallest case that breaks it, or None.
        tally: what was checked.
        caught_after: how many structures were tried until the first that broke it.
        caught_seconds: how long that took.
        seconds: how long it took in all, shrinking included.
    """

    law: str
    violation: LawViolation | None
    tally: Tally
    caught_after: int = 0
    caught_seconds: float = 0.0
    seconds: float = 0.0


def find_violation(
    law: Law,
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    *,
    max_examples: int,
    random_seed: int | None = None,
    shrink: bool = True,
    before: Callable[[Case], None] = lambda case: None,
) -> Finding:
    """Draws cases until one breaks the law, and shrinks it.

    Arguments:
        law: the law.
        implementation: the implementation.
        engine: what runs it.
        scope: what cases may use.
        max_examples: how many cases to draw.
        random_seed: another seed draws other cases; None derandomizes.
        shrink: whether to look for the smallest case.
        before: called with every case before it is checked.
    """
    tally = Tally(implementation.contract, implementation.name, law.name, engine.name)
    start = time.perf_counter()
    tried = 0
    caught: tuple[int, float] | None = None
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=random_seed is None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(case=law.cases(implementation, scope))
    def holds(case: Case) -> None:
        nonlocal tried, caught
        tried += 1
        before(case)
        try:
            verify(law, implementation, case, engine, tally)
        except LawViolation:
            caught = caught or (tried, time.perf_counter() - start)
            raise

    try:
        (holds if random_seed is None else seed(random_seed)(holds))()
    except LawViolation as violation:
        assert caught is not None
        return Finding(law.name, violation, tally, *caught, time.perf_counter() - start)
    return Finding(law.name, None, tally, seconds=time.perf_counter() - start)


def user_implementation(contract: str, function: Callable[..., Any]) -> Implementation:
    """A user's function, of which nothing is assumed but the contract's signature."""
    name = getattr(function, "__name__", type(function).__name__)
    return Implementation(contract, name, function)


def check(
    contract: str,
    function: Callable[..., Any],
    *,
    laws: Iterable[str] = tuple(LAWS),
    max_examples: int = 100,
    random_seed: int | None = None,
) -> None:
    """Checks a device-local function against a contract, simulated and on the devices at hand; for use in any test.

    Arguments:
        contract: the contract's name, `"all_gather"` say.
        function: what satisfies it, called as `function(x, axis_name, **parameters)` in `shard_map`.
        laws: the laws to check, all by default.
        max_examples: the structures that a law of share 1 draws to be simulated; fewer are compiled.
        random_seed: another seed draws other cases; None draws the same every time.

    Raises:
        AssertionError: with the whole report, if a law does not hold.
        ValueError: if there is no such contract or law, or the function cannot be called as it demands.

    Example:
        >>> from jax import lax
        >>> check("all_gather", lax.all_gather, laws=["value"], max_examples=5)
    """
    check_contract(contract)
    check_signature(contract, function)
    unknown = [name for name in laws if name not in LAWS]
    if unknown:
        raise ValueError(f"laws={unknown[0]!r}: expected some of {', '.join(LAWS)}")
    implementation = user_implementation(contract, function)
    devices = len(jax.devices())
    at_hand = {"xla": devices, "simulate": max(devices, 8)}
    violations = []
    for law, engine in ((LAWS[name], engine) for name in laws for engine in LAWS[name].engines):
        found = find_violation(
            law,
            implementation,
            engine_named(engine),
            Scope(max_devices=at_hand[engine], available=at_hand[engine], large=1024),
            max_examples=law.examples(settings(max_examples=max_examples), engine),
            random_seed=random_seed,
        )
        if found.violation is not None:
            violations.append(found.violation)
    if violations:
        for violation in violations:
            failures.write(violation)
        raise AssertionError("\n\n".join(str(violation) for violation in violations))
