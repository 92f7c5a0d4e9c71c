"""The suite can fail: every law catches a bug that is planted for it, and a sample of those that are generated.

The rate at which all of them are caught is measured: `python -m shardproof.properties.meta.benchmark mutants`.
"""

import math
import re

import jax.numpy as jnp
import pytest
from jax import Array

from shardproof.impl.collectives import ring_shift
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.simulate import RULES
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.brief import marked
from shardproof.properties.mutants import MUTANTS, Mutant, generated
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.changes import KINDS, MESH_ORDER
from shardproof.properties.mutants.generated import changes_of, generate
from shardproof.properties.mutants.hunt import hunt, implementation_of, is_smallest
from shardproof.properties.programs.built_in import BUILT_IN, IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.search import find_violation

DRAWN = [m for m in MUTANTS.values() if m.runs != "isolated"]
WASTEFUL = [m for m in DRAWN if m.law == "communication" and CONTRACTS[m.contract].implementations]

SEED = 0
MANY = 400
"""Enough structures to find a bug without luck; a bug that is found ends the search."""

SOME = 100
"""Structures of a right function, whose search no violation ends."""

EAGER = Scope(chains=Chains(only=("eager",)))
"""Cases of which nothing is under `jit`, and that have no other transformation."""

OF_EACH_LAW = (
    "max_from_zero",
    "reduce_with_twice_the_gradient",
    "shift_detached_from_the_last",
    "shift_wrong_under_vmap",
    "shift_typed_invariant_by_groups",
    "shift_there_and_back_first",
    "reduce_ignores_unknown_axes",
    "broadcast_with_four_bits",
    "mlp_that_hides_nothing",
)
"""Bugs by hand for every law that an implementation can break, under a transformation and on large meshes, too."""

BRIEFLY = ("max_from_zero",)
"""The bugs that are shrunk in every run."""

SAMPLE = (
    ("all_reduce[lax]", "drop"),
    ("all_reduce[lax]", "axis"),
    ("all_reduce[lax]", "maximum"),
    ("all_reduce[lax]", "narrow"),
    ("all_gather[lax]", "order"),
    ("all_gather[lax]", "unsummed"),
    ("ring_shift[lax]", "shifted"),
    ("ring_shift[lax]", "reversed"),
    ("ring_shift[lax]", "same way"),
    ("ring_shift[lax]", "constant"),
    ("ring_shift[lax]", "scaled"),
    ("ring_shift[lax]", "mesh order"),
    ("rms_norm[squares]", "sign"),
    ("masked_mean[sums]", "mask"),
    ("all_gather_matmul_lhs_contracting[ring_all_gather_matmul_lhs_contracting]", "late"),
    ("vocab_parallel_cross_entropy[sums]", "index"),
)
"""An implementation for every kind of change."""


@pytest.mark.parametrize("name", marked(OF_EACH_LAW, BRIEFLY))
def test_a_law_catches_its_bug(name: str) -> None:
    """The law finds it, and shrinks it to a mesh of the sizes of the smallest one on which it shows."""
    finding = hunt(MUTANTS[name], seed=SEED, structures=MANY)
    assert is_smallest(MUTANTS[name], finding), str(finding.violation)


