"""What operations cost, counted by hand: formulas and the interpreter say the same, forward and backward."""

import dataclasses
import itertools
from typing import Any

import pytest

from shardproof.oracles import cross_entropy, halo
from shardproof.oracles.communication import NOTHING, Cost, summed_replicas
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.communication import check_communication, communication_of, has_own_gradient
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import OPERATIONS, Implementation
from shardproof.properties.programs.violation import Broken

MESH = MeshCase(("dp", "tp"), (2, 4))
BY_NAME = {
    str(implementation): implementation
    for implementation in OPERATIONS
    if implementation.communication and not (implementation.whole and CONTRACTS[implementation.contract].local)
}

SIDES = ("rows", "columns")
Described = list[tuple[tuple[int, ...], str, str]]
LISTS: Described = [((8,), "int32", "tp")] * 4
LOGITS: Described = [((3, 70), "bfloat16", "tp"), ((3,), "int32", "dp")]
PROJECTED: Described = [((3, 2), "bfloat16", "dp"), ((2, 70), "bfloat16", "tp"), ((3,), "int32", "dp")]
SEQUENCE: Described = [((2, 4, 3), "bfloat16", axes) for axes in ("dp tp", "tp", "tp")]
SEQUENCE_BLOCKS: Described = [((2, 1, 3), "bfloat16", "dp tp"), ((3, 2), "bfloat16", "tp"), ((2, 3), "bfloat16", "tp")]
NORMALISED_BLOCKS: Described = [SEQUENCE_BLOCKS[0], ((3,), "bfloat16", ""), *SEQUENCE_BLOCKS[1:]]
ROUTED: Described = [((3, 2), "bfloat16", "tp"), ((2, 8), "bfloat16", ""), ((2, 2, 2), "bfloat16", "tp")]
GATED: Described = [*ROUTED[:2], *[((2, 2, 3), "bfloat16", "tp")] * 2, ((2, 3, 2), "bfloat16", "tp")]
SMOOTHED = {"label_smoothing": 0.1, "ignore_index": -1}

OPERANDS: dict[str, tuple[Described, dict[str, Any]]] = {
    "attention": (SEQUENCE, {"causal": True}),
    "embedding_lookup": ([((3, 2), "bfloat16", "tp"), ((5,), "int32", "dp")], {}),
    "expert_choice_layer": (ROUTED, {"capacity": 2}),
    "gated_moe_layer": (GATED, {"top_k": 2, "capacity": 2, "policy": "position"}),
    "global_norm": ([((3, 2), "bfloat16", "tp")], {}),
    "halo_exchange": ([((6, 2), "bfloat16", "tp")], {"before": 8, "after": 3, "axis": 0}),
    "load_balancing_loss": ([((3, 8), "bfloat16", "tp")], {"top_k": 2}),
    "masked_mean": ([((5,), "bfloat16", "tp"), ((5,), "bool", "tp")], {}),
    "moe_layer": (ROUTED, {"top_k": 2, "capacity": 2, "policy": "position"}),
    "pipeline": ([((2, 2), "bfloat16", "tp"), ((3, 1, 2), "bfloat16", "dp")], {}),
    "projected_cross_entropy": (PROJECTED, SMOOTHED),
    "ragged_all_to_all": ([((3, 2), "bfloat16", "tp"), ((5, 2), "bfloat16", "dp tp"), *LISTS], {}),
    "rms_norm": ([((3, 2), "bfloat16", "dp tp"), ((2,), "bfloat16", "tp")], {"epsilon": 1e-6}),
    "router_z_loss": ([((3, 8), "bfloat16", "tp")], {}),
    "normalised_sequence_parallel_mlp": (NORMALISED_BLOCKS, {"epsilon": 1e-6}),
    "sequence_parallel_mlp": (SEQUENCE_BLOCKS, {}),
    "shard_load_balancing_loss": ([((3, 8), "bfloat16", "tp")], {"top_k": 2}),
    "shard_mean": ([((3, 2), "bfloat16", "tp")], {}),
    "shard_roll": ([((3, 2), "bfloat16", "tp")], {"shift": 1}),
    "shard_router_z_loss": ([((3, 8), "bfloat16", "tp")], {}),
    "weighted_mean": ([((5,), "bfloat16", "tp")] * 2, {}),
    "vocab_parallel_cross_entropy": (LOGITS, SMOOTHED),
}
"""Blocks, dtypes, and the axes along which each operand varies: over four participants, some of them on replicas."""

