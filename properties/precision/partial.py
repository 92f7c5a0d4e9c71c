"""Sums that a contract lets be rounded to the operands' dtype on their way, before they are sent."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import is_float, tiny, unit_roundoff
from shardproof.properties.cases.case import Case
from shardproof.properties.engines.batches import reference_blocks
from shardproof.properties.precision.numbers import largest_of, magnitudes_of
from shardproof.properties.programs.implementations import Implementation

Arrays = Sequence[np.ndarray]

FEW_PARTICIPANTS = 16
"""So many sums of participants are computed one by one."""


def rounded_on_the_way(
    implementation: Implementation, case: Case, blocks: Arrays, exact: Arrays
) -> list[np.ndarray | float]:
    """Elementwise, how far results may be off for `stages` - 1 roundings to their dtype, besides the last.

    Each is one of a participant's own sum, which a contract that adds up in a wider dtype lets be sent in that of the
    operands; where a compiler splits the sums (functions of global arrays), each device may have a part of it.
    """
    contract = case.contract
    own = [np.dtype(b.dtype) for b in blocks]
    stages = contract.stages + (case.mesh.size if implementation.whole and contract.degree > 1 else 0)
    dtypes = contract.result_dtypes(case, own)[: len(exact)]
    if contract.nonlinear or stages == 1:
        return [0.0] * len(exact)
    once = contract.stages == 2
    sums = partial_sums(case, blocks) if once else reference_blocks(case, magnitudes_of(case, blocks))[0]
    largest = max((largest_of(b) for i, b in enumerate(blocks) if i in contract.moving(case)), default=0.0)
    found: list[np.ndarray | float] = []
    for dtype in dtypes:
        if not is_float(dtype) or (contract.accumulator(dtype) == dtype and not implementation.whole):
            found.append(0.0)
            continue
        # below the normal range a hidden value is off by a fixed amount, which a factor after it multiplies
        floor = (
            tiny(dtype) * (contract.terms(case) * max(largest, 1.0) ** max(contract.degree - 2, 0)) * case.participants
        )
        error = np.zeros(np.shape(sums))
        for _ in range(stages - 1):
            error = error + unit_roundoff(dtype) * (sums + error) + floor
        found.append(error)
    return found


def partial_sums(case: Case, blocks: Arrays) -> np.ndarray:
    """Elementwise, what the participants add up by themselves, as the sum of the absolute values of their sums.

    Each of these is what is rounded before it is sent, and may be much smaller than its terms are in all.
    Of many participants an upper bound is enough: the sum of the absolute values of all terms. What is not finite
    counts as zero.
    """
    blocks = [np.where(np.isfinite(b), b, 0).astype(b.dtype) for b in blocks]
    if case.participants > FEW_PARTICIPANTS:
        return reference_blocks(case, magnitudes_of(case, blocks))[0]
    index = axis_index(case.mesh, case.axes)
    total: np.ndarray | None = None
    for participant in range(case.participants):
        chosen = (index == participant).reshape(*case.mesh.sizes, *[1] * (blocks[0].ndim - len(case.mesh.sizes)))
        with np.errstate(invalid="ignore"):
            own = np.abs(
                reference_blocks(case, [np.where(chosen, blocks[0], 0).astype(blocks[0].dtype), *blocks[1:]])[0]
            )
        total = own if total is None else total + own
    assert total is not None
    return total
