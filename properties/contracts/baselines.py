"""The contracts of matrix products in any layout: what compilers are compared with, and compared by."""

import math
from collections.abc import Callable, Mapping, Sequence

from shardproof.impl import baselines as implementations
from shardproof.oracles import baselines
from shardproof.oracles.baselines import Layout
from shardproof.oracles.communication import NOTHING, Cost, built_in, summed_replicas
from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import longer
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.contracts.roles import Conditions, axes_of
from shardproof.properties.contracts.whole import whole_contract

FEATURES = frozenset({"explained_errors", "narrow_accumulation", "x64"})

MOST_DEVICES = 64
"""The largest mesh: a form that gathers has as many copies of an operand as there are devices."""


def roles_of(array: str) -> tuple[str, str]:
    """What lays out an array, or the result, which has no name."""
    return (f"{array}_rows", f"{array}_columns") if array else ("rows", "columns")


def bits(case: Case) -> int:
    """The bits of an element."""
    return width(case.operands[0].numpy_dtype)


def sides(case: Case) -> tuple[int, ...]:
    """B, D and F, or B, D, F and D, of the whole matrices."""
    whole = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
    return (whole[0][0], *(shape[1] for shape in whole))


def described(dimensions: Mapping[str, str], hidden: Mapping[str, str], result: str) -> tuple[Signature, Conditions]:
    """The signature of matrices whose dimensions are named, each laid out by roles of its own, and its conditions."""

    def laid_out(name: str, dimensions: str) -> str:
        return " ".join(f"{d}@{role}" for d, role in zip(dimensions, roles_of(name), strict=True))

    operands, hidden_ones = ([laid_out(*one) for one in some.items()] for some in (dimensions, hidden))
    signature = Signature.of(
        list(dimensions), operands, laid_out("", result), hidden=dict(zip(hidden, hidden_ones, strict=True))
    )
    layouts = tuple(map(roles_of, (*dimensions, *hidden, "")))
    return signature, Conditions(most=MOST_DEVICES, layouts=layouts)


def layouts_of(case: Case, *names: str) -> list[Layout]:
    """How a case lays out some."""
    axes = axes_of(case.roles)
    return [(axes[rows], axes[columns]) for rows, columns in map(roles_of, names)]


def _missing(*operands: str) -> Callable[[Case], int]:
    def least(case: Case) -> int:
        *layouts, result = layouts_of(case, *operands, "")
        return math.ceil(baselines.lacking(case.mesh, sides(case), layouts, result) * bits(case) / 8)

    return least


SIGNATURE, CONDITIONS = described({"lhs": "bd", "rhs": "df"}, {}, "bf")
OF_TWO, OF_TWO_CONDITIONS = described({"x": "bd", "w_in": "df", "w_out": "fd"}, {"hidden": "bf"}, "bd")
OF_TWO_LAYOUTS = ("x", "w_in", "hidden", "w_out", "")


