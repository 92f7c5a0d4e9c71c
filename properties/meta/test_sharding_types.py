"""The oracle of types on explicit axes: it follows from who holds what; wrong rules are found, right ones are not."""

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shardproof.oracles import sharding_types as oracle
from shardproof.oracles.layout import shard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sharding_types import Ambiguous, Refused, ShardedType
from shardproof.properties.cases.strategies.typed_calls import OPERATIONS, calls
from shardproof.properties.cases.typed_call import Call, Rule
from shardproof.properties.laws.sharding_types import WrongType, check_type
from shardproof.properties.mutants.sharding_types import ODD, WRONG, StatedRule
from shardproof.properties.runner.excused_types import excused
from shardproof.properties.suite.test_modes import TYPED

RUNS = 32
"""In so many runs every wrong rule is found, whatever the seed; one run finds some of them with one seed in three."""

MESH = MeshCase(("dp", "tp", "pp"), (2, 2, 1), axis_types=("explicit",) * 3)


def typed(text: str) -> ShardedType:
    """`8@dp,4@(tp,pp),3` as a type."""
    entries = [part.partition("@") for part in re.findall(r"\d+(?:@(?:\w+|\([\w,]+\)))?", text)]
    spec = tuple(tuple(name for name in re.split(r"[(),]", axes) if name) for _, _, axes in entries)
    return ShardedType(tuple(int(size) for size, _, _ in entries), spec)


def search(operation: str, examples: int, rule: Rule) -> None:
    """Checks a rule, in place of the oracle's, on so many calls."""

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(calls(operation))
    def check(call: Call) -> None:
        check_type(call, rule=rule, excused=excused)

    check()


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_wrong_rule_is_found(wrong: StatedRule) -> None:
    """Among as many calls as some runs of the suite draw."""
    with pytest.raises(WrongType, match=re.escape(f"{wrong.operation}(")):
        search(wrong.operation, RUNS * TYPED, wrong.rule)


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_an_odd_rule_is_right(odd: StatedRule) -> None:
    """It says the same in other words."""
    search(odd.operation, TYPED, odd.rule)


def test_there_is_a_wrong_rule_of_each_operation() -> None:
    """And each says in a sentence what is wrong."""
    assert {wrong.operation for wrong in WRONG.values()} == set(OPERATIONS)
    assert all(stated.sentence.endswith(".") for stated in (*WRONG.values(), *ODD.values()))


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_most_calls_have_a_type(operation: str, data: st.DataObject) -> None:
    """What is drawn is a call: its operands are divided by their axes, and JAX can be asked."""
    call = data.draw(calls(operation))
    for x in call.operands:
        assert all(n % call.mesh.axis_size(axes) == 0 for n, axes in zip(x.shape, x.spec, strict=True))
    assert str(call.mesh) in str(call)


def numbered(x: ShardedType) -> np.ndarray:
    """An array of that shape whose elements all differ."""
    return np.arange(np.prod(x.shape, dtype=int)).reshape(x.shape)


@given(data=st.data())
def test_what_only_moves_dimensions_moves_no_element(data: st.DataObject) -> None:
    """Transposed, broadcast, or reshaped but for merges, a block of the result is made of the same device's block."""
    operation = data.draw(st.sampled_from(("transpose", "broadcast", "reshape")))
    call = data.draw(calls(operation, max_devices=8))
    (x,), mesh, rank = call.operands, call.mesh, len(call.mesh.sizes)
    try:
        result = call.expected
    except Refused:
        return
    whole, blocks = numbered(x), shard(numbered(x), mesh, x.spec)
    if operation == "transpose":
        expected = shard(whole.transpose(*call.params), mesh, result.spec)
        local = blocks.transpose(*range(rank), *(rank + i for i in call.params[0]))
    elif operation == "broadcast":
        expected = shard(np.broadcast_to(whole, *call.params), mesh, result.spec)
        more = (1,) * (result.rank - x.rank)
        local = np.broadcast_to(blocks.reshape(*mesh.sizes, *more, *blocks.shape[rank:]), expected.shape)
    else:
        if len([n for n in result.shape if n > 1]) < len([n for n in x.shape if n > 1]):  # merged
            return
        expected = shard(whole.reshape(*call.params), mesh, result.spec)
        local = blocks.reshape(expected.shape)
    np.testing.assert_array_equal(local, expected)


@given(calls("elementwise", max_devices=8))
def test_an_elementwise_result_is_computed_where_it_is(call: Call) -> None:
    """Every device has what it needs of each operand that is sharded as the result, or not at all."""
    try:
        result = call.expected
    except Refused:
        return
    for x in call.operands:
        spec = ((),) * (result.rank - x.rank) + x.spec
        assert all(axes in ((), of_result) for axes, of_result in zip(spec, result.spec, strict=True))
    assert {name for axes in result.spec for name in axes} == {n for x in call.operands for a in x.spec for n in a}


