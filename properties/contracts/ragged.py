"""The contract of ragged_all_to_all: slices of different lengths from every participant to every other.

The four lists are drawn together, and are consistent: with empty slices, gaps in the output, slices of the operand that
overlap, and several slices for each participant.
"""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import ragged as implementations
from shardproof.oracles import ragged
from shardproof.oracles.layout import participants_first, unshard
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.costs import added_up
from shardproof.properties.contracts.described import Array
from shardproof.properties.contracts.drawing import Drawn, Given
from shardproof.properties.contracts.forbidden import deeper, longer, wrong_dtype
from shardproof.properties.contracts.operation import moved_dtypes, operation

LISTS = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def _draw_sizes(draw: st.DrawFn, given: Given) -> Drawn:
    small, long = st.integers(1, 3 if given.scope.few else 6), sampled(LONG)
    both = [st.tuples(small, small), *([] if given.scope.few else [st.tuples(long, long)])]
    rows_in, rows_out = draw(st.one_of(both), label="rows of operand and output")
    row = draw(st.lists(st.integers(1, 2), max_size=1 if max(rows_in, rows_out) > 6 else 2), label="row")
    each = draw(sampled((1, 2, 3)), label="slices for each participant")
    return Drawn({"rows_in": rows_in, "rows_out": rows_out, "row": tuple(row), "entries": each * given.participants})


def consistent(
    rng: np.random.Generator, participants: int, each: int, rows_in: int, rows_out: int
) -> tuple[np.ndarray, ...]:
    """The four lists of all participants, `[p, p * each]` each, that agree with one another.

    Every output gets slices of random lengths in random order, with gaps between them and at its ends; an empty slice
    has an offset as well, often that of another slice.
    """
    begin, send, target, receive = (np.zeros((participants, participants * each), np.int32) for _ in LISTS)
    slots = participants * each
    for destination in range(participants):
        weights = rng.random(slots) ** 3
        lengths = rng.multinomial(rng.integers(0, rows_out + 1), weights / weights.sum())
        lengths = np.minimum(lengths, rows_in)
        gaps = rng.multinomial(rows_out - lengths.sum(), np.full(slots + 1, 1 / (slots + 1)))
        order = rng.permutation(slots)
        ends = np.cumsum(gaps[:-1] + lengths[order])
        starts = np.zeros(slots, np.int64)
        starts[order] = ends - lengths[order]
        receive[destination] = lengths
        for source in range(participants):
            theirs, mine = (
                slice(source * each, (source + 1) * each),
                slice(destination * each, (destination + 1) * each),
            )
            send[source, mine], target[source, mine] = lengths[theirs], starts[theirs]
            begin[source, mine] = rng.integers(0, rows_in - lengths[theirs] + 1)
    return begin, send, target, receive


def _agreeing(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Lists that agree within every process group, drawn from what was drawn for its participants."""
    operand, output, *drawn = arrays
    placement, mesh = case.operands[2].placement, case.mesh
    held = [case.blocks(2 + i, one) for i, one in enumerate(drawn)]
    lead = len(mesh.sizes)
    flat = [h.reshape(mesh.size, -1, h.shape[-1]) for h in held]  # [device, batch, entry]
    result = [np.zeros_like(h) for h in flat]
    rows_in, rows_out = (o.block[0] for o in case.operands[:2])
    for group in participants_first(np.arange(mesh.size).reshape(mesh.sizes), mesh, case.axes).T:
        for at in range(flat[0].shape[1]):
            seed = [int(v) % 2**32 for v in flat[0][group, at].ravel()]
            lists = consistent(
                np.random.default_rng(seed),
                case.participants,
                case.operands[2].block[0] // case.participants,
                rows_in,
                rows_out,
            )
            for one, values in zip(result, lists, strict=True):
                one[group, at] = values
    ones = (1,) * len(placement.stacked)
    spread = [r.reshape(*mesh.sizes, *ones, *h.shape[lead:]) for r, h in zip(result, held, strict=True)]
    return [operand, output, *(unshard(s, mesh, case.partition(2)) for s in spread)]


LISTS_OF_INTEGERS = "all_to_all=1,all_to_all_bytes=8*elements(input_offsets)"
"""Two lists of int32 say where slices come from, and where they go."""

CASTS = added_up("operand", "output")

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "ragged_all_to_all",
        ragged.differentiable,
        {
            "operand": "rows_in@axis_name row",
            "output": "rows_out@axis_name row",
            **dict.fromkeys(LISTS, Array("entries@axis_name", "int32")),
        },
        draw_sizes=_draw_sizes,
        keyword_axis=True,
        dtypes=moved_dtypes,
        kinds=("distinct", "exact", "real", "special", "nan", "scaled"),
        features=frozenset({"explained_errors", "x64"}),
        violations=(longer("send_sizes", 3, 0), deeper("output", 1, 2), wrong_dtype("input_offsets", 2, "float32")),
        adapt=_agreeing,
        least=None,  # nothing is sent where all slices are empty
        # there is a slice for every pair of participants
        most=64,
        implementations={
            "native": Claim(
                implementations.ragged_all_to_all,
                # the operand is counted, and not its lists
                communication=f"ragged_all_to_all=1,bytes=operand;grad:{LISTS_OF_INTEGERS},ragged_all_to_all=1,ragged_all_to_all_bytes=output,{CASTS}",
            ),
            "gathered": Claim(
                implementations.gathered_ragged_all_to_all,
                communication=f"{LISTS_OF_INTEGERS},all_gather=1,all_gather_bytes=operand;grad:{LISTS_OF_INTEGERS},reduce_scatter=1,reduce_scatter_bytes=p*operand,{CASTS}",
            ),
        },
    ),
)
