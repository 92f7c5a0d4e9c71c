"""Checking one function outside of pytest: against every law, with a report of what it breaks."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax

from shardproof.properties.communication.sizes import names_of
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.overlap import Overlap
from shardproof.properties.programs.violation import SuiteError
from shardproof.properties.report import failures
from shardproof.properties.report.asking import ask, asked, idle_of
from shardproof.properties.report.failures.causes import LEFT_OUT, Told, by_cause, told
from shardproof.properties.report.progress import Progress, devices_note
from shardproof.properties.report.summary import Summary
from shardproof.properties.runner.given import check_contract, check_draws, check_signature, claimed, named
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.tally import Tally


def user_implementation(contract: str, function: Callable[..., Any], claims: Iterable[str] = ()) -> Implementation:
    """A user's function, of which nothing is assumed but the contract's signature and what is claimed.

    Raises:
        ValueError: if a claim is none of the contract's features.
    """
    name = getattr(function, "__name__", type(function).__name__)
    return Implementation(contract, name, function, claimed(contract, claims), whole=CONTRACTS[contract].whole)


def check(
    contract: str,
    function: Callable[..., Any],
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = 100,
    random_seed: int | None = None,
    communication: str = "",
    overlap: str = "",
    claims: str | Iterable[str] | None = None,
) -> Summary:
    """Checks a device-local function against a contract, simulated and on the devices at hand; for use in any test.

    It runs in this process, which one that aborts or hangs takes along: for such a function there is `--impl`.

    Arguments:
        contract: the contract's name, `"all_gather"` say.
        function: what satisfies it, called as `function(x, axis_name, **parameters)` in `shard_map`.
        laws: the laws to check; None: all of them.
        max_examples: the structures that a law of share 1 draws to be simulated, at least 1; fewer are compiled. Of
            contracts that take long, such as those of experts, fewer are drawn than by `pytest --impl` with as many
            examples: of errors all, and of values mostly.
        random_seed: another seed draws other cases; None draws the same every time.
        communication: what it sends, as `--expect-communication` takes it: `"permute=p-1,bytes=(p-1)*n/p"`, and
            after `;grad:` what its gradient sends.
        overlap: how it hides that, as `--expect-overlap` takes it: `"exposed<=1/p"`.
        claims: what it supports beyond the contract's signature (see `FEATURES`): `("bool_sum", "groups")`, or
            `("all",)`; None: nothing. What it does not claim is not drawn.

    Returns:
        What was checked, law by law: `print` it for a table of what held, and of what was left out and why.

    Raises:
        AssertionError: with the whole report, if a law does not hold, or held on nothing. An oracle or a law that fails
            itself is in it as an error of this suite; the other laws are checked all the same.
        ValueError: if there is no such contract, law or feature, no law or example at all, the function cannot be
            called as they demand, or the expectation cannot be read.

    Example:
        >>> from jax import lax
        >>> check("all_gather", lax.all_gather, laws=["value"], max_examples=5)
    """
    __tracebackhide__ = True
    check_contract(contract)
    features = claimed(contract, named("claims", claims, ()))
    check_signature(contract, function, features)
    expectation = Expectation.parse(communication, names_of(contract)) if communication else None
    hides = Overlap.parse(overlap, names_of(contract)) if overlap else None
    own = user_implementation(contract, function, features)
    implementation = dataclasses.replace(own, communication=expectation, overlap=hides)
    return checked(implementation, laws, max_examples=max_examples, random_seed=random_seed)


def checked(
    implementation: Implementation,
    laws: str | Iterable[str] | None,
    *,
    max_examples: int,
    random_seed: int | None,
) -> Summary:
    """What `check` does, of any implementation."""
    __tracebackhide__ = True  # the report says what is wrong; the code that looked for it is no part of that
    check_draws(max_examples, random_seed)
    wanted = asked(implementation, laws)
    make_devices()
    devices = len(jax.devices())
    reports: list[dict[str, str]] = []
    empty: list[str] = []
    own: list[SuiteError] = []
    tallies: list[Tally] = []
    left_out: list[str] = []
    waiting: list[str] = []
    known = Told()

    with Progress(f"check {implementation}", len(wanted), devices_note(devices)) as progress:
        # what the interpreter refuses would end this process if it were run
        for law, engine in sorted(wanted, key=lambda one: one[1] != "simulate"):
            progress.law(law.name, engine)
            if known.answers(law):
                left_out.append(law.name)
                continue
            if known.stuck and engine != "simulate":
                waiting.append(f"{law.name} ({engine})")
                continue
            try:
                found = ask(
                    law,
                    engine,
                    implementation,
                    known,
                    max_examples=max_examples,
                    random_seed=random_seed,
                    tell=progress.violation,
                )
            except SuiteError as error:
                own.append(error)
                empty.append(f"{implementation}: {law.name} ({engine}): {error}")
                continue
            tallies.append(found.tally)
            if found.violation is not None:
                tell = failures.briefly if known.before(found.violation) else failures.report
                reports.append(tell(found.violation))
                known.add(found.violation)
                found.tally.failure = reports[-1]
            elif found.tally.outcome == "failed":
                empty.append(found.nothing)
    if not reports and not empty and not any(t.verifies and not LAWS[t.law].partial for t in tallies):
        empty += [reason for t in tallies if t.outcome == "skipped" for reason in t.findings]
    notes = [f"{LEFT_OUT}: {', '.join(left_out)}"] if left_out else []
    if waiting:
        notes.append(f"not run, since devices would wait for one another for ever: {', '.join(waiting)}")
    if idle := idle_of(implementation, laws):
        notes.append(f"not checked, since there is nothing to ask: {', '.join(idle)}")
    tallies.sort(key=lambda tally: [law.name for law, _ in wanted].index(tally.law))
    summary = Summary(implementation, tuple(tallies), (*notes, *devices_note(devices)))
    if reports or empty:
        texts = [*map(told, by_cause(reports)), *empty, str(summary)]
        raise AssertionError("\n\n".join(texts)) from (own[0] if own else None)
    return summary
