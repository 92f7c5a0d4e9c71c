"""Checks a function of any project: against a contract, or against the same function on whole arrays."""

import dataclasses
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TextIO, Unpack

from shardproof.properties.cases import suggestion
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.summary import Summary
from shardproof.properties.report.verdicts import EXAMPLES, check_implementation
from shardproof.properties.runner.given import check_contract, check_signature, find_features, read_claims
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.programs import Description, Program


@contextmanager
def warn_once() -> Generator[None]:
    """Shows each warning once: a function that is traced for every case gives the same one hundreds of times.

    Python's own filter "once" shows it again after any `catch_warnings`, of which Hypothesis has many.
    """
    with warnings.catch_warnings():
        show, shown = warnings.showwarning, set[str]()

        def show_first(
            message: Warning | str, category: type[Warning], filename: str, lineno: int,
            file: TextIO | None = None, line: str | None = None,
        ) -> None:  # fmt: skip
            if str(message) not in shown:
                shown.add(str(message))
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_first
        yield


def user_implementation(contract: str, function: Callable[..., Any], claims: Iterable[str] = ()) -> Implementation:
    """A user's function, with no features but those that it claims; raises ValueError for an unknown one."""
    name = getattr(function, "__name__", type(function).__name__)
    of = CONTRACTS[contract]
    return Implementation(of, name, function, find_features(contract, claims), whole=of.whole)


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
    data: str | Iterable[str] | None = None,
) -> Summary:
    """Checks a device-local function against a contract, simulated and on the devices at hand; for use in any test.

    What is compiled runs in a child process, which serves further calls as well: if it aborts, hangs or takes too much
    memory, that is reported. The child imports the function from its module; one of a notebook or script, or inside
    another, is sent by value. What cannot be sent, or runs on GPUs or TPUs, is compiled in this process, and the
    summary says so.

    Arguments:
        contract: the contract's name, `"all_gather"` say.
        function: what satisfies it, called as `function(x, axis_name, **parameters)` in `shard_map`.
        laws: the laws to check; None: all of them.
        max_examples: how many structures each law is to hold on when interpreted, at least 1; compiled a sixth as many.
            Every law that applies is checked on each.
        max_seconds: how long it may draw; None: as long as it takes. The summary reports how far it came.
        random_seed: another seed draws other cases; None draws the same every time.
        communication: what it sends, as `--expect-communication` takes it: `"permute=p-1,bytes=(p-1)*n/p"`, and
            after `;grad:` what its gradient sends.
        overlap: how it hides that, as `--expect-overlap` takes it: `"exposed<=1/p"`.
        claims: what it supports beyond the contract's signature (see `FEATURES`): `("bool_sum", "groups")`, or
            `("all",)`; None: nothing. What it does not claim is not drawn.
        data: the kinds of data that it is run on, of exact, distinct, real, special (infinities, negative zeros), nan,
            scaled (up to the largest number), partial and zeros; None: all that the contract has. A running mean that
            gives NaN where infinity is right declines special; the summary names what is declined.

    Returns:
        What was checked, law by law: `print` it for a table of what held, and what was left out and why.

    Raises:
        AssertionError: with the whole report, if a law does not hold, or, as a `HeldOnNothing`, if one held on nothing.
            An oracle or a law that fails itself is reported as an error of this suite, and the other laws are checked.
        ValueError: if there is no such contract, law, feature or kind of data, no law or example at all, the function
            cannot be called as they demand, or the expectation cannot be read.

    Example:
        >>> from jax import lax
        >>> check("all_gather", lax.all_gather, laws=["value"], max_examples=5)
    """
    __tracebackhide__ = True
    check_contract(contract)
    found = read_claims(contract, communication or None, overlap or None, claims, data)
    check_signature(contract, function, found["features"])
    implementation = dataclasses.replace(user_implementation(contract, function), **found)
    with warn_once():
        return check_implementation(
            implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed
        )


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
    **description: Unpack[Description],
) -> Summary:
    """Checks a sharded function against the same on whole arrays: values, gradients, types, on any mesh and layout.

    Arguments:
        function: what is checked; or a `Program`, which describes it.
        reference: the same on whole arrays; or, where results are right only up to a relation, `holds=` in its place.
        laws: the laws to check; None: all of them.
        max_examples: how many structures each law is to hold on when interpreted; compiled a sixth as many.
        max_seconds: how long it may draw; None: as long as it takes. The summary reports how far it came.
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
            raise ValueError(f"{function.name}: expected nothing beside a Program, which describes it")
        program = function
    else:
        known = {each.name: each for each in dataclasses.fields(Program) if each.name not in ("function", "reference")}
        for name in description:
            if name not in known:
                hint = suggestion.did_you_mean(name, [*known, *OF_THE_CHECK], of="some of")
                raise ValueError(f"{name}: check_program has no such argument; {hint}")
        if reference is None and "holds" not in description:
            raise ValueError("reference: expected the same function on whole arrays, or holds=, a predicate of results")
        missing = [name for name in known if known[name].default is dataclasses.MISSING and name not in description]
        if missing:
            raise ValueError(f"{missing[0]}: is missing: a description of each array, as 'batch@data n'")
        program = Program(function, reference, **description)
    make_devices()  # before anything is traced
    with warn_once():
        return check_implementation(
            program.implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed
        )
