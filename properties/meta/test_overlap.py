"""The law of overlap: schedules, claims, reports and scripts."""

import dataclasses
import re
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof.impl.rings import shift
from shardproof.properties.cases.case import Case
from shardproof.properties.communication.counted import sizes_of
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws.communication import check_overlap
from shardproof.properties.meta.pages import PERFORMANCE_PAGE, README
from shardproof.properties.meta.runs import PYTEST, python
from shardproof.properties.meta.test_accelerators import GATHERED
from shardproof.properties.meta.test_collective_matmul import case_of, way_of
from shardproof.properties.meta.test_timeline import product, sent
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import hunt
from shardproof.properties.performance.operations import Operation, operations_of
from shardproof.properties.performance.routes import Loads, Undetermined, permute_loads
from shardproof.properties.performance.timeline import Balanced, timeline
from shardproof.properties.programs.built_in import OVERLAPPED
from shardproof.properties.programs.expectation import ExpectationError, Overlap, value
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.violation import Broken, NotRun
from shardproof.properties.report.checking import check, check_program

NAMES = ("p", "n", "lhs", "rhs", "out")


def loop(times: int, *body: Operation) -> Operation:
    """A loop that depends on nothing."""
    return Operation("scan", "", frozenset(), body=body, times=times)


BALANCED = Balanced(1, Fraction(1), frozenset({"tp"}), Fraction(1))
"""A machine on which a FLOP takes as long as a byte."""


@pytest.mark.either_end
@pytest.mark.parametrize(
    ("operations", "total", "compute", "communication", "exposed_part"),
    [
        pytest.param([product(3), sent(2)], 3, 3, 2, 0, id="beside one another"),
        pytest.param([product(2), sent(5)], 5, 2, 5, 3, id="the longer transfer"),
        pytest.param([sent(2), product(3, 0)], 5, 3, 2, 2, id="one after the other"),
        pytest.param([sent(2), sent(2), product(3)], 4, 3, 4, 1, id="one link, one transfer at a time"),
        pytest.param([sent(2), sent(2, way=-1), product(3)], 3, 3, 2, 0, id="both ways at a time"),
        pytest.param([product(1), product(1), sent(2, 0)], 3, 2, 2, 1, id="the first of the program first"),
        pytest.param([loop(4, product(2), sent(1))], 8, 8, 4, 0, id="hidden in each iteration"),
        pytest.param([loop(4, sent(1), product(2, 0))], 12, 8, 4, 4, id="waits in each iteration"),
        pytest.param([loop(2, sent(1)), product(5)], 7, 5, 2, 2, id="a loop is a barrier"),
        pytest.param([], 0, 0, 0, 0, id="nothing"),
    ],
)
def test_what_is_scheduled_when(
    operations: list[Operation], total: int, compute: int, communication: int, exposed_part: int
) -> None:
    """Operations start as early as possible, one product and one transfer per link at a time."""
    found = timeline(operations, BALANCED)
    assert [found.total, found.compute, found.communication] == [total, compute, communication]
    assert found.exposed == exposed_part == total - compute
    assert found.hidden == communication - exposed_part
    assert sum(wait.time for wait in found.waits) == exposed_part


@pytest.mark.either_end
def test_blocks_take_the_shorter_way() -> None:
    """Blocks take the shorter way round each axis, and shared links carry all of them."""
    ahead, two_back = [(i, (i + 1) % 5) for i in range(5)], [(i, (i - 2) % 5) for i in range(5)]
    assert permute_loads([5], ("tp",), ahead, 6) == Loads({("tp", 1): Fraction(6)}, 1)
    assert permute_loads([5], ("tp",), two_back, 6) == Loads({("tp", -1): Fraction(12)}, 2)
    assert permute_loads([2], ("tp",), [(0, 1), (1, 0)], 6) == Loads({("tp", 1): Fraction(6)}, 1)
    opposite = [(i, (i + 2) % 4) for i in range(4)]
    assert permute_loads([4], ("tp",), opposite, 6) == Loads({("tp", 1): Fraction(6), ("tp", -1): Fraction(6)}, 2)
    assert not permute_loads([3], ("tp",), [(i, i) for i in range(3)], 6)
    along_both = permute_loads([2, 3], ("dp", "tp"), [(i, (i + 1) % 6) for i in range(6)], 6)
    assert along_both == Loads({("tp", 1): Fraction(6), ("dp", 1): Fraction(6)}, 2)


