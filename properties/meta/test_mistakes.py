"""What a contract says of mistakes is told of the results that they have, on all data, and of no others."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shardproof.oracles.layout import nan_equal
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.law import LAWS
from shardproof.properties.laws.value import check_value
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.programs.violation import Broken, Difference, Of
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.diagnosis.scene import Scene
from shardproof.properties.report.diagnosis.variants import right_for
from shardproof.properties.report.diagnosis.witnesses import scenes_of
from shardproof.properties.runner.violation import LawViolation

MESH = MeshCase(("dp", "tp"), (2, 3))
AXES = ("tp", "dp")
EVERY = (AXES,)
SEEDS = (3, 4, 5, 6)


def a_case(contract: str, *operands: tuple[tuple[int, ...], str, tuple[Any, ...]], **params: Any) -> Case:
    """A case over both axes, of operands that are blocks, dtypes and where their dimensions are sharded."""
    placed = [Operand(block, dtype, Placement(spec)) for block, dtype, spec in operands]
    return Case(contract, MESH, AXES, tuple(placed), tuple(params.items()), (Data("real", 3),))


QUERIES = ((2, 6, 2), "float32", (AXES, (), ()))
CASES = {
    case.contract: case
    for case in (
        a_case("attention", QUERIES, QUERIES, QUERIES, causal=True),
        a_case(
            "vocab_parallel_cross_entropy",
            ((9, 4), "float32", ((), AXES)),
            ((9,), "int32", ((),)),
            label_smoothing=0.125,
            ignore_index=3,
        ),
        a_case("embedding_lookup", ((3, 4), "float32", (AXES, ())), ((9,), "int32", ((),))),
        a_case("masked_mean", ((2, 3), "float32", (AXES, ())), ((2, 3), "bool", (AXES, ()))),
        a_case("global_norm", ((3, 2), "float32", (AXES, ()))),
        a_case("rms_norm", ((3, 4), "float32", ((), AXES)), ((4,), "float32", EVERY), epsilon=0.5),
        a_case("ragged_all_to_all", *[((6,), "float32", EVERY)] * 2, *[((12,), "int32", EVERY)] * 4),
        a_case(
            "moe_layer",
            ((4, 3), "float32", (AXES, ())),
            ((3, 12), "float32", ((), ())),
            ((2, 3, 2), "float32", (AXES, (), ())),
            top_k=2,
            capacity=2,
            policy="position",
            capacity_per_sender=1,
        ),
        a_case(
            "expert_choice_layer",
            ((4, 3), "float32", (AXES, ())),
            ((3, 12), "float32", ((), ())),
            ((2, 3, 2), "float32", (AXES, (), ())),
            capacity=2,
        ),
        a_case(
            "gated_moe_layer",
            ((4, 3), "float32", (AXES, ())),
            ((3, 12), "float32", ((), ())),
            *[((2, 3, 2), "float32", (AXES, (), ()))] * 2,
            ((2, 2, 1), "float32", (AXES, (), ())),
            top_k=2,
            capacity=2,
            policy="position",
        ),
        dataclasses.replace(
            a_case(
                "global_moe_layer",
                ((4, 3), "float32", (("dp", "tp"), ())),
                ((3, 6), "float32", ((), ())),
                ((2, 3, 2), "float32", (("tp",), (), ())),
                top_k=2,
                capacity=2,
                policy="position",
            ),
            roles=(("data", "dp"), ("expert", "tp")),
        ),
        a_case(
            "normalised_sequence_parallel_mlp",
            ((2, 1, 3), "float32", (AXES, (), ())),
            ((3,), "float32", ((),)),
            ((3, 2), "float32", ((), AXES)),
            ((2, 3), "float32", (AXES, ())),
            epsilon=0.5,
        ),
        a_case("load_balancing_loss", ((3, 6), "float32", (AXES, ())), top_k=2),
        a_case("pipeline", ((2, 2), "float32", (AXES, ())), ((3, 1, 2), "float32", ((), (), ()))),
        a_case("router_z_loss", ((3, 6), "float32", (AXES, ()))),
        a_case(
            "sequence_parallel_mlp",
            ((2, 1, 3), "float32", (AXES, (), ())),
            ((3, 2), "float32", ((), AXES)),
            ((2, 3), "float32", (AXES, ())),
        ),
        a_case("shard_load_balancing_loss", ((3, 6), "float32", (AXES, ())), top_k=2),
        a_case("shard_router_z_loss", ((3, 6), "float32", (AXES, ()))),
        a_case("shard_roll", ((5, 2), "float32", (AXES, ())), shift=2),
        a_case(
            "transformer_block",
            ((3, 2), "float32", ((), AXES)),
            ((12, 3), "float32", ((), AXES)),
            ((3, 12), "float32", (AXES, ())),
        ),
    )
}
"""A case for each contract, on which its mistakes are told from one another."""


SHOWN = {
    "attention: no maximum is subtracted from logits, whose powers overflow": (("exact",), range(3, 9)),
    "vocab_parallel_cross_entropy: no maximum is subtracted from logits, whose powers overflow": (
        ("scaled",),
        range(9),
    ),
    "vocab_parallel_cross_entropy: the gradient of tokens that are ignored is multiplied by zero, which leaves NaN": (
        ("nan", "real"),
        SEEDS,
    ),
    "masked_mean: values are multiplied by the mask, which keeps a masked NaN": (("nan",), SEEDS),
    "masked_mean: the sum is divided by how many elements count where none does": (("exact",), range(20)),
    "masked_mean: the sum is divided by how many elements count on each participant alone": (("exact",), SEEDS),
    "masked_mean: the means of rows, which count different numbers of elements, are averaged": (("exact",), SEEDS),
}
"""On which kinds of data a mistake shows, and of which seeds, where it does not on any."""


OF_GATES: dict[str, Any] = {"policy": "probability", "capacity_per_sender": None, "over": "all", "capacity": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "moe_layer: the lowest gates of an expert were kept, not the highest": OF_GATES,
    "moe_layer: all policies were that by position": {"policy": "choice"},
    "gated_moe_layer: the lowest gates of an expert were kept, not the highest": OF_GATES,
    "gated_moe_layer: all policies were that by position": {"policy": "choice"},
    "gated_moe_layer: senders dropped nothing": {"capacity_per_sender": 1},
    **{
        f"{layer}: without a capacity an expert had room for as many tokens as a participant has": {
            "capacity": None,
            "capacity_per_sender": None,
        }
        for layer in ("moe_layer", "gated_moe_layer")
    },
}
"""The options on which a mistake shows, where it does not on the case's own."""


