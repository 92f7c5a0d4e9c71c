"""Checking one function outside of pytest: against every law, with a report of what it breaks."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
from hypothesis import settings

from properties import failures
from properties.communication.expectation import Expectation
from properties.contracts import Scope
from properties.engines import engine_named
from properties.given import check_contract, check_signature
from properties.implementations import Implementation
from properties.search import find_violation
from properties.verification import LAWS


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
    communication: str = "",
) -> None:
    """Checks a device-local function against a contract, simulated and on the devices at hand; for use in any test.

    It runs in this process, which one that aborts or hangs takes along: for such a function there is `--impl`.

    Arguments:
        contract: the contract's name, `"all_gather"` say.
        function: what satisfies it, called as `function(x, axis_name, **parameters)` in `shard_map`.
        laws: the laws to check, all by default.
        max_examples: the structures that a law of share 1 draws to be simulated; fewer are compiled.
        random_seed: another seed draws other cases; None draws the same every time.
        communication: what it sends, as `--expect-communication` takes it: `"permute=p-1,bytes=(p-1)*n/p"`.

    Raises:
        AssertionError: with the whole report, if a law does not hold.
        ValueError: if there is no such contract or law, the function cannot be called as it demands, or the
            expectation cannot be read.

    Example:
        >>> from jax import lax
        >>> check("all_gather", lax.all_gather, laws=["value"], max_examples=5)
    """
    check_contract(contract)
    check_signature(contract, function)
    unknown = [name for name in laws if name not in LAWS]
    if unknown:
        raise ValueError(f"laws={unknown[0]!r}: expected some of {', '.join(LAWS)}")
    expectation = Expectation.parse(communication) if communication else None
    implementation = dataclasses.replace(user_implementation(contract, function), expectation=expectation)
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
