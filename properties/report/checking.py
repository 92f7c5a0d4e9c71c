"""Checking a function in any project: against a contract, or against what it means on whole arrays; as tests, too."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from typing import Any

import jax

from shardproof.properties.cases import suggestion
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.call import names_of
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.expectation import Expectation, Overlap
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import SuiteError
from shardproof.properties.report import failures
from shardproof.properties.report.asking import (
    Searches,
    ask,
    chosen_laws,
    engines_for,
    idle_of,
)
from shardproof.properties.report.failures.causes import LEFT_OUT, Told, by_cause, told
from shardproof.properties.report.progress import Progress, devices_note
from shardproof.properties.report.summary import Summary
from shardproof.properties.runner import isolation
from shardproof.properties.runner.given import check_contract, check_signature, claimed
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.search import compiled_of
from shardproof.properties.runner.stated import check_draws, named
from shardproof.properties.runner.tally import Tally

EXAMPLES = 64
"""How many structures are drawn unless another number is given, of which ten are compiled."""

PART = 2 / 3
"""The part of `max_seconds` that the interpreter gets, before XLA."""


def user_implementation(contract: str, function: Callable[..., Any], claims: Iterable[str] = ()) -> Implementation:
    """A user's function, of which nothing is assumed but the contract's signature and what is claimed."""
    name = getattr(function, "__name__", type(function).__name__)
    of = CONTRACTS[contract]
    return Implementation(of, name, function, claimed(contract, claims), whole=of.whole)


def check(
    contract: str,
    function: Callable[..., Any],
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = EXAMPLES,
    max_seconds: float | None = None,
    random_seed: int | None = None,
    communication: str = "",
    overlap: str = "",
    claims: str | Iterable[str] | None = None,
) -> Summary:
    """Checks a device-local function against a contract, simulated and on the devices at hand; for use in any test.

    What is compiled runs in a child process, which is kept for further calls: what aborts, hangs or eats memory there
    is reported. The child imports the function from its module; one of a notebook or script, or inside another, is sent
    to it by value. What cannot be sent, or runs on GPUs or TPUs, is compiled in this process; the summary says so then.

    Arguments:
        contract: the contract's name, `"all_gather"` say.
        function: what satisfies it, called as `function(x, axis_name, **parameters)` in `shard_map`.
        laws: the laws to check; None: all of them.
        max_examples: how many structures are drawn for the interpreter, at least 1; XLA gets a sixth as many. Every
            law that applies is asked of each.
        max_seconds: how long it may draw; None: as long as it takes. The summary says how far it came.
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
    expectation = Expectation.parse(communication, names_of(CONTRACTS[contract])) if communication else None
    hides = Overlap.parse(overlap, names_of(CONTRACTS[contract])) if overlap else None
    own = user_implementation(contract, function, features)
    implementation = dataclasses.replace(own, communication=expectation, overlap=hides)
    return checked(implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed)


