"""The suite does not cry wolf: of the right implementations that look odd, no law reports one."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings

from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine, XlaEngine, engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.brief import first_of_each, marked
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.right import RIGHT_ONES, RightOne
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.search import find_violation

SEED = 0
EAGER = ("gather_with_lax", "reduce_with_lax", "shift_with_lax")
"""The only ones that are run without `jit`, where a loop over permutes takes a minute."""

STRUCTURES = max(2, settings().max_examples // 100)
"""Structures per law: few, since there are many functions; a nightly profile draws fifty."""

SLOW = ("attention", "pipeline")
"""Contracts whose right functions take many seconds; other contracts have the same parts."""

FIRST = first_of_each(RIGHT_ONES.values(), lambda right_one: right_one.contract)
BRIEF = [right_one for right_one in FIRST if right_one.contract not in SLOW]
COMPILED = [*RIGHT_ONES.values()] if settings().max_examples >= 1000 else FIRST
"""One of each contract, and all of them in a nightly profile: the law of agreement compiles all of them in any case."""


def implementation_of(right_one: RightOne) -> Implementation:
    """The function as its user would bring it."""
    return replace(user_implementation(right_one.contract, right_one.function, right_one.claims), whole=right_one.whole)


def check_not_reported(right_one: RightOne, laws: Iterable[str], engine: Engine, scope: Scope, **how: int) -> None:
    """Checks laws on drawn cases of a function, of which none breaks one."""
    laws_of = [LAWS[name] for name in laws]
    how = {"max_examples": STRUCTURES, "random_seed": SEED, **how}
    finding = find_violation(laws_of, implementation_of(right_one), engine, scope, shrink=False, **how)
    assert finding.violation is None, f"{right_one}: {right_one.sentence}\n{finding.violation}"


@pytest.mark.parametrize("right_one", marked(RIGHT_ONES.values(), BRIEF))
def test_a_right_one_is_not_reported(right_one: RightOne) -> None:
    """No law finds anything, in the interpreter where it can be checked there."""
    check_not_reported(right_one, LAWS, engine_named("simulate"), Scope(large=24))


@pytest.mark.parametrize("name", EAGER)
def test_a_right_one_is_not_reported_without_jit(name: str) -> None:
    """Neither for its values nor for its gradients, where nothing is under `jit`."""
    eager = Scope(chains=Chains(only=("eager",)))
    check_not_reported(RIGHT_ONES[name], ("value", "gradient"), engine_named("xla"), eager, max_examples=2)


@pytest.mark.lengthy
@pytest.mark.parametrize("right_one", COMPILED, ids=str)
def test_a_right_one_is_not_reported_when_compiled(right_one: RightOne) -> None:
    """Compiled, its values, types and gradients are right as well."""
    laws = ("value", "gradient", "type", "agreement")
    check_not_reported(right_one, laws, XlaEngine(), Scope(), random_seed=SEED + 1)


@pytest.mark.lengthy
def test_narrow_accumulation_is_a_choice() -> None:
    """A product that adds up in the operands' dtype is right if it says so, and reported if it does not."""
    narrow = user_implementation("all_gather_matmul_lhs_contracting", MUTANTS["product_in_the_input_dtype"].function)
    chosen = replace(narrow, features=frozenset({"narrow_accumulation"}))
    for implementation, right in ((narrow, False), (chosen, True)):
        finding = find_violation(
            [LAWS["value"]],
            implementation,
            engine_named("simulate"),
            Scope(),
            max_examples=40,
            random_seed=SEED,
            shrink=False,
        )
        assert (finding.violation is None) == right, str(finding.violation)


def test_a_right_one_is_no_planted_bug() -> None:
    """A name is that of a right function or of a wrong one."""
    assert not set(RIGHT_ONES) & set(MUTANTS)
