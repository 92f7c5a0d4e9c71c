"""The suite can fail: every planted bug is caught by the law that is meant for it, and shown on a small mesh."""

import math
from dataclasses import replace

import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof.impl.collectives import ring_shift
from shardproof.impl.norms import global_norm
from shardproof.properties.cases.chain import DIVERGENT
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.simulate import RULES
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.brief import first_of_each, marked
from shardproof.properties.mutants import MUTANTS, Mutant
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.hunt import hunt, is_smallest
from shardproof.properties.programs.implementations import BUILT_IN
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.runner.search import find_violation

DRAWN = [m for m in MUTANTS.values() if m.runs != "isolated"]
WASTEFUL = [m for m in DRAWN if m.law == "communication" and CONTRACTS[m.contract].implementations]
LOCAL = tuple(name for name, contract in CONTRACTS.items() if contract.local)
"""The contracts of functions that get no axis to communicate over."""

SEED = 0
PERMUTED = ("shift_in_mesh_order", "permute_in_mesh_order", "broadcast_root_in_mesh_order", "exchange_in_mesh_order")
SHRUNK = (
    *PERMUTED,
    "gather_tiled_as_untiled",
    "halo_the_long_way_round",
    "max_from_zero",
    "permute_typed_invariant_by_a_loop",
    "reduce_ignores_unknown_axes",
    "reduce_with_twice_the_gradient",
    "scatter_to_the_neighbour",
    "shift_one_too_far",
    "shift_right_for_two",
    "shift_right_on_the_first_axis",
    "shift_there_and_back_first",
    "sum_for_powers_of_two",
)
"""Those that are shrunk: one of each kind, since shrinking all of them takes minutes."""

SHRUNK_BRIEFLY = ("gather_tiled_as_untiled", "max_from_zero", "reduce_with_twice_the_gradient", "shift_one_too_far")
SLOW = ("expert_choice_layer", "global_moe_layer")
"""Contracts whose bugs take many seconds to find; their parts are those of others."""
LATE = ("moe_for_32_experts", "result_without_the_last_tile")
"""Bugs that take as long, of contracts and laws that have others."""

ONE_OF_EACH = first_of_each(
    (m for m in DRAWN if m.name not in {*SHRUNK, *LATE} and m.contract not in SLOW), lambda m: (m.contract, m.law)
)


@pytest.mark.parametrize("mutant", marked([m for m in DRAWN if m.name not in SHRUNK], ONE_OF_EACH))
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    """Its law finds a case on which it is wrong; those that are shrunk are caught below."""
    finding = hunt(mutant, seed=SEED, shrink=False)
    assert finding.violation is not None, f"{mutant}: {mutant.sentence} The law of {mutant.law}s lets it pass."


