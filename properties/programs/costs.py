"""What the oracle says that a case costs: from the case's blocks to the formulas' plain numbers."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardproof.oracles import algorithms, matmul_costs
from shardproof.oracles.communication import NOTHING, Cost, built_in, built_in_backward, summed_replicas
from shardproof.oracles.dtypes import width
from shardproof.properties.cases.case import Case, Operand
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import Communication
from shardproof.properties.contracts.costs import is_replica

OVER_SIZES = ("torus_all_reduce", "two_phase_all_to_all")
"""Algorithms whose cost depends on the sizes of the tuple's axes, not on their product alone."""

NARROW_WAYS = ("alternating", "scattered", "paired")
"""Forms of a product whose sums travel in the operands' dtype, if it has any that are sent."""

HALVING = ("bidirectional_all_gather", "bidirectional_reduce_scatter")
"""Algorithms that cut pieces in half, along their longest dimension."""


@dataclass(frozen=True)
class Leaf:
    """One array that a case's collective moves.

    Arguments:
        block: the shape of its blocks.
        piece: the shape of what one participant contributes or receives.
        bits: the bits of an element while it travels.
    """

    block: tuple[int, ...]
    piece: tuple[int, ...]
    bits: int


def leaf_of(case: Case, operand: Operand) -> Leaf:
    """How the formulas see an operand: sums of bool travel as the int32 that they count in."""
    params, block = case.keywords, list(operand.block)
    counts = operand.dtype == "bool" and params.get("op") in ("sum", "mean")
    bits = 32 if counts else width(operand.numpy_dtype)
    along = params.get("scatter_dimension", params.get("split_axis"))
    if along is not None:
        block[along] //= case.group_size
    return Leaf(operand.block, tuple(block), bits)


def of_built_in(contract: str) -> Communication:
    """The cost of the collective that `jax.lax` has for it: one for every leaf."""

    def cost(case: Case, backward: bool) -> Cost:
        p = case.group_size

        def one(leaf: Leaf) -> Cost:
            n = math.prod(leaf.block)
            if backward:
                return built_in_backward(contract, p, n, bits=leaf.bits)
            return built_in(contract, n, bits=leaf.bits)

        return _in_all(case, one, backward)

    return cost


def of_algorithm(name: str) -> Communication:
    """The cost of a hand-written algorithm, by the formula that has its name.

    The cost of a case that the algorithm does not serve is not defined: it raises ValueError.
    """
    formula: Callable[..., Cost] = getattr(algorithms, name)

    def cost(case: Case, backward: bool) -> Cost:
        p = case.group_size
        first = [case.mesh.shape[axis] for axis in case.axes] if name in OVER_SIZES else p

        def one(leaf: Leaf) -> Cost:
            n = math.prod(leaf.block) * (p if case.contract == "all_gather" else 1)
            rows = {"rows": max(leaf.piece, default=1)} if name in HALVING else {}
            forward = formula(first, n, bits=leaf.bits, **rows)
            return algorithms.backward(forward) if backward else forward

        return _in_all(case, one, backward)

    return cost


def of_product(way: str) -> Communication:
    """The cost of a collective matrix product whose pieces come together that way.

    A gradient alone gathers again what the forward pass would have left it. See `shardproof.oracles.matmul_costs`.
    """

    def cost(case: Case, backward: bool) -> Cost:
        if not backward:
            return _product(way, case, backward=False)
        along = set(case.axes).union(*(operand.placement.axes for operand in case.operands))
        return gathered_again(way, case) + _product(way, case, backward=True) + _replicas(case.operands, along)

    return cost


def gathered_again(way: str, case: Case) -> Cost:
    """What the other operand's gradient is computed from: the operand that was gathered."""
    if case.contract in ("matmul_all_reduce", "matmul_reduce_scatter"):
        return Cost.permutes(0, 0)
    if case.contract == "transformer_block":
        x = case.operands[0]
        return matmul_costs.all_gather_matmul(
            way, case.participants, math.prod(x.block), rows=x.block[-1], bits=width(x.numpy_dtype)
        )
    return _product(way, case, backward=False, again=True)


def product_flops(case: Case) -> int:
    """The multiplications and additions of a device's part of a collective matrix product, as one or two products."""
    *batch, m, k = case.operands[0].block
    many, p, last = math.prod(batch), case.participants, case.operands[-1].block
    if case.contract == "transformer_block":
        return 2 * matmul_costs.flops(many, m, k * p, last[0])
    rows = m * p if case.contract == "all_gather_matmul_lhs" else m
    inner = k * p if case.contract == "all_gather_matmul_lhs_contracting" else k
    return matmul_costs.flops(many, rows, inner, last[1])


def _product(way: str, case: Case, *, backward: bool, again: bool = False) -> Cost:
    p, contract = case.participants, CONTRACTS[case.contract]
    beside = (backward or again) and p <= matmul_costs.MOST_IN_PARTS
    if (way, case.contract) == matmul_costs.JOINED_FORWARD and not beside:
        way = "joined"
    *batch, m, k = case.operands[0].block
    rows, last = math.prod(batch) * m, case.operands[-1].block
    dtype = case.operands[0].numpy_dtype
    bits = width(dtype)
    sum_bits = bits if way in NARROW_WAYS else width(contract.accumulator(dtype))
    if case.contract == "matmul_all_reduce":
        return matmul_costs.matmul_all_reduce(
            way, p, m, last[1], batch=math.prod(batch), bits=sum_bits, result_bits=bits, backward=backward
        )
    if case.contract == "matmul_reduce_scatter":
        cut = (m, last[1])[case.keywords["scatter_dimension"]] // p
        return matmul_costs.matmul_reduce_scatter(
            way, p, rows * last[1] // p, rows=cut, bits=sum_bits, backward=backward
        )
    if case.contract == "transformer_block":
        return matmul_costs.transformer_block(way, p, rows, k, bits=bits, sum_bits=sum_bits, backward=backward)
    if way == "chunked":
        return matmul_costs.chunked_all_gather_matmul(p, rows * k, rows=m, bits=bits)
    piece, cut = {
        "all_gather_matmul_lhs_contracting": (rows * k, k),
        "all_gather_matmul_lhs": (rows * k, m),
        "all_gather_matmul_rhs": (math.prod(last), last[0]),
    }[case.contract]
    in_place = case.contract == "all_gather_matmul_lhs"
    return matmul_costs.all_gather_matmul(way, p, piece, rows=cut, bits=bits, backward=backward, in_place=in_place)


def _in_all(case: Case, one: Callable[[Leaf], Cost], backward: bool) -> Cost:
    """The costs of all leaves, side by side, and backward those of adding up the gradients of replicas."""
    leaves = functools.reduce(Cost.beside, (one(leaf_of(case, operand)) for operand in case.operands))
    return leaves + _replicas(case.operands, case.axes) if backward else leaves


def _replicas(operands: Sequence[Operand], along: Iterable[str]) -> Cost:
    """A replicated operand is cast to varying, the transpose of which is a sum over the axes that were missing."""
    sums = [summed_replicas(math.prod(o.block), bits=width(o.numpy_dtype)) for o in operands if is_replica(o, along)]
    return functools.reduce(Cost.beside, sums, NOTHING)
