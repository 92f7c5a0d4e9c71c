"""The contract of the mean of all participants' elements that a mask counts."""

from functools import partial

import numpy as np

from shardproof.impl.means import masked_mean
from shardproof.oracles import means
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.described import Array
from shardproof.properties.contracts.drawing import draw_small_sizes
from shardproof.properties.contracts.forbidden import longer, wrong_dtype
from shardproof.properties.contracts.operation import BASIC, INDEPENDENT, operation


def _masked(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The mask of no element, of all, or, of finite ones, of the first third or as drawn: of half of them."""
    values, drawn = arrays
    third = np.arange(drawn.size).reshape(drawn.shape) <= drawn.size // 3
    style = int(np.count_nonzero(drawn)) % 5
    mask = (np.zeros_like(drawn), np.ones_like(drawn), third, drawn, drawn)[style]
    finite = case.aligned(0, np.isfinite(values.astype(np.float64))) & np.ones_like(case.aligned(1, mask))
    shared = tuple(len(case.operands[1].placement.stacked) + at for at in case.shared_dimensions(1))
    return [values, mask if style == 1 else np.asarray(mask & finite.all(axis=shared).reshape(mask.shape))]


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "masked_mean",
        means.masked_mean,
        {"values": "leading tokens@axis_name", "mask": Array("leading tokens@axis_name", "bool")},
        draw_sizes=partial(draw_small_sizes, most=6),
        invariant=True,
        kinds=("exact", "real", "nan", "scaled", "special", "nan"),
        features=BASIC | {"any_rank", INDEPENDENT},
        violations=(longer("mask", 1, -1), wrong_dtype("mask", 1, "float32")),
        adapt=_masked,
        accumulator="float32",
        usual_sizes={"tokens": 65536},
        implementations={
            "sums": Claim(
                masked_mean, communication="all_reduce=2,bytes=4+sum_itemsize(values);grad:all_reduce=1,bytes=4"
            )
        },
    ),
)