def scene_of(case: Case, seed: int, of: Of = "result", leaf: int = 0, kind: str = "real") -> Scene:
    """The scene of right blocks: results, or gradients of an operand."""
    case = dataclasses.replace(case, data=(Data(kind, seed),))
    nothing = np.zeros((*MESH.sizes, 1), np.float32)
    difference = Difference(of, of, nothing, nothing, nothing != 0, leaf=leaf)
    own = next(i for i in IMPLEMENTATIONS if i.contract == case.contract)
    broken = Broken("values", "planted", data=case.data[0], difference=difference)
    law = LAWS["value" if of == "result" else "gradient"]
    (scene,) = scenes_of(LawViolation(own, law, case, "xla", broken))
    return with_blocks(scene, scene.oracle(case, scene.inputs))


def with_blocks(scene: Scene, blocks: np.ndarray) -> Scene:
    """The scene with these blocks as the implementation's, in place of the right ones."""
    right, held = (
        blocks.astype(np.float32).reshape(MESH.size, *blocks.shape[len(MESH.sizes) :])
        for blocks in (scene.oracle(scene.case, scene.inputs), blocks)
    )
    with np.errstate(invalid="ignore"):
        same = nan_equal(held, right) | (np.abs(held - right) <= 1e-4 * np.abs(right).max())
    return dataclasses.replace(scene, expected=right, actual=held, wrong=~same)


def scenes_with(case: Case, mistake: str, seeds: Sequence[int] = SEEDS) -> list[Scene]:
    """The scenes of a function that makes this mistake: of its results, or of the gradients that are wrong first."""
    kinds, seeds = SHOWN.get(f"{case.contract}: {mistake}", (("real",), seeds))
    ways: list[tuple[Of, int]] = [("result", 0), *(("gradient", i) for i in CONTRACTS[case.contract].moving(case))]
    for of, leaf in ways:
        right = [scene_of(case, seed, of, leaf, kind) for kind in kinds for seed in seeds]
        found = [with_blocks(scene, scene.mistakes[mistake](scene.case, scene.inputs)) for scene in right]
        if any(scene.devices for scene in found):
            return sorted(found, key=lambda scene: not scene.devices)
    raise AssertionError(f"{case.contract}: {mistake}: neither results nor gradients are wrong")


MISTAKES = [(name, text) for name, contract in CONTRACTS.items() for text in contract.mistakes]


@pytest.mark.parametrize(("contract", "mistake"), MISTAKES, ids=[f"{name}: {text}" for name, text in MISTAKES])
def test_a_mistake_is_told(contract: str, mistake: str) -> None:
    """Results that are those of a mistake are told by it, and by nothing else."""
    scenes = scenes_with(CASES[contract].with_params(**OPTIONS.get(f"{contract}: {mistake}", {})), mistake)
    assert right_for(scenes, numbers=True) == [f"the blocks are the right ones if {mistake}"]


@pytest.mark.parametrize("contract", sorted(CASES))
def test_the_right_thing_is_no_mistake(contract: str) -> None:
    """Of right blocks nothing is told, and of those that are wrong in another way no mistake is."""
    right = [scene_of(CASES[contract], seed) for seed in SEEDS]
    assert right_for(right, numbers=True) == []
    others = [with_blocks(s, s.oracle(s.case, s.inputs) * (1 + 0.1 * i)) for i, s in enumerate(right)]
    assert right_for(others, numbers=True) == []