def checked(
    implementation: Implementation,
    laws: str | Iterable[str] | None,
    *,
    max_examples: int,
    max_seconds: float | None,
    random_seed: int | None,
) -> Summary:
    """What `check` does, of any implementation."""
    __tracebackhide__ = True  # the report says what is wrong; the code that looked for it is no part of that
    check_draws(max_examples, random_seed, max_seconds)
    wanted = chosen_laws(laws)
    engines = engines_for(implementation, wanted)
    make_devices()
    devices = len(jax.devices())
    reports, tallies = list[dict[str, str]](), list[Tally]()
    empty, notes, own = list[str](), list[str](), list[SuiteError]()
    known, began = Told(), time.perf_counter()

    with Progress(f"check {implementation}", len(engines), devices_note(devices)) as progress:
        searches = Searches(implementation, known, random_seed, progress.case)
        if "xla" in engines and not searches.reason:
            isolation.start()  # it imports JAX while the interpreter runs
        for engine in engines:  # the interpreter first: what it finds stuck is not run
            progress.engine(engine, max_examples if engine == "simulate" else compiled_of(max_examples))
            if known.stuck and engine != "simulate":
                notes.append(f"not run on {engine}, since {known.stuck}")
                continue
            start = time.perf_counter()
            told_before = Told(set(known.causes))
            share = PART if engine != engines[-1] else 1.0
            until = None if max_seconds is None else began + share * max_seconds
            find = searches.on(engine, until)
            how: dict[str, Any] = {"max_examples": max_examples, "tell": progress.case}
            answers = ask(implementation, engine, wanted, known, find, **how)
            for tally in list(answers.tallies.values())[:1]:
                tally.seconds = time.perf_counter() - start
            for violation in answers.violations:
                tell = failures.briefly if told_before.before(violation) else failures.report
                reports.append(tell(violation))
                told_before.add(violation)
                answers.tallies[violation.law.name].failure = reports[-1]
            own += answers.errors
            empty += [f"{implementation}: {error.law} ({engine}): {error}" for error in answers.errors]
            empty += answers.empty
            tallies += answers.tallies.values()
            notes += [f"{engine}: max_seconds={max_seconds:g} ended it {answers.ended}"] if answers.ended else []
            notes += [] if answers.tallies or not answers.left_out else [f"{LEFT_OUT}: {', '.join(answers.left_out)}"]
    if searches.reason and "xla" in engines:
        notes.append(f"compiled in this process, which ends if XLA aborts: {searches.reason}")
    if not reports and not empty and not any(t.verifies and not LAWS[t.law].partial for t in tallies):
        empty += [reason for t in tallies if t.outcome == "skipped" for reason in t.findings]
    if laws and (idle := idle_of(implementation, wanted)):
        notes.append(f"not checked, since there is nothing to ask: {', '.join(idle)}")
    for tally in tallies:
        tally.unclaimed, tally.stated = implementation.unclaimed, implementation.stated
    tallies.sort(key=lambda tally: [*LAWS].index(tally.law))
    summary = Summary(implementation, tuple(tallies), (*notes, *devices_note(devices)))
    if reports or empty:
        texts = [*map(told, by_cause(reports)), *empty, str(summary)]
        raise AssertionError("\n\n".join(texts)) from (own[0] if own else None)
    return summary


OF_THE_CHECK = ("laws", "max_examples", "max_seconds", "random_seed")
"""Its arguments that describe no program."""


def check_program(
    function: Callable[..., Any] | Program,
    reference: Callable[..., Any] | None = None,
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = EXAMPLES,
    max_seconds: float | None = None,
    random_seed: int | None = None,
    **description: Any,
) -> Summary:
    """Checks a sharded function against the same on whole arrays: values, gradients, types, on any mesh and layout.

    Arguments:
        function: what is checked; or a `Program`, which says all that it is about.
        reference: the same on whole arrays.
        laws: the laws to check; None: all of them.
        max_examples: how many structures are drawn for the interpreter; XLA gets a sixth as many.
        max_seconds: how long it may draw; None: as long as it takes. The summary says how far it came.
        random_seed: another seed draws other cases; None draws the same every time.
        description: what a `Program` takes: `arguments`, `results`, and what the function needs.

    Returns:
        What was checked, law by law.

    Raises:
        AssertionError: with the whole report, if a law does not hold, or held on nothing.
        ValueError: for a description that cannot be read, or functions that cannot be called so.

    Example:
        >>> import jax
        >>> def loss(x, w, *, data):
        ...     return jax.lax.pmean(((x @ w) ** 2).mean(), data)
        >>> def unsharded(x, w):
        ...     return ((x @ w) ** 2).mean()
        >>> summary = check_program(
        ...     loss, unsharded, arguments=("batch@data k", "k n"), results="", laws=["value"], max_examples=5
        ... )
    """
    __tracebackhide__ = True
    if isinstance(function, Program):
        if reference is not None or description:
            raise ValueError(f"{function.name}: expected nothing beside a Program, which says all that it is about")
        program = function
    elif reference is None:
        raise ValueError("reference: expected the same function on whole arrays")
    else:
        known = {each.name: each for each in fields(Program) if each.name not in ("function", "reference")}
        for name in description:
            if name not in known:
                hint = suggestion.meant(name, [*known, *OF_THE_CHECK], of="some of")
                raise ValueError(f"{name}: check_program has no such argument; {hint}")
        missing = [name for name in known if known[name].default is MISSING and name not in description]
        if missing:
            raise ValueError(f"{missing[0]}: is missing: a description of each array, as 'batch@data n'")
        program = Program(function, reference, **description)
    return checked(
        program.implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed
    )