@pytest.mark.parametrize("law", marked(["value", "gradient", "type"], ["value"]))
@pytest.mark.parametrize("wasteful", marked(WASTEFUL, WASTEFUL[:1]))
def test_waste_is_nothing_but_waste(wasteful: Mutant, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that sends too much is right in all else: nothing but its formula catches it."""
    if wasteful.contract in LOCAL:
        together = LAWS[law].chains.without(DIVERGENT)
        monkeypatch.setitem(LAWS, law, replace(LAWS[law], chains=together))
    finding = hunt(replace(wasteful, law=law), seed=SEED, shrink=False)
    assert finding.tally.cases > 0
    assert finding.violation is None, f"{wasteful}: {wasteful.sentence}\n{finding.violation}"


@pytest.mark.parametrize("wasteful", [m for m in WASTEFUL if m.contract in LOCAL], ids=str)
def test_what_is_local_and_sends_waits_for_other_branches(wasteful: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless devices along an axis that is none of its business take another branch: those never answer."""
    apart = replace(LAWS["value"], chains=Chains(only=("divergent_cond",)))
    monkeypatch.setitem(LAWS, "value", apart)
    finding = hunt(replace(wasteful, law="value"), seed=SEED, shrink=False)
    assert "devices of one group disagree about their next collective" in str(finding.violation)


@pytest.mark.parametrize("mutant", marked([MUTANTS[name] for name in SHRUNK], [MUTANTS[n] for n in SHRUNK_BRIEFLY]))
def test_a_planted_bug_is_shrunk(mutant: Mutant) -> None:
    """The case that is left is on a mesh of the sizes of the smallest one on which the bug shows."""
    finding = hunt(mutant, seed=SEED)
    assert is_smallest(mutant, finding), str(finding.violation)


def test_a_wrong_engine_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of agreement notices a rule of the interpreter that is not what the compiler does."""
    monkeypatch.setitem(RULES, "ppermute", lambda env, equation, *operands: list(operands))
    shift = next(i for i in BUILT_IN if i.contract == "ring_shift")
    finding = find_violation(
        LAWS["agreement"], shift, engine_named("xla"), Scope(), max_examples=20, random_seed=SEED, shrink=False
    )
    assert finding.violation is not None
    assert "result of xla" in str(finding.violation)


def test_what_is_wrong_without_jit_is_caught() -> None:
    """The law of eager execution notices what no other can: the catalogue's bugs are all caught by the interpreter."""

    def shift(x: Array, axis_name: AxisName, *, offset: int) -> Array:
        traced = "Jaxpr" in type(x).__name__
        return ring_shift(x if traced else jnp.zeros_like(x), axis_name, offset=offset)

    implementation = user_implementation("ring_shift", shift)
    finding = find_violation(
        LAWS["eager"], implementation, engine_named("xla"), Scope(), max_examples=2, random_seed=SEED, shrink=False
    )
    assert finding.violation is not None


@pytest.mark.lengthy
def test_a_gradient_that_is_wrong_without_jit_is_caught() -> None:
    """The law of eager execution looks at gradients, too, and says so."""

    def norm(x: Array, axis_name: AxisName) -> Array:
        inner = x
        while hasattr(inner, "primal"):  # a tracer of a derivative
            inner = inner.primal
        y = global_norm(x, axis_name)
        return y if "Jaxpr" in type(inner).__name__ else y + (y - lax.stop_gradient(y))

    finding = find_violation(
        LAWS["eager"],
        user_implementation("global_norm", norm),
        engine_named("xla"),
        Scope(),
        max_examples=4,
        random_seed=SEED,
        shrink=False,
    )
    assert finding.violation is not None
    assert str(finding.violation).startswith("global_norm[norm]: gradient under eager")


def test_the_catalogue_is_complete() -> None:
    """There are more than seventy bugs, of every contract, and for every law that an implementation can break."""
    assert len(DRAWN) >= 70
    assert {m.contract for m in DRAWN} >= {
        "all_gather",
        "all_gather_invariant",
        "all_gather_matmul_lhs",
        "all_gather_matmul_lhs_contracting",
        "all_gather_matmul_rhs",
        "all_reduce",
        "all_to_all",
        "broadcast",
        "matmul_all_reduce",
        "matmul_reduce_scatter",
        "permute",
        "reduce_scatter",
        "ring_shift",
        "transformer_block",
    }
    assert {m.law for m in DRAWN} >= {
        "communication",
        "error",
        "gradient",
        "scale",
        "transformation",
        "transformed gradient",
        "type",
        "value",
    }
    assert {m.contract for m in WASTEFUL} == {c.name for c in CONTRACTS.values() if c.implementations}
    assert sum(m.runs == "isolated" for m in MUTANTS.values()) >= 4


@pytest.mark.parametrize("planted", MUTANTS.values(), ids=str)
def test_a_planted_bug_is_described(planted: Mutant) -> None:
    """It says in one sentence what is wrong, and its smallest mesh is one that the law draws."""
    assert planted.sentence[0].isupper()
    assert len(planted.sentence) < 130, "one sentence"
    assert all(size >= 1 for size in planted.smallest)
    assert (math.prod(planted.smallest) <= 8) == (planted.runs != "large")
    assert LAWS[planted.law].large == (planted.runs == "large")


def test_a_name_is_taken_once() -> None:
    """A second bug of the same name is refused, and so is one without a sentence."""
    with pytest.raises(ValueError, match="shift_reversed: expected a name that no other has"):
        mutant("ring_shift", smallest=(2,))(MUTANTS["shift_reversed"].function)

    def shift_undescribed() -> None: ...

    with pytest.raises(ValueError, match="shift_undescribed: sentence='': expected a docstring of one sentence"):
        mutant("ring_shift", smallest=(2,))(shift_undescribed)
