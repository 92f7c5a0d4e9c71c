"""The law of overlap on compiled programs: saved schedules, and planted bugs compiled by libtpu.

What is marked `tpu_compiler` runs in `tox -e tpu-compiler`.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.meta.test_accelerators import run_pytest
from shardproof.properties.meta.test_scheduled import DONE, NOTHING, PAIRS, START, X, by_hand, product
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.tpu_compiler import BACKWARD, FORWARD, Compiled, Request, TpuCompiler
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.programs.expectation import Overlap, names_of
from shardproof.properties.programs.violation import Broken
from shardproof.properties.suite.compiled_overlap import (
    FOR_ITSELF,
    WITH_ROOM,
    case_with_room,
    check_compiled_overlap,
    place,
)

ROOT = Path(__file__).resolve().parents[2]
SAVED = Path(__file__).parent / "saved_hlo"
V5E = Topology.parse("v5e:2x4")
MESH, AXIS = place(V5E)
CASE = case_with_room("all_gather_matmul_lhs", MESH, AXIS, CHIPS["v5e"])


def compiled(text: str, temporary: int = 0) -> Compiled:
    """A program of this text, over rings of four."""
    return Compiled(text, temporary, 1000, 500, tuple(V5E.rings(4)))


def saved(name: str) -> Compiled:
    """One of the saved schedules."""
    return compiled((SAVED / f"tpu_v5e_scheduled_{name}.txt").read_text(encoding="utf-8"))


def check(one: Compiled, stated: str = "exposed<=0", share: Fraction = WITH_ROOM, way: str = FORWARD) -> Any:
    """The law, of a claim about the case that has room."""
    return check_compiled_overlap(Overlap.parse(stated, names_of(CASE.contract)), share, CASE, one, V5E, way)


@pytest.mark.either_end
def test_what_is_exposed_is_reported() -> None:
    """An exposed transfer is reported with its share, source and bytes."""
    assert check(saved("ring"), share=Fraction(1, 5)).share < Fraction(1, 5)
    with pytest.raises(Broken) as caught:
        check(saved("ring"))
    assert caught.value.finding == (
        "0.187 of the communication of the function, compiled for v5e:2x4, is exposed: expected at most 0.050 "
        "(exposed<=0); 3.01 us of it permute of 524,288 bytes (start and done, collective-permute-start)"
    )
    with pytest.raises(Broken, match="of its gradient, compiled for v5e:2x4, is exposed") as caught:
        check(saved("ring"), way=BACKWARD)
    assert caught.value.of == "gradient"


@pytest.mark.either_end
def test_what_is_left_whole_is_reported() -> None:
    """A gather that was not split into permutes is reported whatever share is allowed."""
    with pytest.raises(
        Broken, match=r"all_gather of 524,288 bytes \(synchronous, all-gather.4\) of the function, comp"
    ):
        check(saved("naive"), share=Fraction(1))


@pytest.mark.either_end
def test_what_the_compiler_makes_synchronous_is_reported() -> None:
    """A permute that the compiler makes synchronous is reported with its topology."""
    permute = f"ROOT %sync = f32[11250]{{0}} collective-permute(%f), channel_id=1, {PAIRS}"
    text = by_hand(X, product("f", 10), permute, more=NOTHING)
    message = "compiled for v5e:2x4, is made synchronous by the compiler: nothing can be computed beside it"
    with pytest.raises(Broken, match=message):
        check(compiled(text), share=Fraction(1))


@pytest.mark.either_end
def test_both_ways_are_used_where_that_is_claimed() -> None:
    """A claim of two directions fails for a ring one way and holds for the shorter way."""
    with pytest.raises(Broken, match="0 bytes one way round a ring and 1,572,864 the other of the function") as caught:
        check(saved("ring"), "exposed<=0,directions=2", share=Fraction(1))
    assert caught.value.finding.endswith("(exposed<=0,directions=2): expected both ways to be used")
    check(saved("shorter_way"), "exposed<=0,directions=2", share=Fraction(1))


@pytest.mark.either_end
def test_what_is_held_is_arguments_results_and_temporary_memory() -> None:
    """Memory above the claim and a megabyte of the compiler's own is reported, forward alone."""
    text = by_hand(X, START, product("f", 10**6), DONE, more=NOTHING)
    assert check(compiled(text, FOR_ITSELF), "exposed<=0,memory<=3*out").exposed == 0
    with pytest.raises(Broken, match=r"1,050,077 bytes held at one time, 1,048,577 of them temporary, of the function"):
        check(compiled(text, FOR_ITSELF + 1), "exposed<=0,memory<=3*out")
    check(compiled(text, FOR_ITSELF + 1), "exposed<=0,memory<=3*out", way=BACKWARD)


