"""The contracts of the collectives, from `all_reduce` to `broadcast`, and of halos."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl.halo import halo_exchange
from shardproof.oracles import collectives as values
from shardproof.oracles import halo
from shardproof.oracles.dtypes import as_dtype, is_float, is_integer, is_signed, width
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies import dtypes, kinds_of, permutations_of_participants, shapes
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import (
    DIMENSION,
    Claim,
    Contract,
    Option,
    Oracle,
    Scope,
    at_least_a_byte,
    is_dimension,
    of_type,
)
from shardproof.properties.contracts.costs import transposed
from shardproof.properties.contracts.drawing import Drawn, Given
from shardproof.properties.contracts.forbidden import GROUPS, PARTLY, indivisible, out_of_range, wrong_value
from shardproof.properties.contracts.operation import DrawSizes, Params, moved_dtypes, operation

MOST_SQUARED = 1024
"""The largest mesh of those with a piece for every pair of participants, whose data grow with its square."""

OPS = ("sum", "mean", "max", "min")
BLOCK = {"x": "block@axis_name"}


def blocks(draw: st.DrawFn, given: Given, *, min_rank: int = 0) -> tuple[int, ...]:
    """Shapes of blocks; on large meshes tiny, since a gathered block has as many copies as it has parts."""
    least = 0 if "empty_blocks" in given.scope.features else 1
    if given.scope.few:
        return shapes.within(draw, min_rank=min_rank, max_rank=2, min_side=least, max_side=2)
    return shapes.within(draw, min_rank=min_rank, min_side=least, long=True)


def dimension(draw: st.DrawFn, given: Given, rank: int, label: str) -> int:
    """A legal dimension: counted from the front, or from the back as well if that is claimed."""
    lowest = -rank if "negative_dimensions" in given.scope.features else 0
    return draw(sampled([*range(rank), *range(lowest, 0)]), label=label)


def fit(shape: tuple[int, ...], at: int, parts: int, tiled: bool) -> tuple[int, ...]:
    """`shape` with a dimension that divides into `parts`: a multiple if `tiled`, `parts` itself if not."""
    result = list(shape)
    result[at] = result[at] * parts if tiled else parts
    return tuple(result)


def _reduce(draw: st.DrawFn, given: Given) -> Drawn:
    op = draw(sampled(OPS[:2] if given.scope.floating else OPS), label="op")
    return Drawn({"block": blocks(draw, given)}, {"op": op})


def _of_one_sign(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Numbers of one sign in every second data set, not above zero for a maximum, and not below it for a minimum.

    Zeros that stand where nothing arrives would not show beside others. The least integer has no opposite, and stays.
    """
    op = case.keywords.get("op")
    if op not in ("max", "min") or case.data[0].seed % 2 == 0:
        return arrays
    sign = -1 if op == "max" else 1
    with np.errstate(over="ignore"):
        return [np.asarray(sign * np.abs(x), x.dtype) if is_signed(x.dtype) else x for x in arrays]


def _gather(draw: st.DrawFn, given: Given) -> Drawn:
    tiled = draw(sampled((True, False)), label="tiled")
    block = blocks(draw, given, min_rank=1 if tiled else 0)
    at = dimension(draw, given, len(block) + (not tiled), "axis")
    return Drawn({"block": block}, {"axis": at, "tiled": tiled})


def _scatter(draw: st.DrawFn, given: Given) -> Drawn:
    tiled = draw(sampled((True, False)), label="tiled")
    block = blocks(draw, given, min_rank=1)
    at = dimension(draw, given, len(block), "scatter_dimension")
    return Drawn({"block": fit(block, at, given.participants, tiled)}, {"scatter_dimension": at, "tiled": tiled})


def _exchange(draw: st.DrawFn, given: Given) -> Drawn:
    tiled = draw(sampled((True, False)), label="tiled")
    block = blocks(draw, given, min_rank=1)
    at = dimension(draw, given, len(block), "split_axis")
    to = dimension(draw, given, len(block), "concat_axis")
    params = {"split_axis": at, "concat_axis": to, "tiled": tiled}
    return Drawn({"block": fit(block, at, given.participants, tiled)}, params)


def _permute(draw: st.DrawFn, given: Given) -> Drawn:
    perm = permutations_of_participants.within(draw, given.participants)
    return Drawn({"block": blocks(draw, given)}, {"perm": perm})


def _shift(draw: st.DrawFn, given: Given) -> Drawn:
    turns = draw(sampled((0, -1, 1, 3)), label="turns")
    by = draw(sampled((*range(1, given.participants), 0)), label="offset")  # by whole turns last, where nothing moves
    return Drawn({"block": blocks(draw, given)}, {"offset": by + turns * given.participants})


