"""Oracles under a chain of transformations: one input of the batch after the other, and what is not kept is zeros.

Of calls that feed one another they are composed: derivatives by the chain rule.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardproof.oracles.dtypes import is_float, rounded, wide
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import listed
from shardproof.properties.programs.feeding import fed_operands, refilled
from shardproof.properties.programs.violation import SuiteError

Arrays = Sequence[np.ndarray]

Place = int | None
"""The operand whose dimensions an array has, or None of one that has those of a result."""


def reference_blocks(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results `[*mesh.sizes, *batch, *block]` in wide floats, before they are rounded."""
    return value_over_batch(case, widened_operands(case, operands))


def widened_operands(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The arrays of all operands, those that have a gradient in a dtype that loses nothing that matters."""
    moving = case.contract.call.moving(case)
    return [widened(o) if i in moving else o for i, o in enumerate(operands)]


def widened(array: np.ndarray) -> np.ndarray:
    """Floats in a dtype that loses nothing that matters; integers as they are, to wrap."""
    return array.astype(wide(array.dtype), copy=False) if is_float(array.dtype) else array


def oracle_blocks(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results `[*mesh.sizes, *batch, *block]`, given the operands' blocks, in their dtype."""
    exact = reference_blocks(case, operands)
    dtypes = case.contract.oracle.result_dtypes(case, [operand.dtype for operand in operands])
    return [rounded(e, dtype) for e, dtype in zip(exact, dtypes, strict=False)]  # a product has one result


def value_over_batch(case: Case, operands: Arrays) -> list[np.ndarray]:
    """The oracle's results, given blocks of the operands."""
    return _over_batch(
        case, operands, range(len(operands)), lambda blocks: case.contract.oracle.value(case, _calls(case, blocks)[-1])
    )


def pushed_over_batch(case: Case, operands: Arrays, tangents: Arrays) -> list[np.ndarray]:
    """The results' tangents, given blocks of the operands and of the tangents of those that move."""
    count, moving = len(operands), case.contract.call.moving(case)
    return _over_batch(
        case,
        [*operands, *tangents],
        [*range(count), *moving],
        lambda blocks: _pushed(case, blocks[:count], blocks[count:]),
    )


def pulled_over_batch(case: Case, operands: Arrays, cotangents: Arrays) -> list[np.ndarray]:
    """The cotangents of the operands that move, given blocks of the operands and of the results' cotangents.

    Of an operand that a part of the batch shares they are added up.
    """
    count, moving = len(operands), case.contract.call.moving(case)
    return _over_batch(
        case,
        [*operands, *cotangents],
        [*range(count), *(None for _ in cotangents)],
        lambda blocks: _pulled(case, blocks[:count], blocks[count:]),
        moving,
    )


def _calls(case: Case, blocks: Arrays) -> list[Arrays]:
    """The operands of every call, each but the first fed by the one before it."""
    calls = [blocks]
    while len(calls) < case.calls:
        calls.append(refilled(fed_operands(case), calls[-1], case.contract.oracle.value(case, calls[-1])))
    return calls


def _pushed(case: Case, blocks: Arrays, tangents: Arrays) -> Arrays:
    """The tangents of the results of the last call: those of one are tangents of the operands that it feeds."""
    if case.calls == 1:
        return case.contract.oracle.pushforward(case, blocks, tangents)
    moving, fed = case.contract.call.moving(case), fed_operands(case)
    among = {moving.index(place): number for place, number in fed.items()}
    first, *rest = _calls(case, blocks)
    pushed = case.contract.oracle.pushforward(case, first, tangents)
    for operands in rest:
        pushed = case.contract.oracle.pushforward(case, operands, refilled(among, tangents, pushed))
    return pushed


def _pulled(case: Case, blocks: Arrays, cotangents: Arrays) -> Arrays:
    """The cotangents of the operands of the first call, with those of what all calls share, which add up."""
    if case.calls == 1:
        return case.contract.oracle.pullback(case, blocks, cotangents)
    moving, fed = case.contract.call.moving(case), fed_operands(case)
    first, *rest = _calls(case, blocks)
    shared: list[np.ndarray] | None = None
    for operands in reversed(rest):
        pulled = dict(zip(moving, case.contract.oracle.pullback(case, operands, cotangents), strict=True))
        cotangents = [np.zeros_like(ct) for ct in cotangents]
        for place, number in fed.items():
            cotangents[number] = pulled[place]
        own = [np.zeros_like(ct) if place in fed else ct for place, ct in pulled.items()]
        shared = own if shared is None else _added(shared, own)
    assert shared is not None
    return _added(shared, case.contract.oracle.pullback(case, first, cotangents))


def _added(some: Arrays, others: Arrays) -> list[np.ndarray]:
    with np.errstate(invalid="ignore", over="ignore"):
        return [one + other for one, other in zip(some, others, strict=True)]


def _over_batch(
    case: Case,
    arrays: Arrays,
    places: Sequence[Place],
    function: Callable[[list[np.ndarray]], Arrays],
    results: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """An oracle's `function` of blocks on each input of the batch; what it gives is like operands, or like results.

    Raises:
        SuiteError: if it fails.
    """
    lead = len(case.mesh.sizes)
    every: list[list[np.ndarray] | None] = []
    try:
        for at in np.ndindex(*case.batch):
            blocks = [_one_input(case, x, place, at) for x, place in zip(arrays, places, strict=True)]
            every.append(list(function(blocks)) if case.keeps(at) else None)
    except Exception as error:
        first = str(error).partition("\n")[0]
        own = "the oracle fails, an error of this suite" if listed(case.contract) else "the reference fails"
        raise SuiteError(f"{own}: {case}: {type(error).__name__}: {first}") from error
    if not case.batch:
        assert every[0] is not None
        return every[0]
    kept = next(found for found in every if found is not None)
    whole = []
    for i, one in enumerate(kept):
        stack = np.stack([np.zeros_like(one) if found is None else found[i] for found in every], axis=lead)
        spread = stack.reshape(*one.shape[:lead], *case.batch, *one.shape[lead:])
        shared = () if results is None else case.shared_dimensions(results[i])
        with np.errstate(invalid="ignore", over="ignore"):
            whole.append(spread.sum(axis=tuple(lead + d for d in shared)) if shared else spread)
    return whole


def _one_input(case: Case, array: np.ndarray, place: Place, at: Sequence[int]) -> np.ndarray:
    """The blocks of one input of the batch."""
    shared = () if place is None else case.shared_dimensions(place)
    chosen = tuple(i for d, i in enumerate(at) if d not in shared)
    return np.asarray(array[(slice(None),) * len(case.mesh.sizes) + chosen])