CLAMPED = "every participant clamps ids to its own rows, and adds what it finds"
MODULO = "every participant takes ids modulo the number of its rows, and adds what it finds"


def test_what_two_mistakes_explain_is_told_on_further_data_alone() -> None:
    """Where parts of a table have one row, clamping and a remainder find the same: on one data set neither is told."""
    case = CASES["embedding_lookup"]
    table = dataclasses.replace(case.operands[0], block=(1, 4))
    small = dataclasses.replace(case, operands=(table, case.operands[1]))
    (coincidence,) = scenes_with(small, MODULO, SEEDS[:1])
    assert right_for([coincidence], numbers=True) == []
    for mistake in (CLAMPED, MODULO):
        told = right_for([coincidence, *scenes_with(case, mistake)], numbers=True)
        assert told == [f"the blocks are the right ones if {mistake}"]


def test_one_run_that_contradicts_is_enough() -> None:
    """A mistake that explains all runs but one explains none: one that is wrong otherwise, or right."""
    case = CASES["embedding_lookup"]
    clamped, other = scenes_with(case, CLAMPED), scenes_with(case, MODULO)
    assert right_for([*clamped, other[0]], numbers=True) == []
    assert right_for([*clamped, scene_of(case, SEEDS[0])], numbers=True) == []


def test_a_right_run_may_be_rounded() -> None:
    """Where a mistake changes nothing, right blocks are told from its own by their rounding, which is none of it."""
    case = CASES["attention"]
    text = "queries are masked by their positions in a participant's own piece"
    everywhere = scene_of(case.with_params(causal=False), SEEDS[0])
    up = np.nextafter(everywhere.expected, np.float32(np.inf))
    rounded = dataclasses.replace(everywhere, expected=up, actual=up)
    assert right_for([*scenes_with(case, text), rounded], numbers=True) == [f"the blocks are the right ones if {text}"]


def told(case: Case, name: str, check: Any = check_value) -> str:
    """What is said of a planted bug on a case."""
    implementation = user_implementation(case.contract, MUTANTS[name].function)
    with pytest.raises(Broken) as caught:
        check(implementation, case, engine_named("simulate"))
    law = LAWS["value" if check is check_value else "gradient"]
    return "\n".join(diagnose(LawViolation(implementation, law, case, "simulate", caught.value)))


def of_kinds(case: Case, *kinds: str, dtype: str = "float32") -> Case:
    """The case with floats of this dtype, and several data sets of each kind."""
    operands = tuple(dataclasses.replace(o, dtype=dtype) if o.dtype == "float32" else o for o in case.operands)
    return dataclasses.replace(case, operands=operands, data=tuple(Data(k, s) for k in kinds for s in SEEDS))


LOSS, ATTENTION = CASES["vocab_parallel_cross_entropy"], CASES["attention"]

PLANTED: dict[str, tuple[Case, Any, str]] = {
    "lookup_without_a_mask": (CASES["embedding_lookup"], check_value, f"the blocks are the right ones if {CLAMPED}"),
    "ragged_packed": (
        of_kinds(CASES["ragged_all_to_all"], "distinct"),
        check_value,
        "the blocks are the right ones if slices lie one behind the other in the operand, whatever input_offsets says",
    ),
    "attention_causal_by_local_positions": (
        ATTENTION,
        check_value,
        "the blocks are the right ones if queries are masked by their positions in a participant's own piece",
    ),
    # not: positive numbers, which losses are where they are wrong
    "loss_of_clamped_labels": (
        of_kinds(LOSS, "exact", dtype="bfloat16"),
        check_value,
        "the blocks are the right ones if every participant clamps labels to its own classes",
    ),
    # of the right values, which are within the roundings of bfloat16, it shows in double precision
    "rms_with_epsilon_outside": (
        of_kinds(CASES["rms_norm"].with_params(epsilon=1e-3), "exact", dtype="bfloat16"),
        check_value,
        "the blocks are the right ones if epsilon is added to the root, and not under it",
    ),
    "rms_with_a_constant_root": (
        CASES["rms_norm"],
        check_gradient,
        "the blocks are the right ones if the root is a constant in the derivative",
    ),
    "ring_that_teaches_no_other": (
        ATTENTION,
        check_gradient,
        "the blocks are the right ones if keys and values of other participants are constants in the derivative",
    ),
    "attention_without_the_maximum": (
        of_kinds(ATTENTION, "exact", "real"),
        check_value,
        (
            "NaN: holds NaN where the right value is none\n"
            "the blocks are the right ones if no maximum is subtracted from logits, whose powers overflow"
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_mistake_is_told(name: str) -> None:
    """Of a function that makes a mistake nothing but that is said, on a case as the suite checks it."""
    case, check, words = PLANTED[name]
    assert told(case, name, check) == words