def _broadcast(draw: st.DrawFn, given: Given) -> Drawn:
    root = draw(st.integers(0, given.participants - 1), label="root")
    return Drawn({"block": blocks(draw, given)}, {"root": root})


def _with_trees(sizes: DrawSizes) -> DrawSizes:
    """The sizes of what may be a pytree of two arrays if `trees` are claimed."""

    def drawn(draw: st.DrawFn, given: Given) -> Drawn:
        found = sizes(draw, given)
        if "trees" in given.scope.features and draw(st.booleans(), label="tree"):
            floating = given.scope.floating or found.options.get("op") == "mean"
            found = dataclasses.replace(found, another="float32" if floating else "int32")
        return found

    return drawn


def _reduced_dtypes(scope: Scope, devices: int, participants: int, params: Params) -> st.SearchStrategy[str]:
    op = params.get("op", "sum")
    sums = op in ("sum", "mean")
    terms = devices if scope.floating else participants if sums else 1
    if op == "mean" and participants & (participants - 1):  # rounded: too many terms would leave no certain digit
        terms *= 8
    return dtypes(
        floating=scope.floating,
        numeric=op == "mean" or (sums and ("bool_sum" not in scope.features or "op" not in params)),
        ordered=op in ("max", "min"),
        terms=terms,
        wrapping=op != "mean",
        wide="x64" in scope.features,
    )


def _reduced_kinds(scope: Scope, dtype: str, params: Params) -> tuple[str, ...]:
    """All; for a mean, only where it is defined: no sums that wrap around, nor infinite or huge complex numbers."""
    kind = as_dtype(dtype)
    if params.get("op") == "mean" and is_integer(kind):
        return ("exact", "scaled") * 3
    if params.get("op") == "mean" and kind.kind == "c":
        return ("distinct", "exact", "real") * 2
    return _moved_kinds(scope, dtype, params)


def _moved_kinds(scope: Scope, dtype: str, params: Params) -> tuple[str, ...]:
    return kinds_of(dtype) * (1 if is_float(as_dtype(dtype)) else 2)


def _oracle(name: str) -> Oracle:
    """The oracle of a linear map on the blocks of every leaf, and of its transpose."""

    def apply(name: str, case: Case, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        params = case.keywords
        if "axis_index_groups" in params:
            params["groups"] = params.pop("axis_index_groups")
        if params.get("op") == "mean":  # whose sums do not wrap around
            blocks = [leaf if is_float(leaf.dtype) else leaf.astype(np.float64) for leaf in blocks]
        return [getattr(values, name)(leaf, case.mesh, case.axes, **params) for leaf in blocks]

    return Oracle(
        partial(apply, name),
        lambda case, blocks, tangents: apply(name, case, tangents),
        lambda case, blocks, cotangents: apply(f"{name}_transpose", case, cotangents),
        lambda case, dtypes: [values.reduced_dtype(dtype, case.keywords.get("op", "")) for dtype in dtypes],
    )


def _collective(name: str, draw_sizes: DrawSizes, *features: str, **more: Any) -> Contract:
    moves: dict[str, Any] = {"dtypes": moved_dtypes, "kinds": _moved_kinds}
    return operation(
        name,
        _oracle(name.removesuffix("_invariant")),
        BLOCK,
        draw_sizes=_with_trees(draw_sizes),
        features=ANY_COLLECTIVE | {*features},
        linear=True,
        **moves | more,
    )


def _termsize(case: Case) -> Fraction:
    """The bytes of an element while it travels: sums of bool are the int32 that they count in."""
    counts = case.operands[0].dtype == "bool" and case.keywords["op"] in OPS[:2]
    return Fraction(4) if counts else Fraction(width(case.operands[0].numpy_dtype), 8)


def _is_permutation(case: Case, value: tuple[tuple[int, ...], ...]) -> bool:
    sides = [*zip(*value, strict=True)] if all(len(pair) == 2 for pair in value) else [(-1,)]
    return all(len({*side}) == len(side) and {*side} <= {*range(case.participants)} for side in sides)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, tuple) and all(map(of_type(int), v)) for v in value)


ANY_COLLECTIVE = frozenset({"empty_blocks", "explained_errors", "replicated_operands", "trees", "x64"})

TILED = Option(of_type(bool))
GATHERED = {"axis": Option(of_type(int), partial(is_dimension, stacks=True)), "tiled": TILED}

MOST_ROWS = 12
"""The most rows that are attached on a side, unless a block has more; on large meshes 3."""

READS = 3
"""A window is at most two whole arrays and a block long: nothing is in it more than three times."""


def _halo(draw: st.DrawFn, given: Given) -> Drawn:
    block = blocks(draw, given, min_rank=1)
    axis = dimension(draw, given, len(block), "axis")
    n = block[axis]
    # up to a block, which is what people think of; up to two; and up to the whole array
    most = min(n * given.participants, max(n, 3 if given.scope.large else MOST_ROWS))
    widths = (0, n), (min(n + 1, most), min(2 * n, most)), (0, most)
    rows = sampled(widths).flatmap(lambda width: st.integers(*width))
    return Drawn({"block": block}, {"before": draw(rows), "after": draw(rows), "axis": axis})