FIXED: dict[str, tuple[int, tuple[int, int, int], Fraction]] = {
    "alternating_matmul_all_reduce": (64, (384, 64, 8), Fraction(3, 5)),
    "scattered_matmul_all_reduce": (64, (192, 1, 3), Fraction(7, 11)),
    "paired_transformer_block": (3, (1, 3, 1), Fraction(7, 12)),
    "alternating_transformer_block": (8, (4, 3, 4), Fraction(2, 5)),
}
"""Forms whose claim is one number for all cases, and a case of narrow pieces that nearly reaches it.

The case is given by its participants, its sides, and the least that is exposed.
"""


@pytest.mark.parametrize("one", [one for one in OVERLAPPED if way_of(one) != "paired" or one.name in FIXED], ids=str)
def test_what_forms_claim_is_what_they_do(one: Implementation) -> None:
    """A claim that is wider than what is exposed would hide a bug: of float32 in even blocks there is no room."""
    p, sides, least = FIXED.get(one.name, (8, (16, 16, 16), None))
    case = case_of(one.contract.name, (p,), sides)
    operations = operations_of(forward(case, one, Seen()), case.mesh)
    found = timeline(operations, Balanced.of(operations, case.mesh, case.axes)).share
    assert one.overlap is not None
    claimed = value(one.overlap.exposed, **sizes_of(case))
    if least is not None:
        assert least - Fraction(1, 1000) <= found <= claimed <= Fraction(7, 11)
    else:
        assert found == (0 if one.contract.name == "transformer_block" else claimed)  # its room is for 16-bit floats


def total_of_while(lhs: Array, rhs: Array, axis_name: Any) -> Array:
    """A product after a loop that runs as often as the data say."""

    def body(state: Array) -> Array:
        return shift(state, (axis_name,), 1) + 1

    lhs = lax.while_loop(lambda state: jnp.sum(state) < 0, body, lhs)
    return jnp.matmul(lax.all_gather(lhs, axis_name, axis=lhs.ndim - 2, tiled=True), rhs)


def test_what_cannot_be_reported_is_no_pass() -> None:
    """A loop that depends on data, and a function of global arrays, are not run."""
    case = case_of("all_gather_matmul_lhs", (2,), (2, 2, 2))
    mine = Implementation(CONTRACTS["all_gather_matmul_lhs"], "mine", total_of_while, overlap=Overlap("1"))
    with pytest.raises(NotRun, match=r"overlap is not known: the iterations of the while at .* depend on"):
        check_overlap(mine, case, SimulateEngine())
    whole = forward(case, mine, Seen())
    with pytest.raises(Undetermined, match="there is no shard_map in it"):
        operations_of(dataclasses.replace(whole, build=lambda mesh: lambda *arrays: arrays), case.mesh)


@pytest.mark.either_end
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'': expected exposed<=EXPRESSION, directions=2, memory<=EXPRESSION, each once"),
        ("directions=2", "expected exposed<=EXPRESSION, directions=2, memory<=EXPRESSION: the first is required"),
        ("exposed=0", "'exposed=0': expected exposed<=EXPRESSION"),
        ("exposed<=0,exposed<=1", "'exposed<=1': expected exposed<=EXPRESSION"),
        ("exposed<=q", "'q': 'q' is not understood: expected arithmetic of p, n"),
        ("exposed<=1/(p-1)", "'1/(p-1)': "),
        ("exposed<=0,directions=3", "expected exposed<=EXPRESSION, directions=2"),
    ],
)
def test_a_claim_that_cannot_be_read_is_one_line(text: str, reason: str) -> None:
    """A wrong claim is refused in one line with the claim and what was expected."""
    with pytest.raises(ExpectationError) as caught:
        Overlap.parse(text, NAMES)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"overlap={text}")


@pytest.mark.either_end
def test_a_claim_is_written_as_it_is_read() -> None:
    """A claim prints as the text that it is read from."""
    text = "exposed<=1/p,directions=2,memory<=lhs+rhs+2*out"
    assert str(Overlap.parse(text, NAMES)) == text
    assert Overlap.parse(" exposed<=0 ", NAMES) == Overlap("0")


def scene(name: str) -> Any:
    """The violation of a planted bug."""
    found = hunt(MUTANTS[name], seed=3)
    assert found.violation is not None
    return found.violation


