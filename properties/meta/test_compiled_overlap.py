"""The law of overlap on compiled programs: on saved schedules, and with libtpu on planted bugs.

What is marked `tpu_compiler` runs in `tox -e tpu-compiler`.
"""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.sizes import names_of, sizes_of
from shardproof.properties.contracts.products import product_case
from shardproof.properties.meta.test_scheduled import DONE, NOTHING, PAIRS, SENT, START, X, by_hand, product
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.performance.chips import CHIPS, chip
from shardproof.properties.performance.measured import compiling
from shardproof.properties.performance.measured.compiled_overlap import (
    FOR_ITSELF,
    ROOM,
    WITH_ROOM,
    check_compiled_overlap,
    longest,
    place,
    roomy,
    sizes_of_compiled,
)
from shardproof.properties.performance.measured.compiling import Compiling
from shardproof.properties.performance.tpu_compiler import Compiled, NotCompiled, Request, Topology
from shardproof.properties.performance.tpu_compiler.process import BACKWARD, FORWARD
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.programs.overlap import Overlap
from shardproof.properties.programs.violation import Broken

ROOT = Path(__file__).resolve().parents[2]
SAVED = Path(__file__).parent / "saved_hlo"
V5E = Topology.parse("v5e:2x4")
MESH, AXIS = place(V5E)
CASE = roomy("all_gather_matmul_lhs", MESH, AXIS, CHIPS["v5e"])
CLAIMING = [one for one in IMPLEMENTATIONS if one.overlap is not None]


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
def test_what_is_exposed_is_told_with_what_waits() -> None:
    """How much of which transfer, where it comes from, what it sends, and what waits for it; enough room is a pass."""
    assert check(saved("ring"), share=Fraction(1, 5)).share < Fraction(1, 5)
    with pytest.raises(Broken) as caught:
        check(saved("ring"))
    assert caught.value.finding == (
        "0.187 of the communication of the function, compiled for v5e:2x4, is exposed: expected at most 0.050 "
        "(exposed<=0); 3.01 us of it permute of 524,288 bytes (start and done, collective-permute-start): "
        "it sends what is there before, and the next iteration waits for it"
    )
    with pytest.raises(Broken, match="of its gradient, compiled for v5e:2x4, is exposed") as caught:
        check(saved("ring"), way=BACKWARD)
    assert caught.value.of == "gradient"


@pytest.mark.either_end
def test_what_is_left_whole_is_reported() -> None:
    """A gather that is no permutes, whatever share is allowed."""
    with pytest.raises(
        Broken, match=r"all_gather of 524,288 bytes \(synchronous, all-gather.4\) of the function, comp"
    ):
        check(saved("naive"), share=Fraction(1))


@pytest.mark.either_end
def test_what_the_compiler_makes_synchronous_is_reported() -> None:
    """By the topology that it was compiled for."""
    permute = f"ROOT %sync = f32[11250]{{0}} collective-permute(%f), channel_id=1, {PAIRS}"
    text = by_hand(X, product("f", 10), permute, more=NOTHING)
    told = "compiled for v5e:2x4, is made synchronous by the compiler: nothing can be computed beside it"
    with pytest.raises(Broken, match=told) as caught:
        check(compiled(text), share=Fraction(1))
    assert caught.value.finding.endswith("it sends what f gives, and the end of the program waits for it")


@pytest.mark.either_end
def test_both_ways_are_used_where_that_is_claimed() -> None:
    """A ring goes one way; the shorter way of four goes both."""
    with pytest.raises(Broken, match="0 bytes one way round a ring and 1,572,864 the other of the function") as caught:
        check(saved("ring"), "exposed<=0,directions=2", share=Fraction(1))
    assert caught.value.finding.endswith("(exposed<=0,directions=2): expected both ways to be used")
    check(saved("shorter_way"), "exposed<=0,directions=2", share=Fraction(1))


@pytest.mark.either_end
def test_what_is_held_is_arguments_results_and_temporary_memory() -> None:
    """At most what is claimed, and a megabyte of the compiler's own; of a gradient nothing is claimed."""
    text = by_hand(X, START, product("f", 10**6), DONE, more=NOTHING)
    assert check(compiled(text, FOR_ITSELF), "exposed<=0,memory<=3*out").exposed == 0
    with pytest.raises(Broken, match=r"1,050,077 bytes held at one time, 1,048,577 of them temporary, of the function"):
        check(compiled(text, FOR_ITSELF + 1), "exposed<=0,memory<=3*out")
    check(compiled(text, FOR_ITSELF + 1), "exposed<=0,memory<=3*out", way=BACKWARD)