def _rows_of_all(case: Case) -> int:
    return case.participants * case.operands[0].block[case.keywords["axis"]]


def _number_of_rows(case: Case, value: int) -> bool:
    """True if that many rows exist along the axis, unless the axis is wrong itself."""
    return value >= 0 and (not is_dimension(case, case.keywords["axis"]) or value <= _rows_of_all(case))


ROWS = Option(of_type(int), _number_of_rows)


def _attached_dtypes(scope: Scope, devices: int, *given: Any) -> st.SearchStrategy[str]:
    return moved_dtypes(scope, devices * READS)


TAIL, HEAD = "min(rows,max(0,before-(d-1)*rows))", "min(rows,max(0,after-(p-d-1)*rows))"
"""The rows of the participant d places behind that are needed in front of a block, and behind it.

It is p - d places ahead as well: where the two make up its block, they are sent in one permute.
"""

CONTRACTS = (
    _collective(
        "all_reduce",
        _reduce,
        "bool_sum",
        "groups",
        "uneven_groups",
        options={"op": Option(of_type(str), lambda case, value: value in OPS)},
        dtypes=_reduced_dtypes,
        kinds=_reduced_kinds,
        differentiable=lambda case: case.keywords["op"] in OPS[:2],
        invariant=True,
        violations=(wrong_value("op", lambda case: ("median", "", "SUM")), GROUPS, PARTLY),
        adapt=_of_one_sign,
        sizes={"termsize": _termsize},
    ),
    _collective(
        "all_gather",
        _gather,
        "negative_dimensions",
        "groups",
        options=GATHERED,
        violations=(out_of_range("axis", stacks=True), GROUPS),
    ),
    _collective(
        "all_gather_invariant",
        _gather,
        "negative_dimensions",
        options=GATHERED,
        invariant=True,
        violations=(out_of_range("axis", stacks=True),),
    ),
    _collective(
        "reduce_scatter",
        _scatter,
        "negative_dimensions",
        "groups",
        options={"scatter_dimension": DIMENSION, "tiled": TILED},
        dtypes=_reduced_dtypes,
        violations=(out_of_range("scatter_dimension"), indivisible("scatter_dimension"), GROUPS, PARTLY),
        most=MOST_SQUARED,
    ),
    _collective(
        "all_to_all",
        _exchange,
        "negative_dimensions",
        "groups",
        options={"split_axis": DIMENSION, "concat_axis": DIMENSION, "tiled": TILED},
        violations=(out_of_range("split_axis"), out_of_range("concat_axis"), indivisible("split_axis"), GROUPS),
        most=MOST_SQUARED,
    ),
    _collective(
        "permute",
        _permute,
        options={"perm": Option(_are_numbers, _is_permutation)},
        violations=(wrong_value("perm", lambda case: (((0, case.participants),), ((-1, 0),), ((0, 0), (0, 0)))),),
    ),
    _collective("ring_shift", _shift, options={"offset": Option(of_type(int))}),
    _collective(
        "broadcast",
        _broadcast,
        options={"root": Option(of_type(int), lambda case, value: 0 <= value < case.participants)},
        violations=(wrong_value("root", lambda case: (case.participants, -1)),),
    ),
    operation(
        "halo_exchange",
        halo.halo_exchange,
        BLOCK,
        draw_sizes=_halo,
        options={"before": ROWS, "after": ROWS, "axis": DIMENSION},
        dtypes=_attached_dtypes,
        kinds=("distinct", "exact", "real", "special", "nan", "scaled"),
        features=frozenset({"explained_errors", "negative_dimensions", "replicated_operands", "x64"}),
        violations=(
            *(wrong_value(side, lambda case: (-1, _rows_of_all(case) + 1)) for side in ("before", "after")),
            out_of_range("axis"),
        ),
        linear=True,
        shapes=(((8192, 1024), 0, ""),),
        usual={"before": 1, "after": 1, "axis": 0},
        least=lambda case: at_least_a_byte(0)(case) if case.keywords["before"] + case.keywords["after"] else 0,
        sizes={"rows": lambda case: case.operands[0].block[case.keywords["axis"]]},
        implementations={
            "permutes": Claim(
                halo_exchange,
                communication=transposed(
                    f"permute=sum(1 if {TAIL}+{HEAD}>=rows else ({TAIL}>0)+({HEAD}>0) for d in range(1,p)),"
                    f"bytes=x/rows*sum(min(rows,{TAIL}+{HEAD}) for d in range(1,p)),steps=1"
                ),
            )
        },
    ),
)
