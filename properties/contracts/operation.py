"""Contracts of operations whose arguments are described one by one: their blocks, and the axes that they vary along."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.whole import OfParticipants
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.strategies import chains, dtypes, index_groups, specs
from shardproof.properties.contracts.contract import (
    Call,
    Contract,
    Option,
    Oracle,
    Scope,
    Violation,
    at_least_a_byte,
)
from shardproof.properties.contracts.described import Array
from shardproof.properties.contracts.drawing import (
    complete,
    floats,
    meshes_and_axes,
    placements,
    without,
)
from shardproof.properties.contracts.forbidden import AXES, PARTLY

Params = dict[str, Any]
Blocks = Sequence[np.ndarray]


@dataclass(frozen=True)
class Described:
    """An array argument of one case."""

    block: tuple[int, ...]  # the shape of its blocks
    dtype: str = ""  # the dtype's name; empty: the one that is drawn for the case
    varies: bool = True  # whether it may differ along the axis tuple; if not, all participants have the same
    # the place of the argument whose placement it shares, so that the two correspond as global arrays
    like: int | None = None
    # for each dimension: `axis_name` alone shards it, any `others`, `any` axes, or none (empty); None: any may be
    # sharded, along any axes, and blocks may be stacked
    sharding: tuple[str, ...] | None = None

    @classmethod
    def all_of(
        cls, texts: Sequence[str], sizes: Mapping[str, int], participants: int, *, batch: tuple[int, ...] = ()
    ) -> "list[Described]":
        """Arguments by their dimensions: `"rows@others columns@axis_name"`; the first has those of a batch in front.

        They are described as an `Array` is; axes that are `others` or `any` may shard a dimension. A dimension that is
        sharded over the axis tuple in one argument has all parts in another one that has it whole.
        """
        described = [[(d.name, "".join(d.roles)) for d in Array(text).dimensions] for text in texts]
        divided = {name for one in described for name, role in one if role == "axis_name"}
        found = []
        for one in described:
            whole = [sizes[n] * (participants if n in divided and role != "axis_name" else 1) for n, role in one]
            found.append(cls((*batch, *whole), sharding=(*("" for _ in batch), *(role for _, role in one))))
            batch = ()
        return found


INDEPENDENT = "independent_operands"
BASIC = frozenset({"explained_errors", "replicated_operands", "x64"})
"""The features of most contracts."""


MOST_IN_GROUPS = 16
"""The most participants that are divided into groups."""

Drawn = tuple[Sequence[Described], Params]
Arguments = Callable[[st.DrawFn, int, Scope], Drawn]
"""Given the number of participants, draws the array arguments and the keyword arguments."""

Dtypes = Callable[[Scope, int, int, Params], st.SearchStrategy[str]]
"""The dtypes of a case, given how many devices there are, how many participants, and the keyword arguments."""

Kinds = Callable[[Scope, str, Params], Sequence[str]]
"""The kinds of data of a case, of its dtype, and with its keyword arguments."""


def moved_dtypes(scope: Scope, devices: int, *given: Any) -> st.SearchStrategy[str]:
    """All dtypes for what is moved, in which a gradient may add up a term of each device."""
    return dtypes(floating=scope.floating, terms=devices if scope.floating else 1, wide="x64" in scope.features)


def with_invalid(*usual: str) -> Kinds:
    """The sequence of the data sets of a case, and special ones of those who claim `invalid_indices`."""
    return lambda scope, dtype, params: (*usual, *(("special",) if "invalid_indices" in scope.features else ()))


@st.composite
def operation_cases(
    draw: st.DrawFn,
    contract: Contract,
    scope: Scope,
    arguments: Arguments,
    dtypes_of: Dtypes,
    kinds_of: Kinds,
    most: int | None,
    sets: int,
    leading: int,
) -> Case:
    """Cases of one operation. Shrinks to one device, the first axis, the smallest arguments, the first dtype."""
    chain = draw(chains(scope.chains), label="chain")
    mesh, axis_name, axes = meshes_and_axes.within(draw, scope, chain, most=most)
    participants, groups = mesh.axis_size(axes), None
    # what is invariant differs between groups, which only unchecked types can express
    grouped = {"groups", "uneven_groups"} & scope.features and (not contract.invariant or "no_vma" in chain)
    if grouped and participants <= MOST_IN_GROUPS and draw(st.booleans(), label="groups"):
        groups = index_groups.within(draw, participants, uneven="uneven_groups" in scope.features)
        participants = max(map(len, groups))
    described, params = arguments(draw, participants, scope)
    params |= {} if groups is None else {"axis_index_groups": groups}
    dtype = draw(dtypes_of(scope, mesh.size, participants, params), label="dtype")
    replicated = "replicated_operands" in scope.features and draw(st.booleans(), label="replicated operand")
    others = [axis for axis in mesh.axis_names if axis not in axes]
    placed: list[Placement] = []
    for one in described:
        if one.like is not None:
            placement = placed[one.like]
        elif one.sharding is not None:
            fixed, allowed = {"axis_name": axes, "": ()}, {"others": others, "any": mesh.axis_names}
            placement = Placement(
                tuple(
                    fixed[how] if how in fixed else specs.within(draw, mesh, 1, allowed=allowed[how])[0]
                    for how in one.sharding
                )
            )
        else:
            required = axes if one.varies and not replicated else ()
            placement = placements.within(draw, mesh, len(one.block), required=required)
        partly = PARTLY in contract.violations and not {*axes} <= placement.axes
        placed.append(placement if one.varies and not partly else without(placement, axes))
    if INDEPENDENT in contract.features - scope.features:
        beside = [axis for axis in others if axis not in placed[leading].axes]
        placed = [without(placement, beside) for placement in placed]
    operands = tuple(Operand(one.block, one.dtype or dtype, at) for one, at in zip(described, placed, strict=True))
    tree = len(operands) > len(contract.call.operands) and not contract.call.deeper
    case = Case(contract, mesh, axis_name, operands, tuple(params.items()), chain=chain, tree=tree)
    return complete(draw, scope, case, kinds_of(scope, dtype, params), sets)


def of_blocks(oracle: Any, call: Call) -> Oracle:
    """An oracle of cases made of an object with three methods, on blocks `[*mesh.sizes, *block]`.

    Each gets the mesh, the axes, and the keyword arguments: `value(operands)` gives the results, `pushforward(operands,
    tangents)` their tangents, and `pullback(operands, cotangents)` the operands' cotangents; of operands that have no
    gradient they are None.
    """

    def value(case: Case, xs: Blocks) -> list[np.ndarray]:
        return list(oracle.value(xs, case.mesh, case.axes, **case.keywords))

    def pushforward(case: Case, xs: Blocks, tangents: Blocks) -> list[np.ndarray]:
        along: list[np.ndarray | None] = [None] * len(xs)
        for i, tangent in zip(call.moving(case), tangents, strict=True):
            along[i] = tangent
        return list(oracle.pushforward(xs, along, case.mesh, case.axes, **case.keywords))

    def pullback(case: Case, xs: Blocks, cotangents: Blocks) -> list[np.ndarray]:
        pulled = oracle.pullback(xs, cotangents, case.mesh, case.axes, **case.keywords)
        return [pulled[i] for i in call.moving(case)]

    return Oracle(value, pushforward, pullback)


def operation(
    name: str,
    oracle: Any,
    arguments: Arguments,
    *,
    operands: tuple[str, ...],
    options: Mapping[str, Option] | None = None,
    auxiliary: Sequence[str] = (),
    replicated: Sequence[str] = (),
    dtypes: Dtypes = floats,
    kinds: Sequence[str] | Kinds = ("exact", "distinct", "real", "scaled", "real"),
    features: frozenset[str] = BASIC,
    violations: tuple[Violation, ...] = (),
    most: int | None = None,
    sets: int = 5,
    leading: int = 0,
    keyword_axis: bool = False,
    tree: Any = None,
    deeper: tuple[Any, ...] = (),
    **more: Any,
) -> Contract:
    """A contract whose oracle takes the blocks of all arguments, on at most `most` devices; `more` is of `Contract`.

    The oracle is an `Oracle`, or an object for `of_blocks`. `kinds` is the sequence of the data sets of one case, in
    which a kind may stand twice; there are at least `sets`. Of a contract that has the feature `INDEPENDENT`, arguments
    vary along axes beside those of the tuple only where the `leading` one does (weights where tokens do), unless it is
    claimed. Something is sent wherever all arguments are sharded that the oracle says are, if `more` does not say more.
    """
    if isinstance(oracle, OfParticipants):
        shared = (place for place, dimension in enumerate(oracle.sharded) if dimension is not None)
        more = {"least": at_least_a_byte(*shared), **more}
    call = Call(
        operands,
        frozenset(auxiliary),
        frozenset(replicated),
        options or {},
        keyword_axis=keyword_axis,
        tree=tree,
        deeper=deeper,
    )
    of_case: Kinds = kinds if callable(kinds) else lambda scope, dtype, params: kinds
    contract = Contract(
        name=name,
        cases=lambda scope: operation_cases(contract, scope, arguments, dtypes, of_case, most, sets, leading),
        call=call,
        oracle=oracle if isinstance(oracle, Oracle) else of_blocks(oracle, call),
        violations=(*AXES, *violations),
        features=features,
        **more,
    )
    return contract
