"""The contracts of the collectives, from `all_reduce` to `broadcast`."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles import collectives as values
from shardproof.oracles import transposes
from shardproof.oracles.dtypes import is_float, is_integer, is_signed, width
from shardproof.properties.cases.case import Case, Operand
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import (
    chains,
    data_sets,
    dtypes,
    index_groups,
    permutations_of_participants,
    shapes,
)
from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.cases.strategies.making import Composite, sampled
from shardproof.properties.contracts.call import Call
from shardproof.properties.contracts.contract import Contract, Oracle, Scope, Violation
from shardproof.properties.contracts.drawing import made_manual, meshes_and_axes, placements, without
from shardproof.properties.contracts.forbidden import AXES, GROUPS, OP, PARTLY, PERM, ROOT, indivisible, out_of_range
from shardproof.properties.contracts.options import OPTIONS

Params = dict[str, Any]
Drawn = tuple[tuple[int, ...], Params]
Arguments = Callable[[st.DrawFn, int, Scope], Drawn]
"""Given the number of participants, draws the block's shape and the keyword arguments."""


SQUARED = ("all_to_all", "reduce_scatter")
MOST_SQUARED = 1024
"""The largest mesh of those with a piece for every pair of participants, whose data grow with its square."""


@st.composite
def collective_cases(draw: st.DrawFn, contract: Contract, scope: Scope, arguments: Arguments) -> Case:
    """Cases of one collective. Shrinks to one device, the first axis, one element, float32."""
    name, chain = contract.name, draw(chains(scope.chains), label="chain")
    most = MOST_SQUARED if name in SQUARED else None
    mesh, axis_name, axes = meshes_and_axes.within(draw, scope, chain, most=most)
    participants = mesh.axis_size(axes)
    groups: tuple[tuple[int, ...], ...] | None = None
    # reductions over groups differ between groups, which only unchecked types can express
    uneven = "uneven_groups" in scope.features and name == "all_reduce"
    serves = (
        ("groups" in scope.features or uneven) and (name != "all_reduce" or "no_vma" in chain) and participants <= 16
    )
    if serves and draw(st.integers(0, 4), label="groups") == 4:
        groups = index_groups.within(draw, participants, uneven=uneven)
        participants = max(map(len, groups))
    block, params = arguments(draw, participants, scope)
    if groups is not None:
        params["axis_index_groups"] = groups
    op = params.get("op", "move")
    sums = op in ("sum", "mean") or name == "reduce_scatter"
    terms = (mesh.size if scope.floating else participants) if sums or scope.floating else 1
    if op == "mean" and participants & (
        participants - 1
    ):  # which is rounded: of too many terms no digit would be certain
        terms *= 8
    dtype = draw(
        dtypes(
            floating=scope.floating,
            numeric=op == "mean" or (sums and ("bool_sum" not in scope.features or name == "reduce_scatter")),
            ordered=op in ("max", "min"),
            terms=terms,
            wrapping=op != "mean",
            wide="x64" in scope.features,
        ),
        label="dtype",
    )
    replicated = "replicated_operands" in scope.features and draw(st.integers(0, 9), label="replicated operand") == 9
    placement = placements.within(draw, mesh, len(block), required=() if replicated else axes)
    reduces = name in ("all_reduce", "reduce_scatter")
    if replicated and reduces:  # which refuse what varies along a part of the tuple
        placement = without(placement, axes)
    leaves = [Operand(block, dtype, placement)]
    tree = "trees" in scope.features and draw(st.integers(0, 9), label="tree") == 9
    if tree:
        leaves.append(Operand(block, "float32" if scope.floating or op == "mean" else "int32", placement))
    data = data_sets.within(draw, dtype, count=2 if scope.large else 6)
    if op == "mean":
        defined = ("exact", "scaled") if is_integer(as_dtype(dtype)) else ("exact",)
        data = tuple(
            d if is_divisible(d, as_dtype(dtype)) else Data(defined[d.seed % len(defined)], d.seed) for d in data
        )
    manual, operands = made_manual.within(draw, chain, mesh, axes, leaves)
    return Case(
        contract=contract,
        mesh=mesh,
        axis_name=axis_name,
        operands=operands,
        params=tuple(params.items()),
        data=data,
        chain=chain,
        manual=manual,
        tree=tree,
    )