@pytest.mark.parametrize(("implementation", "kind"), SAMPLE)
def test_a_generated_bug_is_caught(implementation: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of an implementation with such a change is wrong on a case that is drawn."""
    monkeypatch.setattr(generated, "STRUCTURES", MANY)
    right = next(one for one in IMPLEMENTATIONS if str(one) == implementation)
    changed = generate([right], [one for one in (*KINDS, MESH_ORDER) if one.name == kind])
    assert any(one.hunt(seed=SEED) == "caught" for one in changed)


def test_a_generated_bug_that_changes_nothing_survives() -> None:
    """A sum over axes in another order is the same sum, which is not counted as missed."""
    (norm,) = (one for one in IMPLEMENTATIONS if str(one) == "global_norm[squares]")
    (changed,) = generate([norm], [MESH_ORDER])
    assert changed.hunt(seed=SEED) == "survived"


@pytest.mark.lengthy
@pytest.mark.parametrize("implementation", [one for one in IMPLEMENTATIONS if not one.whole], ids=str)
def test_an_implementation_is_right_without_a_change(implementation: Implementation) -> None:
    """Its jaxpr evaluated equation by equation is as right as it is, so that whatever is caught is the change."""
    assert all(place.startswith("impl/") for place, _, _ in changes_of(implementation, KINDS))


def test_a_generated_bug_names_its_line() -> None:
    """Its sentence has the primitive and the line of the implementation."""
    (shift,) = (one for one in IMPLEMENTATIONS if str(one) == "ring_shift[lax]")
    (dropped,) = generate([shift], [one for one in KINDS if one.name == "drop"])
    assert re.fullmatch(r"Leaves out the ppermute, at impl/collectives\.py:\d+(:\d+)?\.", dropped.sentence)


@pytest.mark.lengthy
@pytest.mark.parametrize("wasteful", WASTEFUL, ids=str)
def test_waste_is_nothing_but_waste(wasteful: Mutant) -> None:
    """An operation that sends too much is right in all else: nothing but its formula catches it."""
    finding = find_violation(
        [LAWS[law] for law in ("value", "gradient", "type")],
        implementation_of(wasteful),
        engine_named("simulate"),
        Scope(),
        max_examples=SOME,
        random_seed=SEED,
        shrink=False,
    )
    assert finding.violation is None, f"{wasteful}: {wasteful.sentence}\n{finding.violation}"
    assert all(tally.cases > 0 for tally in finding.tallies.values())


def test_a_wrong_engine_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of agreement notices a rule of the interpreter that is not what the compiler does."""
    monkeypatch.setitem(RULES, "ppermute", lambda env, equation, *operands: list(operands))
    shift = next(i for i in BUILT_IN if i.contract.name == "ring_shift")
    finding = find_violation(
        [LAWS["agreement"]], shift, engine_named("xla"), Scope(), max_examples=MANY, random_seed=SEED, shrink=False
    )
    assert finding.violation is not None
    assert "result of xla" in str(finding.violation)


def test_what_is_wrong_without_jit_is_caught() -> None:
    """Without `jit` shows what nothing else can: the catalogue's bugs are all caught by the interpreter."""

    def shift(x: Array, axis_name: AxisName, *, offset: int) -> Array:
        traced = "Jaxpr" in type(x).__name__
        return ring_shift(x if traced else jnp.zeros_like(x), axis_name, offset=offset)

    implementation = user_implementation("ring_shift", shift)
    finding = find_violation(
        [LAWS["value"]], implementation, engine_named("xla"), EAGER, max_examples=MANY, random_seed=SEED, shrink=False
    )
    assert finding.violation is not None
    assert str(finding.violation).startswith("ring_shift[shift]: value under eager")


def test_every_contract_and_law_has_a_bug() -> None:
    """The catalogue has bugs of every contract, and for every law that an implementation can break."""
    assert {m.contract for m in DRAWN} == {*CONTRACTS}
    assert {MUTANTS[name].law for name in OF_EACH_LAW} == {m.law for m in DRAWN}


@pytest.mark.parametrize("planted", MUTANTS.values(), ids=str)
def test_a_planted_bug_is_described(planted: Mutant) -> None:
    """It says in one sentence what is wrong, and its smallest mesh is a large one where only such a one shows it."""
    assert planted.sentence[0].isupper()
    assert len(planted.sentence) < 130, "one sentence"
    assert all(size >= 1 for size in planted.smallest)
    assert (math.prod(planted.smallest) <= 8) == (planted.runs != "large")


def test_a_name_is_taken_once() -> None:
    """A second bug of the same name is refused, and so is one without a sentence."""
    with pytest.raises(ValueError, match="shift_right_for_two: expected a name that no other has"):
        mutant("ring_shift", smallest=(2,))(MUTANTS["shift_right_for_two"].function)

    def shift_undescribed() -> None: ...

    with pytest.raises(ValueError, match="shift_undescribed: sentence='': expected a docstring of one sentence"):
        mutant("ring_shift", smallest=(2,))(shift_undescribed)
