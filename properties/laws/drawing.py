"""The cases that are drawn for an implementation: every law can be checked of each."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.case import Case, dividing_axis, free_axis, outer_axes
from shardproof.properties.cases.chain import (
    COMPOSE,
    DIVERGENT,
    LINKS,
    NESTED,
    OUTSIDE,
    SPMD,
    Chain,
    in_order,
    is_excluded,
)
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import Scope, Violation
from shardproof.properties.contracts.drawing import placements, without
from shardproof.properties.laws.forward import TYPE, refused_by
from shardproof.properties.laws.law import LARGE
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import can_compose

Cases = st.SearchStrategy[Case]

OF_SHARD_MAP = tuple(name for name, link in LINKS.items() if link.of_shard_map)
"""Links that mean nothing to a function of global arrays."""

SIMPLEST_FIRST = sorted(LINKS, key=lambda name: LINKS[name].whole)
AROUND_VALUES = tuple(name for name in SIMPLEST_FIRST if not LINKS[name].of_derivative)
AROUND_DERIVATIVES = tuple(name for name in SIMPLEST_FIRST if LINKS[name].differentiable)


def drawn_for(
    implementation: Implementation,
    scope: Scope,
    *,
    eager: bool = False,
    excluded: Callable[[Case], None] = lambda case: None,
) -> st.SearchStrategy[tuple[Case, ...]]:
    """A case, and where its contract forbids anything the same call with an argument that must be refused.

    Half are of any dtype, half have derivatives, and a fifth of all, if the scope allows, is on a large mesh. Cases
    without `jit`, the same to an interpreter, are drawn if `eager`. `excluded` is called with each case that the
    implementation does not support, and that is drawn again.
    """
    contract = implementation.contract

    def links(names: Chain) -> Chains:
        left_out = {*(OF_SHARD_MAP if implementation.whole else ()), *(() if eager else ("eager",))}
        return dataclasses.replace(scope.chains, links=tuple(name for name in names if name not in left_out))

    own = dataclasses.replace(
        scope,
        features=implementation.features,
        explicit=scope.explicit and not implementation.whole,
        layouts=implementation.layouts,
        large=0,
    )
    kinds = [dataclasses.replace(own, chains=links(AROUND_VALUES))]
    derives = contract.differentiable is not None
    if derives:
        kinds.append(dataclasses.replace(own, chains=links(AROUND_DERIVATIVES), floating=True))
    if scope.large and not scope.sizes:  # a fifth, since these take long
        large = dataclasses.replace(own, chains=links(()), floating=derives, large=scope.large)
        kinds = [*kinds, *kinds, large]
    every = st.one_of([contract.cases(kind).map(fit_chain) for kind in kinds])

    @st.composite
    def any_case(draw: Any) -> Case:  # a short name for Hypothesis, which prints a strategy where a filter draws again
        case: Case = draw(every)
        kept = tuple(data for data in case.data if not implementation.data or data.kind in implementation.data)
        return dataclasses.replace(case, data=kept or (Data(implementation.data[0], case.data[0].seed),))

    cases = any_case()
    serves = implementation.serves
    if serves is not None:

        def is_supported(case: Case) -> bool:
            supported = serves(case)
            if not supported:
                excluded(case)
            return supported

        cases = cases.filter(is_supported)
    if TYPE.applies_to(implementation, "simulate"):
        cases = cases.flatmap(partial(_placed, whole=implementation.whole))
    forbidden = refused_by(implementation)
    drawn = cases.flatmap(partial(_with_a_wrong_one, forbidden)) if forbidden else cases.map(lambda case: (case,))
    # half of what Hypothesis mutates would be the same structure again, unless elements must be unique
    once = st.lists(drawn, min_size=1, max_size=1, unique_by=lambda one: one[0].structure)

    @st.composite
    def any_cases(draw: Any) -> tuple[Case, ...]:
        cases: tuple[Case, ...] = draw(once)[0]
        return cases

    return any_cases()


def _with_a_wrong_one(forbidden: Sequence[Violation], case: Case) -> st.SearchStrategy[tuple[Case, ...]]:
    """The case, and it with one argument that must be refused, which is named in `forbidden`."""
    alone = dataclasses.replace(case, chain=(), manual=(), out=None)
    possible = [(one.argument, wrong) for one in forbidden if not (wrong := one.cases(alone)).is_empty]
    if not possible:
        return st.just((case,))
    wrong = st.one_of([cases.map(partial(dataclasses.replace, forbidden=argument)) for argument, cases in possible])
    return wrong.map(lambda one: (case, one))


def fit_chain(case: Case) -> Case:
    """The case with other links in place of those that do not apply to it.

    One operand is mapped, and no others; a case without gradients is not differentiated; a single axis is not divided;
    a batch is not sharded over an axis that is needed; devices that a collective connects do not diverge; and calls
    are composed only if results can replace operands, under either way to `vmap` some of them.
    """
    contract = case.contract
    moving = contract.call.moving(case)
    floating = all(is_float(case.operands[i].numpy_dtype) for i in moving)
    derivable = bool(moving) and floating and contract.has_derivative(case)
    instead = {"vmap_first": "vmap", "vmap_others": "vmap"} if len(case.operands) == 1 else {}
    if not derivable:
        instead["vjp_inside"] = "inner_jit"
    if len(moving) < 2:
        instead["grad_per_operand"] = "linearize"
    if not outer_axes(case):
        instead[NESTED] = "inner_jit"
    if not free_axis(case) or is_excluded(SPMD, case.chain):
        instead[SPMD] = OUTSIDE
    instead |= {name: "switch" for name in DIVERGENT if not dividing_axis(case) or is_excluded(name, case.chain)}
    if {*instead, SPMD} & set(case.chain):
        case = _with_others(case, instead)
    mapping = {"vmap_first": "vmap_others", "vmap_others": "vmap_first"}
    ways = (case, _with_others(case, mapping), _with_others(case, {COMPOSE: "sequential"}))
    return next(way for way in ways if can_compose(way))


def _with_others(case: Case, instead: Mapping[str, str]) -> Case:
    """The case with other links in place of some."""
    chain = in_order(instead.get(name, name) for name in case.chain)
    free = (free_axis(case),) if SPMD in chain else ()
    operands = tuple(dataclasses.replace(o, placement=without(o.placement, free)) for o in case.operands)
    return dataclasses.replace(case, chain=chain, operands=operands)


def _placed(case: Case, *, whole: bool) -> Cases:
    """The case with `out_specs`, the contract's or drawn ones; none on large meshes. Shrinks to replicated."""
    contract = case.contract
    if case.mesh.size > LARGE:
        return st.just(case)
    if whole or case.roles:
        assert contract.call.placed is not None
        return st.just(dataclasses.replace(case, out=contract.call.placed(case)))
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    results = contract.oracle.value(case, zeros)
    rank = results[0].ndim - len(case.mesh.sizes)
    return placements(case.mesh, rank).map(lambda out: dataclasses.replace(case, out=(out,) * len(results)))
