"""Tests of a user's own project, made from a `Program`."""

from collections.abc import Callable, Iterable

import pytest

from shardproof.plugin import MADE_TEST, own
from shardproof.properties.report.checking import EXAMPLES, check_here, chosen_laws, conclude, engines_for, scope_of
from shardproof.properties.report.failures.causes import ReportedCauses
from shardproof.properties.report.failures.files import Recorded
from shardproof.properties.report.failures.replay import regressions_of, repeat
from shardproof.properties.report.progress import devices_note
from shardproof.properties.report.session import COUNTED
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.named import held_by_a_module
from shardproof.properties.runner.platforms import make_devices
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.stated import GivenError, check_draws


def program_test(
    program: Program,
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = EXAMPLES,
    random_seed: int | None = None,
) -> Callable[..., None]:
    """Returns a test that pytest runs once for every engine; its name must begin with `test_`.

    Its failures are reported, written and replayed as those of `pytest --impl`; those that were copied to the folder
    `shardproof_regressions` beside the program's module are checked first. Once its values are wrong, what follows from
    that is left out. XLA gets eight virtual devices where there is nothing but a CPU, unless JAX was used or configured
    before.

    Arguments:
        program: what is checked; a module should have a name for it, by which a replay imports it.
        laws: as `check` takes them.
        max_examples: as `check` takes it.
        random_seed: as `check` takes it.

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
    regressions = [] if name is None else regressions_of(program, name)
    reported = ReportedCauses()
    checks = [
        *(pytest.param(found, id=f"regression-{path.stem}") for path, found in regressions),
        *(pytest.param(engine, id=engine) for engine in engines),
    ]

    @pytest.mark.parametrize("shardproof_check", checks)
    def test(shardproof_check: str | Recorded | NotAFailure, request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        if isinstance(shardproof_check, NotAFailure):
            raise shardproof_check
        if isinstance(shardproof_check, Recorded):
            assert name is not None  # beside its module are the regressions
            repeat(shardproof_check, Given("", name.module, name.qualname), program.implementation)
            return
        engine, chosen = shardproof_check, own(request.config, "laws")
        among = chosen_laws(chosen)
        these = [law for law in wanted if law in among]
        if not these:
            pytest.skip(f"--laws={chosen}: this test has others: {', '.join(law.name for law in wanted)}")
        verdicts = check_here(
            program.implementation, engine, these, reported, scope_of(engine),
            max_examples=max_examples, random_seed=random_seed,
        )  # fmt: skip
        request.node.stash[COUNTED] = [*verdicts.tallies.values()]
        for tally in verdicts.tallies.values():
            tally.stated = program.implementation.stated
        if engine == "xla":
            for line in devices_note():
                request.node.stash[COUNTED][0].finding(engine, line)
        conclude(verdicts, program.implementation)

    test.__doc__ = f"{program.name} satisfies every law."
    setattr(test, MADE_TEST, program)
    return test
