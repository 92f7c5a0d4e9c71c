"""The cases that laws draw: those of a contract, made to say what a law asks."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import DIVERGENT, FED, NESTED, OUTSIDE, SPREAD, in_order, kept_out
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.manual import dividing_axis, free_axis, outer_axes
from shardproof.properties.contracts import CONTRACTS, Violation
from shardproof.properties.contracts.drawing import placements, without
from shardproof.properties.laws.gradient import derives_at
from shardproof.properties.programs.feeding import can_feed
from shardproof.properties.programs.implementations import Implementation

Cases = st.SearchStrategy[Case]

SOME = 3
"""The data sets of a case of derivatives, each of which is run several times: more structures tell more."""


def without_mutation(cases: Cases) -> Cases:
    """The cases without those that Hypothesis makes of parts of earlier ones: of sixty, 25 to 43 would differ."""
    # it repeats nothing inside of a collection of unique elements
    return st.lists(cases, min_size=1, max_size=1, unique_by=lambda case: case.structure).map(lambda drawn: drawn[0])


def fitted(case: Case) -> Case:
    """The case with a chain that fits it.

    Where there is one operand it is mapped, and not differentiated apart, what has no gradient is not differentiated, a
    single axis not divided, a batch not spread over an axis that is needed, devices that a collective connects not
    parted, and what results are unlike not fed by them: nor if the operands that `vmap` leaves were the others.
    """
    contract = CONTRACTS[case.contract]
    moving = contract.moving(case)
    floating = all(is_float(case.operands[i].numpy_dtype) for i in moving)
    derivable = bool(moving) and floating and contract.differentiable(case)
    instead = {"vmap_first": "vmap", "vmap_others": "vmap"} if len(case.operands) == 1 else {}
    if not derivable:
        instead["vjp_inside"] = "inner_jit"
    if len(moving) < 2:
        instead["apart"] = "linearize"
    if not outer_axes(case):
        instead[NESTED] = "inner_jit"
    if not free_axis(case) or kept_out(SPREAD, case.chain):
        instead[SPREAD] = OUTSIDE
    instead |= {name: "switch" for name in DIVERGENT if not dividing_axis(case) or kept_out(name, case.chain)}
    if {*instead, SPREAD} & set(case.chain):
        case = _with_others(case, instead)
    mapping = {"vmap_first": "vmap_others", "vmap_others": "vmap_first"}
    ways = (case, _with_others(case, mapping), _with_others(case, {FED: "in_turn"}))
    return next(way for way in ways if can_feed(way))


def _with_others(case: Case, instead: Mapping[str, str]) -> Case:
    """The case with other links in place of some."""
    chain = in_order(instead.get(name, name) for name in case.chain)
    free = (free_axis(case),) if SPREAD in chain else ()
    operands = tuple(dataclasses.replace(o, placement=without(o.placement, free)) for o in case.operands)
    return dataclasses.replace(case, chain=chain, operands=operands)


def as_drawn(cases: Cases, implementation: Implementation) -> Cases:
    """The cases as they are."""
    return cases


def on_some_data(cases: Cases, implementation: Implementation) -> Cases:
    """The cases, each with three of the data sets at which it has derivatives: other ones in every case."""
    return cases.map(lambda case: dataclasses.replace(case, data=_some(case)))


def _some(case: Case) -> tuple[Data, ...]:
    telling = [data for data in case.data if derives_at(case, data)]
    start = case.data[0].seed % max(len(telling), 1)
    return (*telling[start:], *telling[:start])[:SOME] or case.data


def leaving(cases: Cases, implementation: Implementation) -> Cases:
    """The cases, each with a way for its results to leave `shard_map`: the contract's, or a drawn one.

    Shrinks to replicated.
    """
    whole = implementation.whole
    return cases.flatmap(lambda case: _placed(case, given=whole or bool(case.roles)))


def _placed(case: Case, *, given: bool) -> Cases:
    contract = CONTRACTS[case.contract]
    if given:
        assert contract.placed is not None
        return st.just(dataclasses.replace(case, out=contract.placed(case)))
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    results = contract.oracle(case, zeros)
    rank = results[0].ndim - len(case.mesh.sizes)
    return placements(case.mesh, rank).map(lambda out: dataclasses.replace(case, out=(out,) * len(results)))


def always(implementation: Implementation) -> bool:
    """Any implementation is asked."""
    return True


def typed(implementation: Implementation) -> bool:
    """Whether its types are checked."""
    return implementation.check_vma


def has_gradient(implementation: Implementation) -> bool:
    """Whether there is something to differentiate."""
    return CONTRACTS[implementation.contract].has_gradient


def forbids(implementation: Implementation) -> bool:
    """Whether there is something that the implementation must refuse."""
    return bool(_refused(implementation))


def _refused(implementation: Implementation) -> list[Violation]:
    features = implementation.features
    return [
        violation
        for violation in CONTRACTS[implementation.contract].violations
        if (violation.everyone or "explained_errors" in features)
        and (violation.argument != "axis_index_groups" or "groups" in features)
    ]


def forbidden(cases: Cases, implementation: Implementation) -> Cases:
    """The cases, each made wrong in one argument, named in `forbidden`."""

    def named(argument: str, wrong: Cases) -> Cases:
        return wrong.map(lambda case: dataclasses.replace(case, forbidden=argument))

    def made_wrong(case: Case) -> Cases:
        options = [
            named(violation.argument, wrong)
            for violation in _refused(implementation)
            if not (wrong := violation.cases(case)).is_empty
        ]
        return st.sampled_from(options).flatmap(lambda wrong: wrong)

    return cases.flatmap(made_wrong)
