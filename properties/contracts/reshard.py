"""The contract of a change of layout: any axes in any order to any others, of rows and of columns."""

import math

from hypothesis import strategies as st

from shardproof.impl import reshard as implementations
from shardproof.oracles import reshard
from shardproof.oracles.communication import NOTHING, Cost, built_in, summed_replicas
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.baselines import bits, described, layouts_of, relaid_cost, sides
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.whole import whole_contract

SIGNATURE, CONDITIONS = described({"x": "bd"}, {}, "bd")


def _gathered(case: Case, backward: bool) -> Cost:
    """All that is given up is gathered."""
    return relaid_cost(case.mesh, sides(case), *layouts_of(case, "x", ""), bits=bits(case), transposed=backward)


def _exchanged(case: Case, backward: bool) -> Cost:
    """Bytes by the axes that a dimension gives up and gains: its old and its new ones, but for those both begin with.

    A tuple that one dimension gives up, and is all that another gains, which gives up none, is exchanged: an all-to-all
    of the block. What is given up besides is gathered: p - 1 blocks to each. To gain an axis costs nothing: its blocks
    are cut, before anything is sent if the dimension gives up none, and nobody else gives up that axis.
    Backward, an exchange is an exchange, of what was gathered to all a part is cut, and the cotangents of all parts of
    what was cut are added up.
    """
    mesh, wide, (held, wanted) = case.mesh, bits(case), layouts_of(case, "x", "")
    own = [side // mesh.axis_size(axes) for side, axes in zip(sides(case), held, strict=True)]
    kept = [max(k for k in range(len(a) + 1) if a[:k] == b[:k]) for a, b in zip(held, wanted, strict=True)]
    left = [axes[k:] for axes, k in zip(held, kept, strict=True)]
    new = [axes[k:] for axes, k in zip(wanted, kept, strict=True)]
    cost, given_up = NOTHING, {*left[0], *left[1]}

    def cut(dimension: int) -> Cost:
        before, axes = math.prod(own), new[dimension]
        own[dimension] //= mesh.axis_size(axes)
        new[dimension] = ()
        return summed_replicas(before, bits=wide) if backward and axes else NOTHING

    for dimension in (0, 1):
        if not left[dimension] and not given_up & {*new[dimension]}:
            cost += cut(dimension)
    for source, target in ((0, 1), (1, 0)):
        if left[source] and left[source] == new[target] and not left[target]:
            p, n = mesh.axis_size(left[source]), math.prod(own)
            cost += built_in("all_to_all", n, bits=wide)
            own[source], own[target] = own[source] * p, own[target] // p
            left[source] = new[target] = ()
    for dimension in (0, 1):
        if left[dimension]:
            cost += NOTHING if backward else built_in("all_gather", math.prod(own), bits=wide)
            own[dimension] *= mesh.axis_size(left[dimension])
    return cost + cut(0) + cut(1)


def _least(case: Case) -> int:
    return math.ceil(reshard.lacking(case.mesh, sides(case), *layouts_of(case, "x", "")) * bits(case) / 8)


def _misshapen(case: Case) -> st.SearchStrategy[Case]:
    """More rows in each block than can be divided as wanted, or a dimension too many if any number can."""
    held, wanted = (case.mesh.axis_size(as_axes(dict(case.roles)[role])) for role in ("x_rows", "rows"))
    rows, columns = case.operands[0].block
    found = [n for n in range(rows + 1, rows + wanted + 1) if held * n % wanted]
    return st.just(changed(case, 0, block=(found[0], columns) if found else (rows, columns, 2)))


CONTRACTS: tuple[Contract, ...] = (
    whole_contract(
        "reshard",
        SIGNATURE,
        reshard.reshard,
        conditions=CONDITIONS,
        dtypes=floats,
        kinds=("distinct", "real", "nan"),
        features=frozenset({"explained_errors", "x64"}),
        violations=(Violation("x", _misshapen),),
        linear=True,
        generic=False,
        least=_least,
        implementations={
            "exchanged": Claim(implementations.exchanged_reshard, communication=_exchanged),
            "constrained": Claim(implementations.constrained_reshard, whole=True),
            "explicit": Claim(implementations.explicit_reshard, whole=True),
        },
    ),
)
