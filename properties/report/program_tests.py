"""Tests for pytest of what is described in a `Program`: one for each law and engine, in any project."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import jax
import pytest

from shardproof.properties.laws.law import Law
from shardproof.properties.report.asking import ask, asked
from shardproof.properties.report.failures.causes import LEFT_OUT, Told
from shardproof.properties.report.failures.record import Recorded
from shardproof.properties.report.failures.replay import regressions_of, repeat
from shardproof.properties.report.progress import devices_note
from shardproof.properties.report.session import COUNTED, MADE_TEST
from shardproof.properties.runner.given import Given, check_draws
from shardproof.properties.runner.named import NotAFailure, held_by_a_module
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.programs import Program, meant
from shardproof.properties.runner.tally import HeldOnNothing


def program_test(
    program: Program,
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = 100,
    random_seed: int | None = None,
) -> Callable[..., None]:
    """A test that pytest runs once for every law and engine; to be given a name that begins with `test_`.

    Its failures are told, written and replayed as those of `pytest --impl`; those that `--keep-regression` kept are
    checked first. Once its values are wrong, what follows from that is left out. XLA gets eight virtual devices where
    there is nothing but a CPU, unless JAX was used before, or was told how many.

    Arguments:
        program: what is checked, which a module should hold by a name of its own: a replay imports it by that.
        laws: the laws to check; None: all of them that have something to ask of it.
        max_examples: the structures that a law of share 1 draws to be simulated; fewer are compiled.
        random_seed: another seed draws other cases; None draws the same every time.

    Raises:
        ValueError: if there is no such law, or the reference cannot be called with arrays as they are described.

    Example:
        >>> import jax
        >>> total = Program(
        ...     lambda x, *, data: jax.lax.psum(x.sum(), data), lambda x: x.sum(), arguments=("n@data",), results=""
        ... )
        >>> test_total = program_test(total, laws="value")
    """
    check_draws(max_examples, random_seed)
    if not isinstance(program, Program):
        raise ValueError(f"program={program!r}: expected a Program")  # noqa: TRY004 (one kind for all that is given)
    make_devices()
    with meant(program.implementation):
        wanted = asked(program.implementation, laws)
    name = held_by_a_module(program)
    kept = [] if name is None else regressions_of(program, name)
    known = Told()
    checks = [
        *(pytest.param(found, id=f"regression-{path.stem}") for path, found in kept),
        *(pytest.param((law, engine), id=f"{law.name}-{engine}") for law, engine in wanted),
    ]

    @pytest.mark.parametrize("shardproof_check", checks)
    def test(
        shardproof_check: tuple[Law, str] | Recorded | NotAFailure,
        request: pytest.FixtureRequest,
    ) -> None:
        scope = ExitStack()
        request.addfinalizer(scope.close)  # after its report was made, for which the contract must be there
        scope.enter_context(meant(program.implementation))
        if isinstance(shardproof_check, tuple):
            _check(program, *shardproof_check, request.node, max_examples, random_seed, known)
        else:
            _repeat(program, shardproof_check, Given("", name.module, name.qualname) if name else None)

    test.__doc__ = f"{program.name} satisfies the law."
    setattr(test, MADE_TEST, program)
    return test


def _check(
    program: Program,
    law: Law,
    engine: str,
    node: pytest.Item,
    max_examples: int,
    random_seed: int | None,
    known: Told,
) -> None:
    """Checks one law on one engine.

    Raises:
        LawViolation: if it does not hold.
        HeldOnNothing: if it held on no case.
    """
    __tracebackhide__ = True
    if known.answers(law):
        pytest.skip(f"{LEFT_OUT}: {program.name}: {law.name}")
    found = ask(law, engine, program.implementation, known, max_examples=max_examples, random_seed=random_seed)
    node.stash[COUNTED] = found.tally
    if engine == "xla":
        for line in devices_note(len(jax.devices())):
            found.tally.finding(f"{law.name} (xla)", line)
    if found.violation is not None:
        known.add(found.violation)
        raise found.violation
    if found.tally.outcome == "failed":
        raise HeldOnNothing(found.nothing)
    if found.nothing:
        pytest.skip(found.nothing)


def _repeat(program: Program, kept: Recorded | NotAFailure, given: Given | None) -> None:
    """Checks a regression again.

    Raises:
        LawViolation: if the law does not hold again.
        HeldOnNothing: if it is neither broken nor holds.
    """
    __tracebackhide__ = True
    refused = kept if isinstance(kept, NotAFailure) else None
    if isinstance(kept, Recorded) and given is not None:
        try:
            repeat(kept, given, program.implementation)
        except NotAFailure as error:
            refused = error
    if refused is not None:  # outside of the handler, whose exception pytest would show as well
        pytest.fail(str(refused), pytrace=False)
