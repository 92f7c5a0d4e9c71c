"""Claims of a user's function are drawn, what it does not claim is not, and both are said."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shardproof import check
from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS, Scope, contract_of
from shardproof.properties.contracts.contract import CONCESSIONS, FEATURES
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.meta.pages import features
from shardproof.properties.meta.runs import pytest_given, python
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.program import precision_of
from shardproof.properties.report.summary import notes
from shardproof.properties.runner.given import find_features, parse_all, user_implementation
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.stated import GivenError
from shardproof.properties.runner.tally import Tally

DRAWS = 60
MOST = 2400
"""The draws of which one shows a claim, whichever they are: groups of a sum need a chain without types."""


def negative(case: Case) -> bool:
    """True if a dimension is counted from the back."""
    return any(name != "offset" and isinstance(value, int) and value < 0 for name, value in case.params)


SHOWN: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "any_rank": ("masked_mean", lambda case: len(case.operands[0].block) > 1),
    "batch_dimensions": ("all_gather_matmul_lhs", lambda case: len(case.operands[0].block) > 2),
    "bool_sum": ("all_reduce", lambda c: c.operands[0].dtype == "bool" and c.keywords["op"] == "sum"),
    "empty_blocks": ("all_to_all", lambda case: 0 in case.operands[0].block),
    "first_senders": ("moe_layer", lambda case: case.keywords["policy"] == "sender"),
    "gated_experts": ("moe_layer", lambda case: len(case.operands) == 5),
    "gates_of_all": ("moe_layer", lambda case: case.keywords.get("over") == "all"),
    "groups": ("reduce_scatter", lambda case: "axis_index_groups" in case.keywords),
    "invalid_indices": ("embedding_lookup", lambda case: any(d.kind == "special" for d in case.data)),
    "nan_logits": ("moe_layer", lambda case: any(d.kind == "nan" for d in case.data)),
    "nan_tokens": ("moe_layer", lambda case: any(d.kind == "special" for d in case.data)),
    "negative_dimensions": ("all_gather", negative),
    "independent_operands": (
        "pipeline",
        lambda c: bool(c.operands[0].placement.axes - c.operands[1].placement.axes - set(c.axes)),
    ),
    "replicated_operands": ("broadcast", lambda c: not set(c.axes) <= c.operands[0].placement.axes),
    "sender_capacity": ("moe_layer", lambda case: case.keywords.get("capacity_per_sender") is not None),
    "several_layers": ("pipeline", lambda c: c.operands[0].block[0] > c.operands[0].block[1]),
    "trees": ("ring_shift", lambda case: case.tree),
    "uneven_groups": ("all_reduce", lambda case: len(set(map(len, case.keywords.get("axis_index_groups", ())))) > 1),
    "x64": ("matmul_all_reduce", lambda case: case.is_wide),
    "explained_errors": ("all_gather", lambda case: case.forbidden != "axis_name"),
}
"""How a feature shows in the cases of a contract."""


def draws(contract: str, claims: tuple[str, ...], shows: Callable[[Case], bool], count: int) -> bool:
    """True if a case of a user's function with these claims shows something, among the first; always the same ones.

    What is forbidden is looked at where it is drawn for a claim, and not where it is wrong in what a valid case shows.
    """
    wrong = shows is SHOWN["explained_errors"][1]

    class Shown(BaseException):
        """Ends the search; an Exception would be taken for a failure, and tried again."""

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(drawn_for(user_implementation(contract, print, claims), Scope()))
    def search(cases: tuple[Case, ...]) -> None:
        if any(shows(case) for case in cases if bool(case.forbidden) == wrong):
            raise Shown

    try:
        search()
    except Shown:
        return True
    return False


@pytest.mark.either_end
@pytest.mark.parametrize("feature", SHOWN)
def test_what_is_claimed_is_drawn_and_nothing_else(feature: str) -> None:
    """A feature is drawn for who claims it, and for no other."""
    contract, shows = SHOWN[feature]
    others = tuple(CONTRACTS[contract].features - {feature})
    assert draws(contract, (feature,), shows, MOST)
    assert not draws(contract, others, shows, DRAWS)


def test_every_feature_is_of_some_contract() -> None:
    """Each has a sentence, a contract that draws it, and a test of that; the built-in ones serve all they can."""
    assert set().union(*(contract.features for contract in CONTRACTS.values())) == set(FEATURES)
    assert set(SHOWN) == set(FEATURES) - CONCESSIONS
    assert all(sentence.endswith(".") for sentence in FEATURES.values())
    assert {name for i in IMPLEMENTATIONS for name in i.features} - CONCESSIONS == set(FEATURES) - CONCESSIONS
    assert all(name in features() for name in FEATURES)


@pytest.mark.either_end
@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["bool_sums"], "claims='bool_sums': no such feature; did you mean 'bool_sum'?"),
        (["batch_dimensions"], "claims='batch_dimensions': all_reduce has no such feature; expected some of all, "),
        (["x64", ""], "claims='': no such feature; expected some of all, bool_sum, "),
    ],
)
def test_a_wrong_claim_is_one_line(names: list[str], text: str) -> None:
    """An unknown feature, or one of another contract, is refused with the nearest name or all of them."""
    with pytest.raises(GivenError, match=f"^{re.escape(text)}") as caught:
        find_features("all_reduce", names)
    assert "\n" not in str(caught.value)


def test_all_claims_what_draws_more() -> None:
    """`all` means every feature of the contract but those that ask for less."""
    assert find_features("matmul_all_reduce", ["all"]) == CONTRACTS["matmul_all_reduce"].features - CONCESSIONS
    assert find_features("matmul_all_reduce", ["all", *CONCESSIONS]) == CONTRACTS["matmul_all_reduce"].features


def test_claims_belong_to_functions_in_order() -> None:
    """The first belongs to the first function, an empty one claims nothing, and one too many is refused."""
    first, second = parse_all(["ring_shift=a:b", "broadcast=c:d"], [], ["", "x64, trees"])
    assert sorted(dict(first.claims)["features"]) == []
    assert sorted(dict(second.claims)["features"]) == ["trees", "x64"]
    with pytest.raises(GivenError, match=r"^--claims=trees: expected no more of them than of --impl$"):
        parse_all(["ring_shift=a:b"], [], ["x64", "trees"])
    with pytest.raises(GivenError, match=r"^--claims=x64: expected --impl as well, whose function it is said of$"):
        parse_all([], [], ["x64"])


def test_who_claims_groups_takes_them() -> None:
    """A function that claims groups and has no parameter for them is refused, with both signatures."""
    with pytest.raises(GivenError, match=r"cannot be called as \(x, axis_name, \*, op, axis_index_groups\)"):
        check("all_reduce", lambda x, axis_name, *, op: x, claims=["groups"])


def test_a_claim_is_held_against_a_function() -> None:
    """A sum of bool that stays bool is found by `check` if sums of bool are claimed; what is not claimed is said."""

    def stays(x: jax.Array, axis_name: str, *, op: str) -> jax.Array:
        result = collectives.all_reduce(x, axis_name, op=op)
        return jnp.asarray(result, bool) if x.dtype == bool and op == "sum" else result

    with pytest.raises(AssertionError, match="result has dtype bool: expected int32") as caught:
        check("all_reduce", stays, laws=["value"], claims="bool_sum", max_examples=400)
    line = "not claimed, so not drawn: all_reduce[stays]: empty_blocks, explained_errors, groups, replicated_operands"
    assert line in str(caught.value)


def test_the_report_says_what_was_not_drawn() -> None:
    """One line for a function, whatever the number of its laws; none where all is claimed."""
    some, everything = (user_implementation("broadcast", print, claims) for claims in (["x64"], ["all"]))
    assert notes([Tally("broadcast", "print", "value", unclaimed=everything.unclaimed)]) == []
    tallies = [Tally("broadcast", "print", law, unclaimed=some.unclaimed) for law in ("value", "type")]
    again = [Tally.from_json(tally.to_json()) for tally in tallies]
    assert notes(again) == [
        "not claimed, so not drawn: broadcast[print]: empty_blocks, explained_errors, replicated_operands, trees"
    ]


@pytest.mark.lengthy
@pytest.mark.either_end
def test_a_claim_reaches_the_check(tmp_path: Path) -> None:
    """`--claims` is read beside `--impl`: what it names is drawn, and what it does not is said."""
    (tmp_path / "mine.py").write_text(
        "from shardproof.impl import collectives\n\n\n"
        "def narrow(x, axis_name, *, offset=1):\n"
        "    less = {'int64': 'int32', 'uint64': 'uint32', 'float64': 'float32', 'complex128': 'complex64'}\n"
        "    sent = x.astype(less.get(x.dtype.name, x.dtype))\n"
        "    return collectives.ring_shift(sent, axis_name, offset=offset).astype(x.dtype)\n"
    )
    many = ["--hypothesis-profile=thorough", "--hypothesis-seed=1", "--laws=value", "--engine=simulate"]
    function = ["--impl=ring_shift=mine:narrow", "--claims=x64", "--devices=2"]
    done = pytest_given(tmp_path, *many, *function)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"case: ring_shift\((u?int64|float64|complex128)\[", done.stdout)
    assert "not claimed, so not drawn: ring_shift[narrow]: empty_blocks, explained_errors, " in done.stdout
    recorded = next((tmp_path / ".shardproof" / "failures").glob("*.json"))
    text = recorded.with_suffix(".py").read_text()
    assert 'jax.config.update("jax_enable_x64", True)' in text
    script = python(recorded.with_suffix(".py"))
    assert script.returncode == 1, script.stdout + script.stderr


@pytest.mark.parametrize("engine", ["simulate", "xla"])
def test_64_bits_are_switched_on_for_their_case_alone(engine: str) -> None:
    """A float64 case is traced and run in float64, and JAX is afterwards as it was."""
    before = jnp.arange(1.0).dtype
    case = example("ring_shift", MeshCase(("dp",), (1,)), "dp")
    wide = Case.from_json(case.to_json().replace("float32", "float64"), contract_of)
    seen = []

    def shift(x: jax.Array, axis_name: str, *, offset: int) -> jax.Array:
        seen.append(x.dtype.name)
        return collectives.ring_shift(x, axis_name, offset=offset)

    own = user_implementation("ring_shift", shift, ["x64"])
    for one in (wide, case):
        judge(LAWS["value"], own, one, engine_named(engine), Tally("ring_shift", "shift", "value"))
    assert set(seen) == {"float64", "float32"}
    assert jnp.arange(1.0).dtype == before
    with precision_of(wide):
        assert jnp.zeros(1, "float64").dtype == "float64"


def without_infinities(x: Any, axis_name: Any, *, op: str = "sum") -> Any:
    """The sum, and NaN in place of infinity, as a running mean has it."""
    result = collectives.all_reduce(x, axis_name, op=op)
    return jnp.where(jnp.isinf(result), jnp.nan, result) if jnp.issubdtype(x.dtype, jnp.floating) else result


def test_kinds_of_data_can_be_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities are not drawn for a function that declines them, and the summary says so."""
    monkeypatch.chdir(tmp_path)
    how: dict[str, Any] = {"laws": "value", "max_examples": 40}
    with pytest.raises(AssertionError, match="data: special, seed"):
        check("all_reduce", without_infinities, **how)
    summary = check("all_reduce", without_infinities, data=("exact", "distinct", "real"), **how)
    assert "all_reduce[without_infinities]: data: exact, distinct, real, and not special, nan, scaled" in str(summary)
    with pytest.raises(ValueError, match="data='specal': no such kind of data; did you mean 'special'"):
        check("all_reduce", without_infinities, data="specal")
    (given,) = parse_all(["all_reduce=a:b"], [], [], [], ["exact,real"])
    assert dict(given.claims)["data"] == ("exact", "real")
    with pytest.raises(ValueError, match="data='specal': no such kind of data; did you mean 'special'"):
        parse_all(["all_reduce=a:b"], [], [], [], ["specal"])
