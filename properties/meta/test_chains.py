"""Chains of transformations: how they are drawn and shrink, which are possible, and verdicts under them."""

from collections import Counter
from functools import partial
from itertools import combinations, product
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import find
from jax import lax

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import (
    LINKS,
    MOST_BATCHED,
    MOST_LINKS,
    Chain,
    check_chain,
    in_order,
    in_words,
    is_excluded,
)
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import Chains, chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.communication import communication_of
from shardproof.properties.laws.drawing import AROUND_DERIVATIVES, AROUND_VALUES, drawn_for
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.meta.drawn import drawn
from shardproof.properties.programs.built_in import BUILT_IN, IMPLEMENTATIONS
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.tally import Tally

AROUND = {"values": AROUND_VALUES, "derivatives": AROUND_DERIVATIVES}
"""Chains around calls whose values alone are looked at, and around those that are differentiated."""


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, names in AROUND.items() for name in names])
def test_a_chain_shrinks_to_the_one_link_that_matters(what: str, name: str) -> None:
    """A failure that needs one link shrinks to that link alone, and one that needs none to no link."""
    drawn_ones = chains(Chains(AROUND[what]))
    assert find(drawn_ones, lambda chain: name in chain) == (name,)
    assert find(drawn_ones, lambda chain: True) == ()


@pytest.mark.parametrize("what", AROUND)
def test_a_chain_of_two_shrinks_to_two(what: str) -> None:
    """A failure that needs two batches shrinks to two links, both of which batch."""
    drawn_ones = chains(Chains(AROUND[what]))
    found = find(drawn_ones, lambda chain: sum(LINKS[name].batched for name in chain) == MOST_BATCHED)
    assert len(found) == MOST_BATCHED


@pytest.mark.parametrize(
    "chain", [("eager", "eager"), ("vmap", "eager"), ("vmap",) * 3, ("inner_jit",) * (MOST_LINKS + 1), ("j",)]
)
def test_no_other_chain_is_taken(chain: Chain) -> None:
    """A chain with too many links or batches, or with a whole-program link inside, is refused in one line."""
    with pytest.raises(ValueError, match=r"^chain=\(.*: expected [^\n]*$"):
        check_chain(chain)


def test_a_chain_in_words() -> None:
    """Links around the whole program are named first."""
    assert in_words(("eager", "no_vma", "vmap")) == "eager and no_vma and vmap"
    assert in_words(("vmap", "scan", "checkpoint")) == "vmap of scan of checkpoint"
    assert in_words(()) == "jit"


DRAWN = {"rms_norm[squares]": 20_000, "attention[ring]": 12_000, "ring_shift[lax]": 8_000}
"""As many structures as a nightly run draws of all, of functions whose results can be their operands."""


@pytest.mark.lengthy
def test_a_night_meets_every_pair_that_composes() -> None:
    """The cases of a nightly run have every pair of links that can be drawn, and no other."""
    met: Counter[tuple[str, str]] = Counter()
    by_name = {str(one): one for one in IMPLEMENTATIONS}
    for name, count in DRAWN.items():
        for case, *_ in drawn(drawn_for(by_name[name], Scope(large=300), eager=True), count):
            met.update(combinations(case.chain, 2))
    every = {(a, b) for a, b in product(LINKS, repeat=2) if in_order((a, b)) == (a, b)}
    every -= {(a, b) for a, b in every if is_excluded(a, (b,)) or is_excluded(b, (a,))}
    assert (every - met.keys(), met.keys() - every) == (set(), set())


def shift_with_a_gradient_of_its_own(x: jax.Array, axis_name: Any, *, offset: int = 1) -> jax.Array:
    """A right shift that has a gradient, and no forward mode."""

    @jax.custom_vjp
    def shift(x: jax.Array) -> jax.Array:
        return collectives.ring_shift(x, axis_name, offset=offset)

    def forward(x: jax.Array) -> tuple[jax.Array, None]:  # in which there is no custom_vjp any more
        return collectives.ring_shift(x, axis_name, offset=offset), None

    shift.defvjp(forward, lambda _, ct: (collectives.ring_shift(ct, axis_name, offset=-offset),))
    return shift(x)


def shift_with_a_rule_for_vmap(x: jax.Array, axis_name: Any, *, offset: int = 1) -> jax.Array:
    """A right shift that says what vmap of it is."""
    shift = jax.custom_batching.sequential_vmap(lambda x: collectives.ring_shift(x, axis_name, offset=offset))
    result: jax.Array = shift(x)
    return result


