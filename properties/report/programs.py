"""Checking any sharded program against what it means on whole arrays, without a mesh."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from typing import Any, Unpack

from shardproof.properties.cases import suggestion
from shardproof.properties.report.asking import EXAMPLES, checked
from shardproof.properties.report.summary import Summary
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.programs import Description, Program

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
        function: what is checked; or a `Program`, which says all that it is about.
        reference: the same on whole arrays; or, where results are right only up to a relation, `holds=` in its place.
        laws: the laws to check; None: all of them.
        max_examples: how many structures each law is to hold on when interpreted; compiled a sixth as many.
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
    else:
        known = {each.name: each for each in fields(Program) if each.name not in ("function", "reference")}
        for name in description:
            if name not in known:
                hint = suggestion.did_you_mean(name, [*known, *OF_THE_CHECK], of="some of")
                raise ValueError(f"{name}: check_program has no such argument; {hint}")
        if reference is None and "holds" not in description:
            raise ValueError("reference: expected the same function on whole arrays, or holds=, a predicate of results")
        missing = [name for name in known if known[name].default is MISSING and name not in description]
        if missing:
            raise ValueError(f"{missing[0]}: is missing: a description of each array, as 'batch@data n'")
        program = Program(function, reference, **description)
    make_devices()  # before anything is traced
    return checked(
        program.implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed
    )