def is_divisible(data: Data, dtype: np.dtype) -> bool:
    """Whether a mean of such data is defined: not of sums that wrap around, nor of infinite or huge complex numbers."""
    if is_integer(dtype):
        return data.kind in ("exact", "scaled")
    return dtype.kind != "c" or data.kind not in ("special", "nan", "scaled")


@Composite
def blocks(draw: st.DrawFn, scope: Scope, *, min_rank: int = 0) -> tuple[int, ...]:
    """Shapes of blocks; on large meshes tiny, since a gathered block has as many copies as it has parts."""
    least = 0 if "empty_blocks" in scope.features else 1
    if scope.large:
        return shapes.within(draw, min_rank=min_rank, max_rank=2, min_side=least, max_side=2)
    return shapes.within(draw, min_rank=min_rank, min_side=least, long=True)


def dimension(draw: st.DrawFn, rank: int, scope: Scope, label: str) -> int:
    """A legal dimension: counted from the front, or from the back as well where that is served."""
    lowest = -rank if "negative_dimensions" in scope.features else 0
    return draw(sampled([*range(rank), *range(lowest, 0)]), label=label)


def fit(shape: tuple[int, ...], at: int, parts: int, tiled: bool) -> tuple[int, ...]:
    """`shape` with a dimension that divides into `parts`: a multiple if `tiled`, `parts` itself if not."""
    result = list(shape)
    result[at] = result[at] * parts if tiled else parts
    return tuple(result)