def exchanged_cost(
    mesh: MeshCase, sides: Sequence[int], held: Layout, wanted: Layout, *, bits: int = 8, transposed: bool = False
) -> Cost:
    """Bytes by the axes that a dimension gives up and gains: its old and its new ones, but for those both begin with.

    A tuple that one dimension gives up, and is all that another gains, which gives up none, is exchanged: an all-to-all
    of the block. What is given up besides is gathered: p - 1 blocks to each. To gain an axis costs nothing: its blocks
    are cut, before anything is sent if the dimension gives up none, and nobody else gives up that axis.
    Transposed, an exchange is an exchange, of what was gathered to all a part is cut, and the cotangents of all parts
    of what was cut are added up.
    """
    own = [side // mesh.axis_size(axes) for side, axes in zip(sides, held, strict=True)]
    kept = [max(k for k in range(len(a) + 1) if a[:k] == b[:k]) for a, b in zip(held, wanted, strict=True)]
    left = [axes[k:] for axes, k in zip(held, kept, strict=True)]
    new = [axes[k:] for axes, k in zip(wanted, kept, strict=True)]
    cost, given_up = NOTHING, {*left[0], *left[1]}

    def cut(dimension: int) -> Cost:
        before, axes = math.prod(own), new[dimension]
        own[dimension] //= mesh.axis_size(axes)
        new[dimension] = ()
        return summed_replicas(before, bits=bits) if transposed and axes else NOTHING

    for dimension in (0, 1):
        if not left[dimension] and not given_up & {*new[dimension]}:
            cost += cut(dimension)
    for source, target in ((0, 1), (1, 0)):
        if left[source] and left[source] == new[target] and not left[target]:
            p, n = mesh.axis_size(left[source]), math.prod(own)
            cost += built_in("all_to_all", n, bits=bits)
            own[source], own[target] = own[source] * p, own[target] // p
            left[source] = new[target] = ()
    for dimension in (0, 1):
        if left[dimension]:
            cost += NOTHING if transposed else built_in("all_gather", math.prod(own), bits=bits)
            own[dimension] *= mesh.axis_size(left[dimension])
    return cost + cut(0) + cut(1)


def _product(case: Case, sides: Sequence[int], lhs: Layout, rhs: Layout, result: Layout, backward: bool) -> Cost:
    """`[B, D] @ [D, F] -> [B, F]`: both operands are gathered, where they are not as the result is.

    The gradient gathers them as well. A device's rows are cast to vary as the columns do, and the other way round.
    """
    (b, d, f), (rows, columns), mesh, wide = sides, result, case.mesh, bits(case)
    operands = (((b, d), lhs, (rows, ())), ((d, f), rhs, ((), columns)))
    cost = NOTHING
    for transposed in (False, True)[: 1 + backward]:
        for shape, held, wanted in operands:
            cost += exchanged_cost(mesh, shape, held, wanted, bits=wide, transposed=transposed)
    if backward and columns:
        cost += summed_replicas(b // mesh.axis_size(rows) * d, bits=wide)
    if backward and rows:
        cost += summed_replicas(d * (f // mesh.axis_size(columns)), bits=wide)
    return cost


def _gathered(case: Case, backward: bool) -> Cost:
    """One product of gathered operands."""
    lhs, rhs, result = layouts_of(case, "lhs", "rhs", "")
    return _product(case, sides(case), lhs, rhs, result, backward)


def _two_gathered(case: Case, backward: bool) -> Cost:
    """Two products, one after the other."""
    (x, w_in, hidden, w_out, result), (b, d, f, last) = layouts_of(case, *OF_TWO_LAYOUTS), sides(case)
    first = _product(case, (b, d, f), x, w_in, hidden, backward)
    return first + _product(case, (b, f, last), hidden, w_out, result, backward)


def _reduced(case: Case, backward: bool) -> Cost:
    """The right operand is gathered, where its rows are not the columns of the left one; then sums, and the result.

    The gradient gathers the right operand as well. The sum is linear, and known to all.
    """
    lhs, rhs, result = layouts_of(case, "lhs", "rhs", "")
    (b, d, f), (rows, contracted), mesh, wide = sides(case), lhs, case.mesh, bits(case)
    cost = exchanged_cost(mesh, (d, f), rhs, (contracted, ()), bits=wide)
    if backward:
        cost += exchanged_cost(mesh, (d, f), rhs, (contracted, ()), bits=wide, transposed=True)
        cost += summed_replicas(d // mesh.axis_size(contracted) * f if rows else 0, bits=wide)
    elif contracted:
        sums = width(float32_accumulator(case.operands[0].numpy_dtype))
        cost += built_in("all_reduce", b // mesh.axis_size(rows) * f, bits=sums)
    return cost + exchanged_cost(mesh, (b, f), (rows, ()), result, bits=wide, transposed=backward)


CONTRACTS: tuple[Contract, ...] = (
    whole_contract(
        "sharded_matmul",
        SIGNATURE,
        baselines.matmul,
        conditions=CONDITIONS,
        dtypes=floats,
        kinds=("exact", "real", "scaled", "partial", "nan"),
        features=FEATURES,
        violations=(longer("rhs", 1, 0),),
        generic=False,
        accumulator="float32 on a device",
        least=_missing("lhs", "rhs"),
        implementations={
            "gathered": Claim(implementations.gathered_matmul, communication=_gathered),
            "reduced": Claim(implementations.reduced_matmul, communication=_reduced),
            "automatic": Claim(implementations.automatic_matmul, whole=True),
            "explicit": Claim(implementations.explicit_matmul, whole=True),
        },
    ),
    whole_contract(
        "two_matmuls",
        OF_TWO,
        baselines.two_matmuls,
        conditions=OF_TWO_CONDITIONS,
        dtypes=floats,
        kinds=("exact", "real", "exact", "scaled", "nan"),
        features=FEATURES,
        violations=(longer("w_in", 1, 0), longer("w_out", 2, 0)),
        generic=False,
        accumulator="float32 on a device",
        least=_missing("x", "w_in", "w_out"),
        implementations={
            "gathered": Claim(implementations.gathered_two_matmuls, communication=_two_gathered),
            "automatic": Claim(implementations.automatic_two_matmuls, whole=True),
            "explicit": Claim(implementations.explicit_two_matmuls, whole=True),
            "mixed": Claim(implementations.mixed_two_matmuls, whole=True),
        },
    ),
)
