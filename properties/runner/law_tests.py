"""A law as a pytest test over implementations."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.law import LAWS, Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.budgets import structures
from shardproof.properties.runner.judging import verify
from shardproof.properties.runner.reach import LARGEST
from shardproof.properties.runner.tally import Tally

ENOUGH = ("agreement", "communication")
"""With the laws in the interpreter, what implies them on XLA."""

INEXACT = frozenset({"sequences", "fused", "layers", "nonlinear", "whole"})
"""Forms of which no gradient is exact, so that the law of agreement compares none: their gradients are compiled.

Those of mixtures of experts are too, in layers of global arrays."""

OF_OTHERS = frozenset({"routers"})
"""The forms of what is sent by what other forms are checked for, of which XLA's part is not compiled once more."""

COMPILED_ALIKE: Mapping[str, frozenset[str]] = {
    "agreement": OF_OTHERS,
    "communication": INEXACT - {"whole"} | {"algorithm", "overlapped", "routed"},
    "gradient": INEXACT - {"whole"},
}
"""The forms of which, by law, the last of each contract is compiled alone; the others are interpreted.

All are made of the same collectives, and every bug of the catalogue breaks a law that the interpreter checks. Where a
compiler decides what is sent, as of global arrays, it is counted of all.
"""

FEW = 100
"""Fewer examples than this are for what depends on the number of devices: without the costliest law, and of functions
that are made of others, only that both engines agree."""


def law_test(
    name: str, engine: str, implementations: Sequence[Implementation], *, largest: int | None = None
) -> Callable[..., None]:
    """The test `test_<law>_<engine>` that checks a law on drawn cases of each implementation.

    It gets what the law grants their form of the examples of the Hypothesis profile that is in force (see
    `shardproof.properties.runner.budgets`). `largest` bounds the meshes of the law of scale.

    Raises:
        ValueError: if the engine cannot check the law, or the implementations are of several forms.
    """
    law = LAWS[name]
    if engine not in law.engines:
        raise ValueError(f"engine={engine!r}: expected one of {', '.join(law.engines)} for the law {name!r}")

    forms = {i.form for i in implementations}
    if len(forms) != 1:
        raise ValueError(f"implementations: forms {sorted(forms)}: expected one form, since one test has one budget")
    form = forms.pop()
    # of the few that are compiled none is one in which nothing can go wrong, as Hypothesis' first mostly is
    budget = structures(law, settings().max_examples, engine, form) - (engine == "xla")

    def test(
        implementation: Implementation,
        scope: Scope,
        engines: Mapping[str, Engine],
        tally: Tally,
        data: st.DataObject,
    ) -> None:
        if largest is not None:
            scope = dataclasses.replace(scope, large=min(scope.large, largest))
        cases = _made_once(law, implementation, scope, tally.exclude)
        if engine == "xla" and scope.available > 1:
            cases = cases.filter(lambda case: not case.trivial)
        case = data.draw(cases, label="case")
        instead = structures(law, settings().max_examples, "xla", form)
        verify(law, implementation, case, engines[engine], tally, instead=instead)

    test.__name__ = test.__qualname__ = f"test_{name.replace(' ', '_')}_{engine}"
    test.__doc__ = law.sentence
    # the tally is one per test, not per case: it adds up what all of them checked
    # and what an implementation does not serve, or says that it does not support, is drawn and dropped
    dropped = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
    allowed = [*settings().suppress_health_check, *dropped]
    limited = settings(max_examples=budget, suppress_health_check=allowed, report_multiple_bugs=False)
    marked = pytest.mark.law(name, engine)(limited(given(data=st.data())(test)))
    return pytest.mark.parametrize("implementation", implementations, ids=str)(marked)


_made_once = lru_cache(maxsize=1)(Law.cases)
"""The cases of a law, made once for a test."""


def law_tests(implementations: Sequence[Implementation], *, derived: bool = False) -> dict[str, Callable[..., None]]:
    """Every law on every engine that can check it, as tests by their names: for `globals().update`.

    Arguments:
        implementations: what is checked.
        derived: whether on XLA it is enough that it agrees with the interpreter, on which every law is
            checked, and sends what it should: for functions that are made of others, which were checked by
            themselves, since compiling is what costs. With 1,000 examples or more all run all the same.
    """
    examples = settings().max_examples
    few = derived and examples < 1000  # without `jit`, a scan is compiled anew for every call
    skipped = {"eager"} if examples < FEW else set()
    forms = {one.form for one in implementations}
    if few:
        skipped |= set(LAWS) - set(ENOUGH[:1] if examples < FEW or forms <= OF_OTHERS else ENOUGH)
    if few and examples >= FEW and forms & INEXACT:
        skipped -= {"gradient"}
    last = list({one.contract: one for one in implementations}.values())

    def asked(law: Law, engine: str) -> list[Implementation]:
        as_last = engine == "xla" and forms <= COMPILED_ALIKE.get(law.name, frozenset())
        return [one for one in (last if few and as_last else implementations) if engine in law.engines_for(one)]

    tests = [
        law_test(law.name, engine, those, largest=LARGEST if few else None)
        for law in LAWS.values()
        for engine in law.engines
        if not (engine == "xla" and law.name in skipped) and (those := asked(law, engine))
    ]
    return {test.__name__: test for test in tests}
