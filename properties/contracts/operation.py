"""Contracts of operations whose arguments are described one by one: what each is, and along which axes it varies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import chains, specs
from shardproof.properties.contracts.call import Call, Option
from shardproof.properties.contracts.contract import Claim, Contract, Oracle, Scope, Violation
from shardproof.properties.contracts.drawing import layouts, made_manual, meshes_and_axes, placements, without
from shardproof.properties.contracts.floats import floats
from shardproof.properties.contracts.forbidden import AXES

Params = dict[str, Any]
Blocks = Sequence[np.ndarray]


@dataclass(frozen=True)
class Described:
    """An array argument of one case.

    Arguments:
        block: the shape of its blocks.
        dtype: the dtype's name; empty: the one that is drawn for the case.
        varies: whether it may differ along the axis tuple; if not, all participants have the same.
        like: the place of the argument whose placement it shares, so that the two correspond as global arrays.
        sharding: of each dimension, whether it is sharded `over` the axis tuple alone, along any others, which are
            `free`, or not at all, and `whole`; empty: any may be, along any axes, and blocks may be stacked.
        sharded: the dimension that the axis tuple shards, of a global array that a function takes as a whole.
    """

    block: tuple[int, ...]
    dtype: str = ""
    varies: bool = True
    like: int | None = None
    sharding: tuple[str, ...] = ()
    sharded: int = 0


APART = "operands_apart"
"""The feature of an operation that takes operands which vary along different axes beside those of the tuple."""

Drawn = tuple[Sequence[Described], Params]
Arguments = Callable[[st.DrawFn, int, Scope], Drawn]
"""Given the number of participants, draws the array arguments and the keyword arguments."""

Dtypes = Callable[[Scope, int], st.SearchStrategy[str]]
"""The dtypes of a case, given how many devices a gradient may add up terms of."""

Kinds = Callable[[Scope], Sequence[str]]
"""The kinds of data of a case."""


@st.composite
def operation_cases(
    draw: st.DrawFn,
    contract: Contract,
    scope: Scope,
    arguments: Arguments,
    dtypes: Dtypes,
    kinds: Kinds,
    most: int | None,
    sets: int,
    leading: int | None,
) -> Case:
    """Cases of one operation. Shrinks to one device, the first axis, the smallest arguments, the first dtype."""
    chain = draw(chains(scope.chains), label="chain")
    mesh, axis_name, axes = meshes_and_axes.within(draw, scope, chain, most=most)
    described, params = arguments(draw, mesh.axis_size(axes), scope)
    dtype = draw(dtypes(scope, mesh.size if scope.floating else 1), label="dtype")
    replicated = "replicated_operands" in scope.features and draw(st.integers(0, 9), label="replicated operand") == 9
    placed: list[Placement] = []
    for one in described:
        if one.like is not None:
            placed.append(placed[one.like])
            continue
        if one.sharding:
            free = [axis for axis in mesh.axis_names if axis not in axes]
            along = {"over": axes, "free": specs.within(draw, mesh, 1, allowed=free)[0], "whole": ()}
            placed.append(Placement(tuple(along[kind] for kind in one.sharding)))
            continue
        if scope.whole:
            placement = layouts.within(draw, mesh, len(one.block), one.sharded, axes)
        else:
            placement = placements.within(
                draw, mesh, len(one.block), required=axes if one.varies and not replicated else ()
            )
        placed.append(placement if one.varies else without(placement, axes))
    if leading is not None and APART not in scope.features:
        others = [name for name in mesh.axis_names if name not in placed[leading].axes and name not in axes]
        placed = [without(placement, others) for placement in placed]
    drawn = [
        Operand(one.block, one.dtype or dtype, placement) for one, placement in zip(described, placed, strict=True)
    ]
    manual, operands = made_manual.within(draw, chain, mesh, axes, drawn)
    seed = draw(st.integers(0, 2**16), label="seed")
    chosen = kinds(scope)
    count = 2 if scope.large else max(sets, len(chosen))
    return Case(
        contract=contract,
        mesh=mesh,
        axis_name=axis_name,
        operands=operands,
        params=tuple(params.items()),
        data=tuple(Data(chosen[i % len(chosen)], seed + i) for i in range(count)),
        chain=chain,
        manual=manual,
    )


def operation(
    name: str,
    oracle: Any,
    arguments: Arguments,
    *,
    operands: tuple[str, ...],
    implementations: Mapping[str, Claim],
    options: Mapping[str, Option] | None = None,
    auxiliary: frozenset[str] = frozenset(),
    alike: frozenset[str] = frozenset(),
    invariant: bool = False,
    dtypes: Dtypes = floats,
    kinds: Sequence[str] | Kinds = ("exact", "distinct", "real", "scaled", "real"),
    features: frozenset[str] = frozenset({"explained_errors", "replicated_operands", "x64"}),
    violations: tuple[Violation, ...] = (),
    most: int | None = None,
    sets: int = 5,
    leading: int | None = None,
    local: bool = False,
    keyword_axis: bool = False,
    tree: Any = None,
    placed: Callable[[Case], tuple[Placement, ...]] | None = None,
    **more: Any,
) -> Contract:
    """A contract whose oracle takes the blocks of all arguments, on at most `most` devices; `more` is of `Contract`.

    A case has at least so many data `sets`. Along axes beside those of the tuple, arguments vary only where the
    `leading` one does (weights where tokens do), unless `APART` is claimed.

    The oracle is an object with three methods, of which each gets the mesh, the axes, and the keyword arguments:
    `value(operands)` gives the results' blocks, `pushforward(operands, tangents)` their tangents, and
    `pullback(operands, cotangents)` the operands' cotangents; of operands that have no gradient they are None. Blocks
    `[*mesh.sizes, *block]` come in, and go out, in a dtype that loses nothing that matters.
    """

    def value(case: Case, xs: Blocks) -> list[np.ndarray]:
        return list(oracle.value(xs, case.mesh, case.axes, **case.keywords))

    def pushforward(case: Case, xs: Blocks, tangents: Blocks) -> list[np.ndarray]:
        along: list[np.ndarray | None] = [None] * len(xs)
        for i, tangent in zip(contract.call.moving(case), tangents, strict=True):
            along[i] = tangent
        return list(oracle.pushforward(xs, along, case.mesh, case.axes, **case.keywords))

    def pullback(case: Case, xs: Blocks, cotangents: Blocks) -> list[np.ndarray]:
        pulled = oracle.pullback(xs, cotangents, case.mesh, case.axes, **case.keywords)
        return [pulled[i] for i in contract.call.moving(case)]

    all_kinds: Kinds = kinds if callable(kinds) else lambda scope: kinds
    contract = Contract(
        name=name,
        cases=lambda scope: operation_cases(contract, scope, arguments, dtypes, all_kinds, most, sets, leading),
        call=Call(operands, auxiliary, alike, options or {}, (), local, keyword_axis, tree, placed=placed),
        oracle=Oracle(value, pushforward, pullback),
        invariant=invariant,
        violations=violations if local else (*AXES, *violations),
        features=features,
        implementations=implementations,
        **more,
    )
    return contract