@pytest.mark.parametrize(
    ("chain", "verdict"), [(("jacobian",), ("excused", "custom_vmap_jacobian")), (("vjp_inside",), ("unsupported", ""))]
)
@pytest.mark.parametrize("engine", ["simulate", "xla"])
def test_what_jax_does_not_derive_is_nothing_that_a_function_does(
    chain: Chain, verdict: tuple[str, str], engine: str
) -> None:
    """A right custom_vmap is unsupported or excused, never reported, where JAX cannot differentiate it."""
    law, case = LAWS["gradient"], shift_of_two(chain)
    mine = user_implementation("ring_shift", shift_with_a_rule_for_vmap)
    found = judge(law, mine, case, engine_named(engine), Tally("ring_shift", "", law.name, engine))
    assert found.kind in (verdict[0], "held")
    assert found.kind != "excused" or found.reason == verdict[1]


def shift_of_two(chain: Chain) -> Case:
    """A shift on two devices, under a chain."""
    operand = Operand((2,), "float32", Placement(((),), ("dp",)))
    data = (Data("distinct", 0), Data("exact", 1))
    return Case(
        CONTRACTS["ring_shift"], MeshCase(("dp",), (2,)), "dp", (operand,), (("offset", 1),), data, in_order(chain)
    )


@pytest.mark.parametrize(("link", "rounds"), [("twice", 1), ("sequential", 2), ("compose", 2)])
def test_calls_in_turn_feed_one_another(link: str, rounds: int) -> None:
    """The second of two calls that feed each other sends only after the first has received."""
    shift, engine = next(one for one in BUILT_IN if one.contract.name == "ring_shift"), engine_named("simulate")
    for backward in (False, True):
        counted = communication_of(shift, shift_of_two((link,)), engine, backward=backward)
        assert (str(counted.cost), counted.rounds) == ("permute=2 (16 bytes)", rounds)


@pytest.mark.parametrize("chain", [("vjp_inside",), ("jacobian",), ("linearize",), ("vmap", "scan")])
@pytest.mark.parametrize("engine", ["simulate", "xla"])
def test_what_has_no_forward_mode_has_a_gradient_under_any_chain(chain: Chain, engine: str) -> None:
    """A right custom_vjp, which has no forward mode, is checked by its reverse gradient under any chain."""
    tally = Tally("ring_shift", "", "gradient", engine)
    mine = user_implementation("ring_shift", shift_with_a_gradient_of_its_own)
    judge(LAWS["gradient"], mine, shift_of_two(chain), engine_named(engine), tally)
    assert (tally.structures, tally.unsupported) == (1, {})


def shift_that_refuses_to_be_derived(x: jax.Array, axis_name: Any, *, offset: int = 1) -> jax.Array:
    """A right shift whose gradient raises."""

    @jax.custom_vjp
    def shift(x: jax.Array) -> jax.Array:
        return collectives.ring_shift(x, axis_name, offset=offset)

    def backward(_: None, ct: jax.Array) -> tuple[jax.Array]:
        raise RuntimeError("no way back")

    shift.defvjp(lambda x: (shift(x), None), backward)
    return shift(x)


def test_what_raises_in_a_gradient_is_one_of_a_gradient() -> None:
    """Under a transformation, too: the title says so."""
    mine, law = user_implementation("ring_shift", shift_that_refuses_to_be_derived), LAWS["gradient"]
    tally = Tally("ring_shift", "", law.name, "xla")
    with pytest.raises(LawViolation) as caught:
        judge(law, mine, shift_of_two(("eager",)), engine_named("xla"), tally)
    assert ": gradient under eager: " in str(caught.value)


def shift_in_a_scan(x: jax.Array, axis_name: Any, *, offset: int = 1, times: int = 1) -> jax.Array:
    """A shift by way of all blocks, one by one: in its transpose an untiled psum_scatter is batched along the last."""
    every = lax.all_gather(x, axis_name)
    mine = (lax.axis_index(axis_name) - offset) % lax.axis_size(axis_name)

    def step(y: jax.Array, block: Any) -> tuple[jax.Array, None]:
        number, values = block
        return y + (times * values - y) * (number == mine), None

    return lax.scan(step, 0 * x, (jnp.arange(len(every)), every))[0]


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_at_fault_may_be_in_a_derivative_that_cannot_be_traced(times: int) -> None:
    """A right function is excused where JAX cannot trace the derivative, and one that doubles is reported."""
    mine = user_implementation("ring_shift", partial(shift_in_a_scan, times=times))
    law, case, engine = LAWS["gradient"], shift_of_two(("jacobian",)), engine_named("simulate")
    tally = Tally("ring_shift", "", law.name, "simulate")
    if times == 1:
        assert judge(law, mine, case, engine, tally).reason == "psum_scatter_untiled_vmap"
    else:
        with pytest.raises(LawViolation):
            judge(law, mine, case, engine, tally)
