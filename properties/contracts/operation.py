"""Contracts of operations whose arguments are described one by one: what each is, and along which axes it varies."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.cases import Case, Operand, Placement
from shardproof.properties.contracts.collectives import AXES, placements
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Violation
from shardproof.properties.contracts.drawing import manual_axes, meshes_and_axes, without
from shardproof.properties.data import Data
from shardproof.properties.strategies.dtypes import WIDE_IN

Params = dict[str, Any]
Blocks = Sequence[np.ndarray]

FLOATS = ("float32", "bfloat16", "float16")
WIDER = {"bfloat16": "float32", "float16": "float32"}
"""What 16-bit floats are added up in."""


@dataclass(frozen=True)
class Described:
    """An array argument of one case.

    Arguments:
        block: the shape of its blocks.
        dtype: the dtype's name; empty: the one that is drawn for the case.
        varies: whether it may differ along the axis tuple; if not, all participants have the same.
        like: the place of the argument whose placement it shares, so that the two correspond as global arrays.
    """

    block: tuple[int, ...]
    dtype: str = ""
    varies: bool = True
    like: int | None = None


Drawn = tuple[Sequence[Described], Params]
Arguments = Callable[[st.DrawFn, int, Scope], Drawn]
"""Given the number of participants, draws the array arguments and the keyword arguments."""

Dtypes = Callable[[Scope, int], st.SearchStrategy[str]]
"""The dtypes of a case, given how many terms a result or a gradient may add up."""


Kinds = Callable[[Scope], Sequence[str]]
"""The kinds of data of a case."""


def floats(scope: Scope, terms: int) -> st.SearchStrategy[str]:
    """Real floats of 16 and 32 bits, and of 64 where they are supported; shrinks to float32."""
    usual = st.sampled_from(FLOATS)
    if "x64" not in scope.features:
        return usual
    return st.tuples(st.integers(0, WIDE_IN - 1), usual).map(lambda d: "float64" if d[0] == WIDE_IN - 1 else d[1])


@st.composite
def operation_cases(
    draw: st.DrawFn,
    name: str,
    scope: Scope,
    arguments: Arguments,
    dtypes: Dtypes,
    kinds: Kinds,
    reads: int,
    most: int | None,
) -> Case:
    """Cases of one operation. Shrinks to one device, the first axis, the smallest arguments, the first dtype."""
    around = draw(st.sampled_from(scope.arounds), label="around")
    mesh, axis_name, axes = draw(meshes_and_axes(scope, around, most=most))
    described, params = arguments(draw, mesh.axis_size(axes), scope)
    dtype = draw(dtypes(scope, mesh.size * reads if scope.floating else 1), label="dtype")
    replicated = "replicated_operands" in scope.features and draw(st.integers(0, 9), label="replicated operand") == 9
    placed: list[Placement] = []
    for one in described:
        if one.like is not None:
            placed.append(placed[one.like])
            continue
        drawn = draw(placements(mesh, len(one.block), required=axes if one.varies and not replicated else ()))
        placed.append(drawn if one.varies else without(drawn, axes))
    manual: tuple[str, ...] = ()
    if around == "partial_manual":
        manual = draw(manual_axes(mesh, axes))
        automatic = [axis for axis in mesh.axis_names if axis not in manual]
        placed = [without(placement, automatic) for placement in placed]
    seed = draw(st.integers(0, 2**16), label="seed")
    chosen = kinds(scope)
    return Case(
        contract=name,
        mesh=mesh,
        axis_name=axis_name,
        operands=tuple(
            Operand(one.block, one.dtype or dtype, placement) for one, placement in zip(described, placed, strict=True)
        ),
        params=tuple(params.items()),
        data=tuple(Data(chosen[i % len(chosen)], seed + i) for i in range(2 if scope.large else max(5, len(chosen)))),
        around=around,
        manual=manual,
    )


def operation(
    name: str,
    oracle: Any,
    arguments: Arguments,
    *,
    operands: tuple[str, ...],
    implementations: Mapping[str, Claim],
    parameters: tuple[str, ...] = (),
    options: Mapping[str, Option] | None = None,
    auxiliary: frozenset[str] = frozenset(),
    invariant: bool = False,
    dtypes: Dtypes = floats,
    kinds: Sequence[str] | Kinds = ("exact", "distinct", "real", "scaled", "real"),
    features: frozenset[str] = frozenset({"explained_errors", "replicated_operands", "x64"}),
    violations: tuple[Violation, ...] = (),
    reads: int | Callable[[Case], int] = 1,
    most: int | None = None,
    adapt: Callable[[Case, list[np.ndarray]], list[np.ndarray]] = lambda case, arrays: arrays,
    **more: Any,
) -> Contract:
    """A contract whose oracle takes the blocks of all arguments, on at most `most` devices; `more` is of `Contract`.

    The oracle is an object with three methods, of which each gets the mesh, the axes, and the keyword arguments:
    `value(operands)` gives the results' blocks, `pushforward(operands, tangents)` their tangents, and
    `pullback(operands, cotangents)` the operands' cotangents; of operands that have no gradient they are None. Blocks
    `[*mesh.sizes, *block]` come in, and go out, in a dtype that loses nothing that matters.
    """

    def moving(case: Case) -> list[int]:
        return [i for i, operand in enumerate(operands) if operand not in auxiliary]

    def pushforward(case: Case, xs: Blocks, tangents: Blocks) -> list[np.ndarray]:
        along: list[np.ndarray | None] = [None] * len(xs)
        for i, tangent in zip(moving(case), tangents, strict=True):
            along[i] = tangent
        return list(oracle.pushforward(xs, along, case.mesh, case.axes, **case.keywords))

    def pullback(case: Case, xs: Blocks, cotangents: Blocks) -> list[np.ndarray]:
        pulled = oracle.pullback(xs, cotangents, case.mesh, case.axes, **case.keywords)
        return [pulled[i] for i in moving(case)]

    all_kinds: Kinds = kinds if callable(kinds) else lambda scope: kinds
    least_reads = reads if isinstance(reads, int) else 1
    return Contract(
        name=name,
        cases=lambda scope: operation_cases(name, scope, arguments, dtypes, all_kinds, least_reads, most),
        oracle=lambda case, xs: list(oracle.value(xs, case.mesh, case.axes, **case.keywords)),
        pushforward=pushforward,
        pullback=pullback,
        differentiable=lambda case: True,
        terms=more.pop("terms", lambda case: 1),
        divides=more.pop("divides", lambda case: False),
        invariant=invariant,
        parameters=parameters,
        violations=(*AXES, *violations),
        operands=operands,
        auxiliary=auxiliary,
        reads=reads if callable(reads) else lambda case: least_reads,
        options=options or {},
        features=features,
        adapt=adapt,
        implementations=implementations,
        **more,
    )


def changed(case: Case, place: int, **fields: Any) -> Case:
    """The case with another block or dtype of an operand; further dimensions are not sharded."""
    operands = list(case.operands)
    new = dataclasses.replace(operands[place], **fields)
    more = len(new.block) - len(new.placement.spec)
    placement = dataclasses.replace(new.placement, spec=(*new.placement.spec, *[()] * more))
    operands[place] = dataclasses.replace(new, placement=placement)
    return dataclasses.replace(case, operands=tuple(operands))


def rewritten(case: Case, **params: Any) -> Case:
    """The case with other keyword arguments."""
    return dataclasses.replace(case, params=tuple({**case.keywords, **params}.items()))