MARKED = """
import pytest


@pytest.mark.tpu_compiler
def test_compiles(tpu_compiler):
    raise AssertionError("never")
"""
WITHOUT = """
import shardproof.properties.performance.tpu_compiler as tpu_compiler

tpu_compiler.missing = lambda: "the engine tpu-compiler needs libtpu, which is not installed"
"""


@pytest.mark.lengthy
def test_without_the_compiler_tests_are_skipped_or_fail(tmp_path: Path) -> None:
    """A missing compiler skips its tests, and fails them with `--require-tpu-compiler`."""
    (tmp_path / "test_mine.py").write_text(MARKED, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(WITHOUT, encoding="utf-8")
    for option, code, message in (
        ("-rs", 0, "1 skipped"),
        ("--require-tpu-compiler", 1, "--require-tpu-compiler: the engine tpu-compiler needs libtpu"),
    ):
        found, output = run_pytest(tmp_path, option)
        assert found == code, output
        assert message in output
        assert "the engine tpu-compiler needs libtpu, which is not installed" in output


BROKEN: dict[str, tuple[str, str]] = {
    "product_of_what_arrives": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exposed"),
    "block_held_back_by_its_product": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exp"),
    "gathered_before_it_is_multiplied": (FORWARD, "all_gather of .* is left whole: expected permutes beside products"),
    "one_way_of_two": (FORWARD, "0 bytes one way round a ring and .* expected both ways to be used"),
    "gradient_that_gathers": (BACKWARD, "all_gather of .* of its gradient, compiled for v5e:2x4, is left whole"),
    "one_place_too_far": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exposed"),
    "mlp_that_hides_nothing": (FORWARD, "all_gather of .* is left whole: expected permutes beside products"),
    "both_halves_wait_for_both": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exposed"),
}
"""The law's finding for each planted bug, and its way."""

NOT_SHOWN = {"gathered_operand_held"}
"""Bugs that a compiler repairs: what nothing but a barrier needs is not held in what it schedules."""


@pytest.mark.either_end
def test_every_planted_bug_has_its_place() -> None:
    """Every planted bug of overlap is compiled or listed as invisible to a compiler."""
    planted = {mutant.name for mutant in MUTANTS.values() if mutant.law == "overlap"}
    assert planted >= {*BROKEN, *NOT_SHOWN}
    assert not planted - {*BROKEN, *NOT_SHOWN}, "compile them as well: python -m pytest -m tpu_compiler"


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", BROKEN)
def test_planted_bugs_are_not_hidden_by_the_compiler(name: str, tpu_compiler: TpuCompiler) -> None:
    """A planted bug of overlap is reported in its compiled schedule."""
    mutant, (way, message) = MUTANTS[name], BROKEN[name]
    case = case_with_room(mutant.contract, MESH, AXIS, CHIPS["v5e"])
    found = tpu_compiler.compile(Request(str(V5E), case, f"{mutant.function.__module__}:{name}", way))
    with pytest.raises(Broken, match=message):
        check_compiled_overlap(
            Overlap.parse(mutant.overlap, names_of(CONTRACTS[mutant.contract])), WITH_ROOM, case, found, V5E, way
        )