@given(calls("contraction", max_devices=8))
def test_a_contraction_without_an_axis_in_common_is_not_ambiguous(call: Call) -> None:
    """It is just where a device would have a part of a sum: where both operands shard what is contracted."""
    lhs, rhs = call.operands
    both = [lhs.spec[i] and rhs.spec[j] for i, j in zip(*call.params[0], strict=True)]
    try:
        oracle.contraction(lhs, rhs, *call.params)
    except Ambiguous:
        assert any(both)
    except Refused:
        pass
    else:
        assert not any(both)


@pytest.mark.parametrize(
    ("operands", "result"),
    [
        (("8@dp,4", "8,4@tp"), "8@dp,4@tp"),
        (("8@dp,4", "4@tp"), "8@dp,4@tp"),
        (("8@(tp,dp),4", "8@(tp,dp),1"), "8@(tp,dp),4"),
        (("8@(tp,dp),4", "8@(dp,tp),4"), None),
        (("8@dp,4", "8@tp,4"), None),
        (("8@dp,4", "8,4@dp"), None),
    ],
)
def test_elementwise(operands: tuple[str, ...], result: str | None) -> None:
    """By hand: dimensions agree, or one of them is not sharded; an axis shards one dimension."""
    if result is None:
        with pytest.raises(Refused):
            oracle.elementwise(*map(typed, operands))
    else:
        assert oracle.elementwise(*map(typed, operands)) == typed(result)


@pytest.mark.parametrize(
    ("lhs", "rhs", "result"),
    [
        ("8@dp,4", "4,6@tp", "8@dp,6@tp"),
        ("8@dp,4@tp", "4,6", "8@dp,6"),
        ("8@dp,4@tp", "4,6@tp", "8@dp,6@tp"),
        ("8@dp,4@tp", "4@tp,6", Ambiguous),
        ("8,4@tp", "4@dp,6", Refused),
        ("8@dp,4", "4,6@dp", Refused),
    ],
)
def test_matmul(lhs: str, rhs: str, result: str | type[Refused]) -> None:
    """By hand: what is not contracted is sharded as before, and who contracts what both shard must say where to."""
    if isinstance(result, str):
        assert oracle.matmul(typed(lhs), typed(rhs)) == typed(result)
    else:
        with pytest.raises(result) as raised:
            oracle.matmul(typed(lhs), typed(rhs))
        assert raised.type is result


def test_batches_that_disagree_are_refused_first() -> None:
    """Of two operands whose batches are sharded differently there is no product, wherever its result should be."""
    lhs, rhs = typed("8@dp,4@tp"), typed("8@pp,4@tp")
    with pytest.raises(Refused) as raised:
        oracle.contraction(lhs, rhs, ((1,), (1,)), ((0,), (0,)))
    assert raised.type is Refused


@pytest.mark.parametrize(
    ("x", "shape", "result"),
    [
        ("8@dp,4", (4, 2, 4), "4@dp,2,4"),
        ("8@(dp,tp),4", (2, 4, 4), "2@dp,4@tp,4"),
        ("8@(dp,tp)", (4, 2), "4@(dp,tp),2"),
        ("12@(dp,tp)", (6, 2), None),  # a quarter of twelve is one row of two, and half of another
        ("6@dp", (3, 2), None),
        ("4@dp,6@tp", (24,), "24@(dp,tp)"),
        ("4,6@tp", (24,), None),
        ("4@dp,6", (24,), "24@dp"),
        ("4@dp,6", (6, 4), None),
        ("4,6", (6, 4), "6,4"),
        ("1,4@tp,1", (4,), "4@tp"),
        ("4@dp,4", (2, 2, 2, 2), None),  # two splits
    ],
)
def test_reshape(x: str, shape: tuple[int, ...], result: str | None) -> None:
    """By hand: one dimension is split, or some are merged, dimensions of one element aside."""
    if result is None:
        with pytest.raises(Refused):
            oracle.reshaped(typed(x), shape, MESH)
    else:
        assert oracle.reshaped(typed(x), shape, MESH) == typed(result)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ((("dp",), ("dp",)), "each mesh axis at most once"),
        ((("ep",), ()), "'ep' is not an axis"),
        (((), ("dp", "tp")), "to divide their dimensions"),
        (((), (), ()), "at most 2 entries"),
    ],
)
def test_what_cannot_be_resharded(spec: tuple[tuple[str, ...], ...], told: str) -> None:
    """An axis twice, an unknown one, one that does not divide, one dimension too many."""
    with pytest.raises(Refused, match=told):
        oracle.resharded(typed("8,6"), spec, MESH)


def test_a_type_is_shown_as_jax_does() -> None:
    """With the axes of every dimension, in parentheses if there are several."""
    assert str(typed("8@dp,4@(tp,pp),3")) == "float32[8@dp,4@(tp,pp),3]"
    with pytest.raises(Refused, match=r"float32\[8@dp,4@dp\]: an axis shards two dimensions"):
        typed("8@dp,4@dp")