@pytest.mark.either_end
def test_what_is_hidden_is_a_pass() -> None:
    """A transfer that is over when it is asked for; one that is not is waited for by its line."""
    long = int(SENT * 10**9)  # cycles, at a clock above 1 GHz
    assert check(compiled(by_hand(X, START, product("f", 2 * long), DONE, more=NOTHING))).share == 0
    with pytest.raises(Broken, match=r"it sends what is there before, and the end of the program waits for it"):
        check(compiled(by_hand(X, START, product("f", long // 2), DONE, more=NOTHING)))


@pytest.mark.either_end
@pytest.mark.parametrize("generation", [name for name in CHIPS if name != "h100"])
def test_there_is_room(generation: str) -> None:
    """The product of a block takes as much longer than to send a block of float32 as is said, or a little more."""
    machine = chip(generation)
    side = longest(machine)
    product_time, under_way = Fraction(2 * side, machine.rate("bfloat16")), Fraction(4, machine.link)
    assert ROOM * under_way <= product_time <= ROOM * under_way + Fraction(2 * 512, machine.rate("bfloat16"))


@pytest.mark.either_end
def test_other_contracts_have_no_roomy_case() -> None:
    """And meshes are rings of four."""
    with pytest.raises(ValueError, match="contract='attention': expected one of all_gather_matmul_lhs_contracting"):
        roomy("attention", MESH, AXIS, CHIPS["v5e"])
    assert place(V5E) == (MeshCase(("data", "model"), (2, 4)), "model")


@pytest.mark.either_end
def test_sizes_are_those_of_the_oracle() -> None:
    """Which is not run on arrays of such a size; here on small ones."""
    small = product_case("all_gather_matmul_lhs", MeshCase(("data", "model"), (1, 2)), "model", (2, 4, 8))
    told = sizes_of(small)
    found = sizes_of_compiled(small, Compiled("", 0, 0, told["out"], ()))
    assert found == told


class Counting:
    """A compiler that counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def compile(self, request: Request) -> Compiled:
        """Nothing of the backward way can be compiled."""
        self.asked.append(request.way)
        if request.way == BACKWARD:
            raise NotCompiled("no")
        return compiled("")

    def end(self) -> None:
        """Is not there any more."""
        self.asked.append("end")


@pytest.mark.either_end
def test_what_was_compiled_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what could not be: one process is started, and asked once."""
    counting = Counting()
    monkeypatch.setattr(compiling, "TpuCompiler", lambda: counting)
    kept = Compiling()
    ways = [Request("v5e:2x4", CASE, "mine:product", way) for way in (FORWARD, BACKWARD)]
    for _ in range(2):
        assert kept.compile(ways[0]).text == ""
        with pytest.raises(NotCompiled, match="no"):
            kept.compile(ways[1])
    kept.end()
    assert counting.asked == [FORWARD, BACKWARD, "end"]


MARKED = """
import pytest


@pytest.mark.tpu_compiler
def test_compiles(tpu_compiler):
    raise AssertionError("never")
"""
WITHOUT = """
import shardproof.properties.performance.measured.compiling as compiling

compiling.missing = lambda: "the engine tpu-compiler needs libtpu, which is not installed"
"""


@pytest.mark.lengthy
def test_without_the_compiler_tests_are_skipped_or_fail(tmp_path: Path) -> None:
    """With the sentence that says what to install; under `--require-tpu-compiler` that is a failure."""
    (tmp_path / "test_mine.py").write_text(MARKED, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(WITHOUT, encoding="utf-8")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CI", "COLUMNS", "TOX_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "shardproof.properties.report.plugin"]
    for option, code, told in (
        ("-rs", 0, "1 skipped"),
        ("--require-tpu-compiler", 1, "--require-tpu-compiler: the engine tpu-compiler needs libtpu"),
    ):
        ended = subprocess.run(
            [*command, "--color=no", option, str(tmp_path)],
            cwd=tmp_path,
            env={**inherited, "COLUMNS": "250", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert ended.returncode == code, ended.stdout
        assert told in ended.stdout
        assert "the engine tpu-compiler needs libtpu, which is not installed" in ended.stdout


BROKEN: dict[str, tuple[str, str]] = {
    "product_of_what_arrives": (
        FORWARD,
        r"in multiply, called at overlap.py:\d+ in product_of_what_arrives.*waits for",
    ),
    "sum_sent_after_its_product": (
        FORWARD,
        r"it sends what \S+ at .* in sum_sent_after_its_product.* gives, and the n",
    ),
    "block_held_back_by_its_product": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exp"),
    "gathered_before_it_is_multiplied": (FORWARD, "all_gather of .* is left whole: expected permutes beside products"),
    "one_way_of_two": (FORWARD, "0 bytes one way round a ring and .* expected both ways to be used"),
    "gradient_that_gathers": (BACKWARD, "all_gather of .* of its gradient, compiled for v5e:2x4, is left whole"),
    "one_place_too_far": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exposed"),
    "mlp_that_hides_nothing": (FORWARD, "all_gather of .* is left whole: expected permutes beside products"),
    "normalised_mlp_that_hides_nothing": (FORWARD, "all_gather of .* is left whole: expected permutes beside products"),
    "both_halves_wait_for_both": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exposed"),
    "quarters_that_wait_for_all": (FORWARD, "of the communication of the function, compiled for v5e:2x4, is exposed"),
}
"""What the law says of planted bugs, and of which way."""

NOT_SHOWN = {"gathered_operand_held"}
"""Bugs that a compiler repairs: what nothing but a barrier needs is not held in what it schedules."""


@pytest.mark.either_end
def test_every_planted_bug_has_its_place() -> None:
    """Those of the law of overlap are compiled as well, but for what a compiler cannot show."""
    planted = {mutant.name for mutant in MUTANTS.values() if mutant.law == "overlap"}
    assert planted >= {*BROKEN, *NOT_SHOWN}
    assert not planted - {*BROKEN, *NOT_SHOWN}, "compile them as well: python -m pytest -m tpu_compiler"


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", BROKEN)
def test_planted_bugs_are_not_hidden_by_the_compiler(name: str, tpu_compiler: Compiling) -> None:
    """What the law of overlap reports of a program it reports of its schedule, with the transfer and what waits."""
    mutant, (way, told) = MUTANTS[name], BROKEN[name]
    case = roomy(mutant.contract, MESH, AXIS, CHIPS["v5e"])
    found = tpu_compiler.compile(Request(str(V5E), case, f"{mutant.function.__module__}:{name}", way))
    with pytest.raises(Broken, match=told):
        check_compiled_overlap(
            Overlap.parse(mutant.overlap, names_of(mutant.contract)), WITH_ROOM, case, found, V5E, way
        )