Matrix = tuple[tuple[int, int], tuple[str, str]]
MATRICES: dict[str, dict[str, Matrix]] = {
    "sharded_matmul": {"lhs": ((3, 2), ("dp", "tp")), "rhs": ((2, 6), ("tp", "dp"))},
    "reshard": {"x": ((2, 6), ("dp", "tp"))},
    "two_matmuls": {"x": ((3, 2), ("dp", "tp")), "w_in": ((2, 6), ("tp", "dp")), "w_out": ((3, 4), ("tp", "dp"))},
}
"""Blocks, and the axes of rows and columns; what is hidden, and the result, is laid out as the first one."""

WORDS = ("forward", "backward")

LAYERS, EXAMPLES = (16, 8, 4), 8
"""Of the losses of a model: D_0 to D_2, and B, over dp for data and tp for model."""

COSTS = {
    # blocks of 24 elements, 48 bytes; keys and values are the same along dp
    "attention[gathered]": (
        "all_gather=2 (96 bytes)",
        "all_gather=2 (96 bytes), all_reduce=2 (96 bytes), reduce_scatter=2 (384 bytes)",
    ),
    "attention[ring]": ("permute=6 (288 bytes)", "all_reduce=2 (96 bytes), permute=12 (576 bytes)"),
    # six halves of 24 bytes are moved in, and two out
    "attention[balanced_ring]": ("permute=14 (480 bytes)", "all_reduce=2 (96 bytes), permute=26 (912 bytes)"),
    "attention[heads]": ("all_to_all=4 (192 bytes)", "all_reduce=2 (96 bytes), all_to_all=7 (336 bytes)"),
    # 5 rows of 2 numbers; the table is the same along dp, its 6 numbers (24 in all) are added up in float32
    "embedding_lookup[masked]": ("all_reduce=1 (20 bytes)", "all_reduce=1 (24 bytes)"),
    "embedding_lookup[gathered]": ("all_gather=1 (12 bytes)", "all_reduce=1 (96 bytes)"),
    "global_norm[squares]": ("all_reduce=1 (4 bytes)", "all_reduce=1 (4 bytes)"),
    # all 6 rows of 2 from one place behind, 2 from two, and 3 from one place ahead: 11 rows, of 4 bytes each
    "halo_exchange[permutes]": ("permute=3 (44 bytes)", "permute=3 (44 bytes)"),
    "masked_mean[sums]": ("all_reduce=2 (8 bytes)", "all_reduce=1 (4 bytes)"),
    "masked_mean[gathered]": ("all_gather=2 (15 bytes)", "all_gather=1 (5 bytes)"),
    # layers of 2 by 2, the same along dp; 3 microbatches of 2 numbers, the same along tp: 6 steps, 4 bytes between two
    "pipeline[gpipe]": (
        "all_reduce=1 (12 bytes), permute=5 (20 bytes)",
        "all_reduce=2 (20 bytes), permute=10 (40 bytes)",
    ),
    "pipeline[circular]": (
        "all_reduce=1 (12 bytes), permute=5 (20 bytes)",
        "all_reduce=2 (20 bytes), permute=10 (40 bytes)",
    ),
    # 3 tokens; x, the same along tp, is 6 numbers, added up in float32, and w, the same along dp, 140 of them, or
    # two chunks of 128
    "projected_cross_entropy[plain]": ("all_reduce=4 (48 bytes)", "all_reduce=4 (608 bytes)"),
    "projected_cross_entropy[chunked]": ("all_reduce=4 (48 bytes)", "all_reduce=5 (1,072 bytes)"),
    # 3 rows of 2 numbers to be sent, the same along dp, 5 cotangents of them to be returned, 8 entries in a list
    "ragged_all_to_all[native]": (
        "ragged_all_to_all=1 (12 bytes)",
        "all_reduce=1 (12 bytes), all_to_all=1 (64 bytes), ragged_all_to_all=1 (20 bytes)",
    ),
    "ragged_all_to_all[gathered]": (
        "all_gather=1 (12 bytes), all_to_all=1 (64 bytes)",
        "all_reduce=1 (12 bytes), all_to_all=1 (64 bytes), reduce_scatter=1 (48 bytes)",
    ),
    # 3 tokens; the scale is the same along dp, its 2 numbers are added up in float32
    "rms_norm[squares]": ("all_reduce=1 (12 bytes)", "all_reduce=3 (32 bytes)"),
    # 2 by 1 by 3 numbers of each of 4, and a sum of all in float32; weights of 6 numbers each are the same along dp
    "sequence_parallel_mlp[naive]": (
        "all_gather=1 (12 bytes), reduce_scatter=1 (96 bytes)",
        "all_gather=2 (36 bytes), all_reduce=2 (24 bytes), reduce_scatter=1 (48 bytes)",
    ),
    "sequence_parallel_mlp[overlapped]": ("permute=6 (108 bytes)", "all_reduce=2 (24 bytes), permute=9 (144 bytes)"),
    "sequence_parallel_mlp[bidirectional]": (
        "permute=12 (108 bytes)",
        "all_reduce=2 (24 bytes), permute=18 (144 bytes)",
    ),
    # the same, and the gradient of a scale of 3 numbers, added up in float32
    "normalised_sequence_parallel_mlp[naive]": (
        "all_gather=1 (12 bytes), reduce_scatter=1 (96 bytes)",
        "all_gather=2 (36 bytes), all_reduce=3 (36 bytes), reduce_scatter=1 (48 bytes)",
    ),
    "normalised_sequence_parallel_mlp[overlapped]": (
        "permute=6 (108 bytes)",
        "all_reduce=3 (36 bytes), permute=9 (144 bytes)",
    ),
    "normalised_sequence_parallel_mlp[bidirectional]": (
        "permute=12 (108 bytes)",
        "all_reduce=3 (36 bytes), permute=18 (144 bytes)",
    ),
    # rows of 2, to be 8; 2 by 6 of 8 by 12, whose rows come together, then the columns, of which 3 are kept
    "sharded_matmul[gathered]": (
        "all_gather=3 (132 bytes)",
        "all_gather=3 (132 bytes), all_reduce=3 (288 bytes)",
    ),
    # 2 by 6 of 4 by 24: rows come together, then columns, of which rows are cut; the cotangents of 4 by 24 are added up
    "reshard[exchanged]": ("all_gather=2 (72 bytes)", "all_reduce=1 (192 bytes)"),
    # 2 rows of 6, to be 12; sums of 3 by 12 in float32; backward, 2 by 12 along dp, and 3 by 12 out of which 3 were cut
    "sharded_matmul[reduced]": (
        "all_gather=1 (24 bytes), all_reduce=1 (144 bytes)",
        "all_gather=1 (24 bytes), all_reduce=2 (120 bytes)",
    ),
    # the same, and once more with 3 by 3 of 3 by 12 that are hidden, and 3 by 4 of 12 by 8
    "two_matmuls[gathered]": (
        "all_gather=6 (270 bytes)",
        "all_gather=6 (270 bytes), all_reduce=6 (600 bytes)",
    ),
    "mlp_loss[one_device]": ("no communication", "no communication"),
    # 128 and 8, 32 and 4 parameters; the loss is one number; sums are of float32, and parameters travel as they are
    "mlp_loss[data_parallel]": ("all_reduce=1 (4 bytes)", "all_reduce=4 (688 bytes)"),
    # blocks of 16 and 4 weights over all 8, of 2 and 1 biases over tp, whose gradients are then added up over dp
    "mlp_loss[fsdp_rows]": (
        "all_gather=4 (46 bytes), all_reduce=1 (4 bytes)",
        "all_gather=4 (46 bytes), all_reduce=2 (12 bytes), reduce_scatter=4 (688 bytes)",
    ),
    # 16 and 4 weights once more
    "mlp_loss[fsdp_rows_remat]": (
        "all_gather=4 (46 bytes), all_reduce=1 (4 bytes)",
        "all_gather=6 (86 bytes), all_reduce=2 (12 bytes), reduce_scatter=4 (688 bytes)",
    ),
    # 16 weights over tp are 64, and over dp 128; 4 are 16, and 32
    # 8 experts in 32 bits each; 24 logits are 48 bytes
    "load_balancing_loss[sums]": ("all_reduce=2 (64 bytes)", "all_reduce=1 (32 bytes)"),
    "router_z_loss[sums]": ("all_reduce=1 (4 bytes)", "no communication"),
    "mlp_loss[fsdp_2d]": (
        "all_gather=6 (206 bytes), all_reduce=1 (4 bytes)",
        "all_gather=6 (206 bytes), all_reduce=2 (12 bytes), reduce_scatter=6 (1,008 bytes)",
    ),
    "mlp_loss[fsdp_2d_remat]": (
        "all_gather=6 (206 bytes), all_reduce=1 (4 bytes)",
        "all_gather=10 (406 bytes), all_reduce=2 (12 bytes), reduce_scatter=6 (1,008 bytes)",
    ),
    # products of 4 examples by 8, and by 4; backward 4 by 2, and by 1; parameters: 32 and 2, 8 and 1
    "mlp_loss[tensor_parallel]": (
        "all_reduce=1 (4 bytes), reduce_scatter=2 (192 bytes)",
        "all_gather=2 (48 bytes), all_reduce=4 (172 bytes), reduce_scatter=2 (192 bytes)",
    ),
    # 16 and 4 weights over dp
    "mlp_loss[fsdp_tensor_parallel]": (
        "all_gather=2 (40 bytes), all_reduce=1 (4 bytes), reduce_scatter=2 (192 bytes)",
        "all_gather=4 (88 bytes), all_reduce=2 (12 bytes), reduce_scatter=4 (352 bytes)",
    ),
    "mlp_loss[fsdp_tensor_parallel_remat]": (
        "all_gather=2 (40 bytes), all_reduce=1 (4 bytes), reduce_scatter=2 (192 bytes)",
        "all_gather=6 (128 bytes), all_reduce=2 (12 bytes), reduce_scatter=4 (352 bytes)",
    ),
    # how many tokens of a participant chose each of 8 experts are 32 bytes; a token is 4 bytes, and comes back in 8;
    # backward both again, cotangents of 8 bytes each, and the router's 16 numbers, in float32
    # 8 experts and gates of each of 3 tokens: 24 numbers of 4 bytes
    "expert_choice_layer[all_to_all]": (
        "all_gather=2 (192 bytes), all_to_all=2 (192 bytes)",
        "all_gather=2 (192 bytes), all_reduce=1 (64 bytes), all_to_all=4 (448 bytes)",
    ),
    # three arrays of 12 weights each; what tokens, gates and sums are does not change
    **{
        f"gated_moe_layer[{name}]": (
            "all_gather=4 (104 bytes)",
            "all_gather=4 (104 bytes), all_reduce=1 (64 bytes), reduce_scatter=3 (576 bytes)",
        )
        for name in ("scanned", "sorted")
    },
    "moe_layer[dense]": (
        "all_gather=1 (32 bytes), all_to_all=2 (192 bytes)",
        "all_gather=1 (32 bytes), all_reduce=1 (64 bytes), all_to_all=4 (448 bytes)",
    ),
    "moe_layer[scanned]": (
        "all_gather=2 (48 bytes)",
        "all_gather=2 (48 bytes), all_reduce=1 (64 bytes), reduce_scatter=1 (128 bytes)",
    ),
    "moe_layer[sorted]": (
        "all_gather=2 (48 bytes)",
        "all_gather=2 (48 bytes), all_reduce=1 (64 bytes), reduce_scatter=1 (128 bytes)",
    ),
    # 3 sums of 2 numbers are gathered, and those of 12 tokens, of 2 features and 2 gates each, scattered
    "moe_layer[all_gather]": (
        "all_gather=4 (92 bytes), reduce_scatter=1 (96 bytes)",
        "all_gather=5 (116 bytes), all_reduce=1 (64 bytes), reduce_scatter=2 (192 bytes)",
    ),
    "moe_layer[all_to_all]": (
        "all_gather=1 (32 bytes), all_to_all=2 (192 bytes)",
        "all_gather=1 (32 bytes), all_reduce=1 (64 bytes), all_to_all=4 (448 bytes)",
    ),
    # 6 pairs, and a buffer of 4: of 4 bytes a row there, and 8 else; two lists of 4 for each transpose
    "moe_layer[ragged]": (
        "all_gather=1 (32 bytes), all_to_all=3 (80 bytes), ragged_all_to_all=2 (56 bytes)",
        "all_gather=1 (32 bytes), all_reduce=1 (64 bytes), all_to_all=5 (144 bytes), ragged_all_to_all=4 (136 bytes)",
    ),
    # what is gathered of 6 and of 4 rows is that of four participants; the lists of what is wider once more
    # two rounds, of 4 chunks of 2 rows: 32 bytes there, 32 of experts, 64 back; backward twice 64 more
    "moe_layer[chunked]": (
        "all_gather=1 (32 bytes), all_reduce=1 (4 bytes), all_to_all=6 (256 bytes)",
        "all_gather=1 (32 bytes), all_reduce=2 (68 bytes), all_to_all=10 (512 bytes)",
    ),
    # 12 bytes of tokens, 24 of experts, 24 of gates, and 24 of sums in each of 3 steps; backward 24 + 24 + 24 more
    "moe_layer[ring]": (
        "all_gather=1 (32 bytes), permute=12 (252 bytes)",
        "all_gather=1 (32 bytes), all_reduce=1 (64 bytes), permute=18 (396 bytes)",
    ),
    # as those of moe_layer, and each participant's 8 weights are added up over `dp`
    "global_moe_layer[all_to_all]": (
        "all_gather=1 (32 bytes), all_to_all=2 (192 bytes)",
        "all_gather=1 (32 bytes), all_reduce=2 (96 bytes), all_to_all=4 (448 bytes)",
    ),
    "global_moe_layer[ring]": (
        "all_gather=1 (32 bytes), permute=12 (252 bytes)",
        "all_gather=1 (32 bytes), all_reduce=2 (96 bytes), permute=18 (396 bytes)",
    ),
    "global_moe_layer[sorted]": (
        "all_gather=2 (48 bytes)",
        "all_gather=2 (48 bytes), all_reduce=2 (96 bytes), reduce_scatter=1 (128 bytes)",
    ),
    "shard_load_balancing_loss[sums]": ("no communication", "no communication"),
    "shard_mean[mean]": ("no communication", "no communication"),
    "shard_roll[roll]": ("no communication", "no communication"),
    "shard_router_z_loss[sums]": ("no communication", "no communication"),
    "weighted_mean[sums]": ("all_reduce=2 (8 bytes)", "all_reduce=1 (4 bytes)"),
    "weighted_mean[gathered]": ("all_gather=2 (20 bytes)", "all_gather=1 (10 bytes)"),
    # 3 tokens of 70 logits, the same along dp: 210 are added up in float32, or 840, or two chunks of 192
    "vocab_parallel_cross_entropy[sums]": ("all_reduce=4 (48 bytes)", "all_reduce=3 (864 bytes)"),
    "vocab_parallel_cross_entropy[chunked]": ("all_reduce=4 (48 bytes)", "all_reduce=4 (1,560 bytes)"),
}
# one round, where tokens of the other data choose otherwise: 16 bytes there, 16 of experts, 32 back
COSTS["gated_moe_layer[chunked]"] = (
    "all_gather=1 (32 bytes), all_reduce=1 (4 bytes), all_to_all=3 (128 bytes)",
    "all_gather=1 (32 bytes), all_reduce=2 (68 bytes), all_to_all=5 (256 bytes)",
)
COSTS |= {  # other experts, which stay where they are
    f"gated_{name}": words
    for name, words in COSTS.items()
    if name.startswith("moe_layer") and f"gated_{name}" not in COSTS
}