def test_a_failure_says_what_waits_for_what() -> None:
    """A failure names the exposed part, the machine, the claim, the transfer and its waiting line."""
    violation = scene("gathered_before_it_is_multiplied")
    assert (
        violation.headline
        == "all_gather_matmul_lhs[gathered_before_it_is_multiplied]: overlap: mesh (dp=2), axis 'dp': "
        + violation.finding
    )
    output = violation.finding
    assert output.startswith(
        "all of the communication is exposed, on a machine whose busiest link needs as long as p-1 of"
    )
    assert "expected at most 0 (exposed<=0); most of it all_gather at " in output
    assert ": the dot_general at " in output
    assert "overlap.py:" in output


def layer(x: Array, w: Array, *, tp: Any) -> Array:
    """Gathers the features, and multiplies them then."""
    return lax.all_gather(x, tp, axis=1, tiled=True) @ w


@pytest.mark.lengthy
def test_users_claim_it_of_their_own() -> None:
    """A user's claim holds with `exposed<=1` and fails with `exposed<=0`, in check and check_program."""
    summary = check(
        "all_gather_matmul_lhs", _mine, overlap="exposed<=1", laws=["overlap"], max_examples=5, random_seed=1
    )
    assert [(tally.law, tally.outcome) for tally in summary.tallies] == [("overlap", "passed")]
    with pytest.raises(AssertionError, match=r"overlap: mesh \(dp=2\), axis 'dp'"):
        check("all_gather_matmul_lhs", _mine, overlap="exposed<=0", laws=["overlap"], max_examples=20, random_seed=1)
    described: dict[str, Any] = {"arguments": ("m k@tp", "k n"), "results": "m n", "max_examples": 20}
    with pytest.raises(AssertionError, match="all of the communication is exposed"):
        check_program(layer, jnp.matmul, overlap="exposed<=0", laws=["overlap"], random_seed=1, **described)
    with pytest.raises(ValueError, match="expected one that applies to"):
        check_program(layer, jnp.matmul, laws=["overlap"], **described)


def _mine(lhs: Array, rhs: Array, axis_name: Any) -> Array:
    gathered = lax.all_gather(lhs, axis_name, axis=lhs.ndim - 2, tiled=True)
    return jnp.matmul(gathered, rhs, preferred_element_type=jnp.float32).astype(jnp.result_type(lhs, rhs))


def test_the_command_of_the_page(tmp_path: Path) -> None:
    """The page's command reports the waiting lines of a function that gathers first."""
    (tmp_path / "mine.py").write_text(GATHERED, encoding="utf-8")
    text = PERFORMANCE_PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^pytest (--impl all_gather_matmul_lhs=.*)$", text, re.MULTILINE)
    ended = python(*PYTEST, "--color=no", "--hypothesis-profile=matrix", *shlex.split(line), folder=tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert (
        "all of the communication is exposed, on a machine whose busiest link needs as long as p-1 of p" in ended.stdout
    )
    assert re.search(
        r"most of it all_gather at \S*mine\.py:6:\d+ \(gathered\): the dot_general at \S*mine\.py:7", ended.stdout
    )
    (file,) = (tmp_path / ".shardproof" / "failures").glob("*.py")
    shown = python(file, PYTHONPATH=str(README.parent))
    assert shown.returncode == 1
    assert "all of the communication is exposed, on a machine" in shown.stdout


def test_empty_blocks_hide_nothing() -> None:
    """A product of empty blocks passes."""
    ring = next(one for one in OVERLAPPED if one.name == "ring_matmul_reduce_scatter")
    assert check_overlap(ring, case_of(ring.contract.name, (2,), (2, 0, 2)), SimulateEngine()).checked == 1


def test_more_than_is_claimed_is_broken() -> None:
    """Memory above its claim, and one direction in place of two, are reported."""
    case: Case = case_of("all_gather_matmul_lhs", (4,), (8, 8, 8))
    ring = next(one for one in OVERLAPPED if one.name == "ring_all_gather_matmul_lhs")
    for text, finding in (
        ("exposed<=0,memory<=lhs", r"bytes alive at one time: expected at most 256 bytes \(exposed<=0,memory<=lhs\)"),
        (
            "exposed<=0,directions=2",
            r"0 bytes one way round \w+ and \d+ bytes the other: expected both ways to be used",
        ),
    ):
        one = Implementation(ring.contract, "mine", ring.function, overlap=Overlap.parse(text, NAMES))
        with pytest.raises(Broken, match=finding):
            check_overlap(one, case, SimulateEngine())
