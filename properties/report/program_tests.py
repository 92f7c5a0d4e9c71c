"""Tests of a user's own project, made of a `Program`."""

from collections.abc import Callable, Iterable

import jax
import pytest

from shardproof.plugin import own
from shardproof.properties.report.asking import (
    EXAMPLES,
    ask,
    chosen_laws,
    conclude,
    engines_for,
    local_search,
    scope_of,
)
from shardproof.properties.report.failures.causes import Told
from shardproof.properties.report.failures.files import Recorded
from shardproof.properties.report.failures.replay import regressions_of, repeat
from shardproof.properties.report.progress import Progress, devices_note
from shardproof.properties.report.session import COUNTED, MADE_TEST
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.named import Named, held_by_a_module
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.search import compiled_of
from shardproof.properties.runner.stated import GivenError, check_draws


def program_test(
    program: Program,
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = EXAMPLES,
    random_seed: int | None = None,
) -> Callable[..., None]:
    """A test that pytest runs once for every engine; to be given a name that begins with `test_`.

    Its failures are told, written and replayed as those of `pytest --impl`; those that `--keep-regression` kept are
    checked first. Once its values are wrong, what follows from that is left out. XLA gets eight virtual devices where
    there is nothing but a CPU, unless JAX was used before, or was told how many.

    Arguments:
        program: what is checked, which a module should hold by a name of its own: a replay imports it by that.
        laws: the laws to check; None: all of them that have something to ask of it.
        max_examples: how many structures each law is to hold on when interpreted; compiled a sixth as many.
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
    try:
        make_devices()
    except GivenError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    wanted = chosen_laws(laws)
    engines = engines_for(program.implementation, wanted)
    name = held_by_a_module(program)
    kept = [] if name is None else regressions_of(program, name)
    known = Told()
    checks = [
        *(pytest.param(found, id=f"regression-{path.stem}") for path, found in kept),
        *(pytest.param(engine, id=engine) for engine in engines),
    ]

    @pytest.mark.parametrize("shardproof_check", checks)
    def test(shardproof_check: str | Recorded | NotAFailure, request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        if not isinstance(shardproof_check, str):
            _repeat(program, shardproof_check, name)
            return
        engine, implementation = shardproof_check, program.implementation
        among = chosen_laws(own(request.config, "laws"))
        asked = [law for law in wanted if law in among]
        if not asked:
            pytest.skip(
                f"--laws={own(request.config, 'laws')}: this test has others: {', '.join(law.name for law in wanted)}"
            )
        with Progress(f"check {program.name}", 1, []) as progress:
            progress.engine(engine, max_examples if engine == "simulate" else compiled_of(max_examples))
            search = {"random_seed": random_seed, "before": progress.before}
            find = local_search(implementation, engine, scope_of(engine), **search)
            answers = ask(implementation, engine, asked, known, find, max_examples=max_examples, tell=progress.case)
        request.node.stash[COUNTED] = [*answers.tallies.values()]
        if engine == "xla":
            for line in devices_note(len(jax.devices())):
                request.node.stash[COUNTED][0].finding(engine, line)
        conclude(answers, implementation)

    test.__doc__ = f"{program.name} satisfies every law."
    setattr(test, MADE_TEST, program)
    return test


def _repeat(program: Program, kept: Recorded | NotAFailure, name: Named | None) -> None:
    """Checks a regression again."""
    __tracebackhide__ = True
    assert name is not None  # beside its module are the regressions
    try:
        if isinstance(kept, NotAFailure):
            raise kept
        repeat(kept, Given("", name.module, name.qualname), program.implementation)
    except NotAFailure as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