def case_of(implementation: Implementation) -> Case:
    """The example of an implementation's contract."""
    if implementation.contract in MATRICES:
        return case_of_matrices(implementation.contract)
    if implementation.contract == "mlp_loss":
        return case_of_loss(implementation)
    if implementation.contract == "global_moe_layer":
        return case_of_global_moe()
    described, params = OPERANDS[implementation.contract]
    operands = tuple(
        Operand(block, dtype, Placement(((),) * len(block), tuple(axes.split()))) for block, dtype, axes in described
    )
    return Case(implementation.contract, MESH, "tp", operands, tuple(params.items()))


def case_of_loss(implementation: Implementation) -> Case:
    """A model of two layers, laid out as an implementation wants it."""
    signature = next(one for one in implementation.layouts if len(one.arrays) == 6)
    sizes = {"batch": EXAMPLES, **{f"d{i}": size for i, size in enumerate(LAYERS)}}
    axes = {"data": ("dp",), "model": ("tp",)}
    operands = []
    for array in signature.arrays:
        placement, shape = array.placement(axes), array.shape(sizes, {"data": 2, "model": 4})
        block = tuple(n // MESH.axis_size(entry) for n, entry in zip(shape, placement.spec, strict=True))
        operands.append(Operand(block, "bfloat16", placement))
    return Case("mlp_loss", MESH, ("dp", "tp"), tuple(operands), roles=(("data", "dp"), ("model", "tp")))


def case_of_global_moe() -> Case:
    """The layer of `ROUTED`, whose tokens are shared over `dp` as well."""
    rows, experts = (("dp", "tp"), ()), (("tp",), (), ())
    described = (((3, 2), rows), ((2, 8), ((), ())), ((2, 2, 2), experts))
    operands = tuple(Operand(block, "bfloat16", Placement(spec)) for block, spec in described)
    params = (("top_k", 2), ("capacity", 2), ("policy", "position"))
    return Case("global_moe_layer", MESH, ("dp", "tp"), operands, params, roles=(("data", "dp"), ("expert", "tp")))


def case_of_matrices(contract: str) -> Case:
    """An example whose matrices are laid out each in its own way."""
    matrices = MATRICES[contract]
    operands = tuple(
        Operand(block, "bfloat16", Placement(tuple((axis,) for axis in axes))) for block, axes in matrices.values()
    )
    result = ("tp", "") if contract == "reshard" else ("dp", "tp")  # which columns give up, and rows take
    layouts = {f"{name}_": axes for name, (_, axes) in matrices.items()} | {"hidden_": ("dp", "tp"), "": result}
    roles = {f"{name}{side}": axis for name, axes in layouts.items() for side, axis in zip(SIDES, axes, strict=True)}
    known = tuple((role, roles[role] or ()) for role in CONTRACTS[contract].roles)
    return Case(contract, MESH, ("dp", "tp"), operands, roles=known)


WAYS = [
    pytest.param(name, way == 1, id=f"{name}-{of}")
    for name in BY_NAME
    for way, of in enumerate(WORDS[: len(COSTS.get(name, WORDS))])
]


@pytest.mark.parametrize(("name", "backward"), WAYS)
def test_formula_and_interpreter_count_the_same(name: str, backward: bool) -> None:
    """Both are what one counts by hand; what is missing in the table has no formula."""
    implementation = BY_NAME[name]
    case = case_of(implementation)
    assert (len(COSTS[name]) == 2) == has_own_gradient(case, whole=implementation.whole)
    assert implementation.communication is not None
    assert str(implementation.communication(case, backward)) == COSTS[name][backward]
    counted = communication_of(implementation, case, engine_named("simulate"), backward=backward)
    assert str(counted.cost) == COSTS[name][backward]


def test_every_operation_has_a_formula() -> None:
    """None is checked against the lower bound alone, but for those whose communication is the compiler's.

    Of functions of global arrays, losses and layers of experts send everything in a `shard_map` of their own, and what
    shards compute by themselves sends nothing.
    """
    alone = {"global_moe_layer", "mlp_loss", "shard_mean", "shard_roll"}
    told = {i: i.communication is not None for i in OPERATIONS}
    assert all(known == (not i.whole or i.contract in alone) for i, known in told.items())
    assert {*OPERANDS, *MATRICES, "global_moe_layer", "mlp_loss"} == {
        name for name, contract in CONTRACTS.items() if contract.implementations
    }


def test_what_is_empty_may_be_sent() -> None:
    """A sum over no token is sent, and moves nothing; where a formula has bytes, sending none is a violation."""
    norm, mean = BY_NAME["rms_norm[squares]"], BY_NAME["shard_mean[mean]"]
    case = case_of(norm)
    x, scale = case.operands
    empty = dataclasses.replace(case, operands=(dataclasses.replace(x, block=(0, 2)), scale))
    assert str(communication_of(norm, empty, engine_named("simulate")).cost) == "all_reduce=1 (0 bytes)"
    assert norm.communication is not None
    assert norm.communication(empty, False).counts == ()
    assert check_communication(norm, empty, engine_named("simulate")) == 1
    costly = dataclasses.replace(mean, communication=lambda case, backward: summed_replicas(1))
    with pytest.raises(Broken, match="no communication: expected 1 all_reduce of 1 byte"):
        check_communication(costly, case_of(mean), engine_named("simulate"))
    expected = dataclasses.replace(mean, communication=None, expectation=Expectation.parse("permute=1"))
    with pytest.raises(Broken, match="no communication: expected"):
        check_communication(expected, case_of(mean), engine_named("simulate"))


def test_a_halo_is_what_is_missing() -> None:
    """The rows that are sent are as many as a participant holds afterwards and did not before, each counted once."""
    for p, n in itertools.product((1, 2, 3, 5), (1, 2, 4)):
        for before, after in itertools.product(range(n * p + 1), repeat=2):
            held = {*halo.rows_held(n, p, before, after)[0].tolist()}
            cost = halo.permutes_cost(p, n, 3, before=before, after=after)
            assert cost.total_bytes == 3 * len(held - {*range(n)}), (p, n, before, after)
            assert cost.steps == (cost.count("permute") > 0)
            assert cost.count("permute") <= 2 * (p - 1)


def test_the_ring_of_attention_waits_for_its_steps() -> None:
    """Keys and values go side by side: p - 1 steps there, as many again backward, and as many back."""
    implementation = BY_NAME["attention[ring]"]
    case = case_of(implementation)
    assert implementation.communication is not None
    assert implementation.communication(case, False).steps == 3
    aligned = Case(case.contract, MESH, "tp", (case.operands[1],) * 3, case.params)
    backward = implementation.communication(aligned, True)
    assert backward == Cost.permutes(12, 576, 6)
    counted = communication_of(implementation, aligned, engine_named("simulate"), backward=True)
    assert counted.rounds == backward.steps


def test_chunks() -> None:
    """The last one is filled up; fewer classes than a chunk are one."""
    assert [cross_entropy.chunks(classes, 64) for classes in (1, 64, 65, 200)] == [(1, 1), (1, 64), (2, 64), (4, 64)]


def test_replicas_of_nothing() -> None:
    """Gradients without elements are not added up."""
    assert summed_replicas(0) == NOTHING
    assert summed_replicas(3, bits=16) == Cost.of({"all_reduce": 1}, {"all_reduce": 6}, 1)
