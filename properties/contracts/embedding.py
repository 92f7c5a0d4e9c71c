"""The contract of embedding_lookup: rows of a sharded table, by their numbers in the whole of it."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import embedding as implementations
from shardproof.oracles import embedding
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.costs import added_up
from shardproof.properties.contracts.described import Array, indices
from shardproof.properties.contracts.drawing import Drawn, Given, draw_small_sizes, integers_below
from shardproof.properties.contracts.forbidden import deeper, wrong_dtype
from shardproof.properties.contracts.numbers import finite, some_out_of_range
from shardproof.properties.contracts.operation import BASIC, INDEPENDENT, operation, with_invalid


def _draw_sizes(draw: st.DrawFn, given: Given) -> Drawn:
    sizes = draw_small_sizes(draw, given).sizes
    sizes["rows"], integers = integers_below(draw, sizes["rows"], given)
    if np.dtype(integers).itemsize == 1:  # there may be more elements than numbers of the ids' dtype
        sizes["columns"] = draw(sampled((sizes["columns"], 65, 129)), label="columns")
    return Drawn(sizes, dtypes={"ids": integers})


def _in_range(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Ids of rows of the whole table, sometimes all equal, so that many gradients meet in one row.

    Rows are finite: the product with a one-hot matrix is a right lookup, and makes NaN of another row's infinity.
    """
    table, ids = arrays
    rows = case.participants * case.operands[0].block[0]
    style = int(np.abs(ids.astype(np.int64)).sum()) % 4
    spread = indices(ids, rows, equal=style == 1).astype(np.int64)
    return [finite(table), some_out_of_range(case, ids, spread, rows).astype(ids.dtype)]


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "embedding_lookup",
        embedding.embedding_lookup,
        {"table": "rows@axis_name columns", "ids": Array("leading tokens", "int32")},
        draw_sizes=_draw_sizes,
        invariant=True,
        kinds=with_invalid("distinct", "exact", "real", "scaled", "real"),
        features=BASIC | {"any_rank", "invalid_indices", INDEPENDENT},
        violations=(wrong_dtype("ids", 1, "float32"), deeper("table", 0)),
        adapt=_in_range,
        # a table has as many rows as there are participants, and every one of them a gradient for each
        most=256,
        accumulator="float32",
        usual_sizes={"rows": 32768, "columns": 1024, "tokens": 2048},
        leading=1,
        implementations={
            "masked": Claim(
                implementations.embedding_lookup,
                communication="all_reduce=1,bytes=elements(ids)*size(table,1)*itemsize(table);grad:"
                + added_up("table", wide=True),
            ),
        },
    ),
)