def _reduce(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    ops = ("sum", "mean") if scope.floating else ("sum", "max", "min", "mean", "sum", "mean")
    return blocks.within(draw, scope), {"op": draw(sampled(ops), label="op")}


def _of_one_sign(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What is compared is not above zero in every second data set for a maximum, and not below it for a minimum.

    Otherwise some participant most likely has a number beyond the zeros where nothing arrives, which then do not show.
    The least integer has no opposite, and stays.
    """
    op = case.keywords.get("op")
    if op not in ("max", "min") or case.data[0].seed % 2 == 0:
        return arrays
    sign = -1 if op == "max" else 1
    with np.errstate(over="ignore"):
        return [np.asarray(sign * np.abs(x), x.dtype) if is_signed(x.dtype) else x for x in arrays]


def _gather(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    tiled = draw(sampled((True, False)), label="tiled")
    block = blocks.within(draw, scope, min_rank=1 if tiled else 0)
    return block, {"axis": dimension(draw, len(block) + (not tiled), scope, "axis"), "tiled": tiled}


def _scatter(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    tiled = draw(sampled((True, False)), label="tiled")
    block = blocks.within(draw, scope, min_rank=1)
    at = dimension(draw, len(block), scope, "scatter_dimension")
    return fit(block, at, participants, tiled), {"scatter_dimension": at, "tiled": tiled}


def _exchange(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    tiled = draw(sampled((True, False)), label="tiled")
    block = blocks.within(draw, scope, min_rank=1)
    at = dimension(draw, len(block), scope, "split_axis")
    to = dimension(draw, len(block), scope, "concat_axis")
    return fit(block, at, participants, tiled), {"split_axis": at, "concat_axis": to, "tiled": tiled}


def _permute(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    return blocks.within(draw, scope), {"perm": permutations_of_participants.within(draw, participants)}


def _shift(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    block = blocks.within(draw, scope)
    turns = draw(sampled((0, 0, 0, -1, 1, 3)), label="turns")
    still = draw(st.integers(0, 29), label="whole turns") == 29
    by = 0 if still or participants == 1 else draw(st.integers(1, participants - 1), label="offset")
    return block, {"offset": by + turns * participants}


def _broadcast(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    return blocks.within(draw, scope), {"root": draw(st.integers(0, participants - 1), label="root")}


def _collective(
    name: str,
    arguments: Arguments,
    parameters: tuple[str, ...],
    *,
    invariant: bool = False,
    features: frozenset[str] = frozenset(),
    violations: tuple[Violation, ...] = (),
    sizes: Mapping[str, Callable[[Case], Any]] | None = None,
) -> Contract:
    base = name.removesuffix("_invariant")

    def on_blocks(oracles: ModuleType, function: str) -> Callable[[Case, Sequence[np.ndarray]], list[np.ndarray]]:
        def apply(case: Case, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
            params = case.keywords
            if "axis_index_groups" in params:
                params["groups"] = params.pop("axis_index_groups")
            if params.get("op") == "mean":  # whose sums do not wrap around
                blocks = [leaf if is_float(leaf.dtype) else leaf.astype(np.float64) for leaf in blocks]
            return [getattr(oracles, function)(leaf, case.mesh, case.axes, **params) for leaf in blocks]

        return apply

    value, transposed = on_blocks(values, base), on_blocks(transposes, f"{base}_transpose")
    contract = Contract(
        name=name,
        cases=lambda scope: collective_cases(contract, scope, arguments),
        call=Call(options={option: OPTIONS[option] for option in parameters}),
        oracle=Oracle(
            value,
            lambda case, blocks, tangents: value(case, tangents),
            lambda case, blocks, cotangents: transposed(case, cotangents),
            lambda case, dtypes: [values.reduced_dtype(dtype, case.keywords.get("op", "")) for dtype in dtypes],
        ),
        differentiable=lambda case: case.keywords.get("op", "sum") in ("sum", "mean"),
        linear=True,
        adapt=_of_one_sign,
        invariant=invariant,
        features=ANY_COLLECTIVE | features,
        violations=(*AXES, *violations),
        sizes=sizes or {},
    )
    return contract


def _termsize(case: Case) -> Fraction:
    """The bytes of an element while it travels: sums of bool are the int32 that they count in."""
    counts = case.operands[0].dtype == "bool" and case.keywords["op"] in ("sum", "mean")
    return Fraction(4) if counts else Fraction(width(case.operands[0].numpy_dtype), 8)


ANY_COLLECTIVE = frozenset({"empty_blocks", "explained_errors", "replicated_operands", "trees", "x64"})
WITH_DIMENSIONS = frozenset({"negative_dimensions"})
WITH_GROUPS = frozenset({"groups"})

CONTRACTS = (
    _collective(
        "all_reduce",
        _reduce,
        ("op",),
        features=frozenset({"bool_sum", "groups", "uneven_groups"}),
        invariant=True,
        violations=(OP, GROUPS, PARTLY),
        sizes={"termsize": _termsize},
    ),
    _collective(
        "all_gather",
        _gather,
        ("axis", "tiled"),
        features=WITH_DIMENSIONS | WITH_GROUPS,
        violations=(out_of_range("axis", stacks=True), GROUPS),
    ),
    _collective(
        "all_gather_invariant",
        _gather,
        ("axis", "tiled"),
        invariant=True,
        features=WITH_DIMENSIONS,
        violations=(out_of_range("axis", stacks=True),),
    ),
    _collective(
        "reduce_scatter",
        _scatter,
        ("scatter_dimension", "tiled"),
        features=WITH_DIMENSIONS | WITH_GROUPS,
        violations=(
            out_of_range("scatter_dimension"),
            indivisible("scatter_dimension"),
            GROUPS,
            PARTLY,
        ),
    ),
    _collective(
        "all_to_all",
        _exchange,
        ("split_axis", "concat_axis", "tiled"),
        features=WITH_DIMENSIONS | WITH_GROUPS,
        violations=(
            out_of_range("split_axis"),
            out_of_range("concat_axis"),
            indivisible("split_axis"),
            GROUPS,
        ),
    ),
    _collective("permute", _permute, ("perm",), violations=(PERM,)),
    _collective("ring_shift", _shift, ("offset",)),
    _collective("broadcast", _broadcast, ("root",), violations=(ROOT,)),
)
