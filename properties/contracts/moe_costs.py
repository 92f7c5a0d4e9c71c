"""What layers of experts send, from a case to the numbers that the formulas are in."""

from fractions import Fraction

from shardproof.oracles.communication import Cost
from shardproof.oracles.moe import MoeLayer, costs
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Communication
from shardproof.properties.contracts.costs import COUNTED, bits, elements, replicas, sum_bits
from shardproof.properties.contracts.token_classes import clear

DEGREE, DEGREE_OF_GATED = 3, 5
"""A term of a result is a product of a token, a router and an expert, of one number each, or of three."""


def sizes_of(case: Case) -> costs.Sizes:
    """The sizes of a layer."""
    (tokens, features), weights = case.operands[0].block, [operand.block for operand in case.operands[2:]]
    options = case.keywords
    return costs.Sizes(
        participants=case.participants,
        tokens=tokens,
        features=features,
        outputs=weights[-1][2],
        held=weights[0][0],
        hidden=weights[0][2] if len(weights) > 1 else None,
        top_k=options.get("top_k", case.operands[1].block[1]),  # all of them, where experts choose
        capacity=options["capacity"],
        policy=options.get("policy", "probability"),
        per_sender=options.get("capacity_per_sender"),
        bits=bits(case),
        wide=sum_bits(case),
    )


def with_casts(communication: Communication) -> Communication:
    """The cost together with the sums of the gradients of what is the same along an axis, as wide as they are.

    All operands are cast to the axes along which any of them varies, before anything else is done.
    """

    def cost(case: Case, backward: bool) -> Cost:
        own = communication(case, backward)
        for place in range(len(case.operands)) if backward and not sizes_of(case).nothing else ():
            own += replicas(case, place, elements(case, place), sum_bits(case))
        return own

    return cost


def of_sizes(formula: costs.Formula) -> Communication:
    """The cost by a formula of sizes alone."""
    return with_casts(lambda case, backward: formula(sizes_of(case), backward))


@with_casts
def in_chunks(case: Case, backward: bool) -> Cost:
    """Of the loop, how many rounds it takes with the data on which communication is counted.

    Where process groups take different numbers of rounds, a device takes the mean; where that is no whole number, what
    is sent is not known of a device, and nothing is compared.
    """
    sizes = sizes_of(case)
    chunk = case.keywords.get("chunk") or max(costs.even_share(sizes), 1)
    places = range(len(case.operands))
    degree = DEGREE if len(places) == len(("tokens", "router", "experts")) else DEGREE_OF_GATED
    drawn = [case.global_array(i, COUNTED, terms=case.mesh.size, degree=degree) for i in places]
    operands = [case.blocks(i, array) for i, array in enumerate(clear(case, drawn))]
    groups = MoeLayer().dispatches(operands, case.mesh, case.axes, **case.keywords)
    rounds = [costs.rounds_of(group.kept, chunk) for group in groups]
    return costs.chunked_cost(sizes, chunk, Fraction(sum(rounds), len(rounds)), backward)
