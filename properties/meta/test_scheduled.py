"""Times, waits and trip counts of scheduled programs, on saved texts and small ones by hand.

The texts of `saved_hlo` came from libtpu 0.0.42.1 under JAX 0.10.2 for v5e:2x4, of the scaling book's shape (512 x 2048
by 2048 x 2048 on a device, model axis 4); of what the compiler wrote beside its lines only the estimates are kept.
"""

import importlib.util
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.properties.communication.text import HloError, read
from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.compiled import Place, Work
from shardproof.properties.performance.scheduled import Schedule, read_frames, schedule, trips
from shardproof.properties.performance.tpu_compiler import NoTpuCompiler, Request, TpuCompiler
from shardproof.properties.performance.tpu_compiler.topology import Topology

SAVED = Path(__file__).parent / "saved_hlo"
V5E = Topology.parse("v5e:2x4")
RINGS = tuple(V5E.rings(4))
MICRO = Fraction(1, 10**6)


def saved(name: str) -> Schedule:
    """The timeline of a saved text."""
    return schedule((SAVED / f"tpu_v5e_scheduled_{name}.txt").read_text(encoding="utf-8"), V5E, RINGS)


def by_hand(*lines: str, more: str = "") -> str:
    """A scheduled program of four devices with these instructions."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule by_hand, is_scheduled=true\n{more}\nENTRY %main (x: f32[11250]) -> f32[11250] {{\n{body}\n}}\n"


X = "%x = f32[11250]{0} parameter(0)"
PAIRS = "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
START = f"%start = (f32[11250]{{0}}, f32[11250]{{0}}, u32[], u32[]) collective-permute-start(%x), channel_id=1, {PAIRS}"
DONE = "ROOT %done = f32[11250]{0} collective-permute-done(%start)"
SENT = 45_000 / Fraction(chip("v5e").link) + chip("v5e").latency
"""How long a block of 45,000 bytes takes to a neighbour: 1 us, and that of a hop."""


def product(name: str, cycles: int) -> str:
    """A fusion of some cycles."""
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return f"%{name} = f32[11250]{{0}} fusion(%x), kind=kOutput, calls=%nothing, {config}"


NOTHING = "%nothing (p: f32[11250]) -> f32[11250] {\n  ROOT %p = f32[11250]{0} parameter(0)\n}"


def test_what_is_computed_between_start_and_done_hides_it() -> None:
    """A transfer that ends before it is needed is hidden, and otherwise exposed."""
    cycles = int(10 * MICRO * chip("v5e").clock)
    hidden = schedule(by_hand(X, START, product("f", cycles), DONE, more=NOTHING), V5E, RINGS)
    assert hidden.exposed == 0
    assert hidden.total == hidden.compute == cycles / chip("v5e").clock
    assert hidden.communication == SENT
    exposed = schedule(by_hand(X, START, "%f = f32[2] copy(%x)", DONE, more=NOTHING), V5E, RINGS)
    assert exposed.total == exposed.exposed == SENT
    assert exposed.share == 1


def test_two_transfers_share_a_link() -> None:
    """Two transfers in one direction share a link, and those in opposite directions do not."""
    back = "source_target_pairs={{1,0},{2,1},{3,2},{0,3}}"
    ends = [
        "%a = f32[11250]{0} collective-permute-done(%start)",
        "ROOT %b = f32[11250] collective-permute-done(%again)",
    ]
    same = schedule(by_hand(X, START, START.replace("%start", "%again"), *ends), V5E, RINGS)
    both = schedule(by_hand(X, START, START.replace("%start", "%again").replace(PAIRS, back), *ends), V5E, RINGS)
    assert same.total == SENT + 45_000 / Fraction(chip("v5e").link)
    assert both.total == SENT


def test_a_loop_runs_as_often_as_its_counter_says() -> None:
    """A loop is walked as often as its condition says."""
    ring = saved("ring")
    assert ring.permutes == 3  # one before the loop, two in it
    assert not ring.synchronous
    assert not ring.monolithic
    assert [sent.bytes for sent in ring.sends] == [524_288] * 3
    assert float(ring.total / MICRO) == pytest.approx(74.508, abs=1e-3)
    assert float(ring.exposed / MICRO) == pytest.approx(7.115, abs=1e-3)


def test_a_synchronous_collective_is_exposed() -> None:
    """A synchronous gather is exposed for all of its time."""
    naive = saved("naive")
    assert [sent.kind for sent in naive.monolithic] == ["all_gather"]
    assert naive.synchronous == naive.monolithic
    assert naive.share == 1
    blocks = 3 * 524_288 / Fraction(2 * chip("v5e").link)
    assert naive.exposed == blocks + 3 * chip("v5e").latency


def test_fused_asynchronous_collectives_are_followed() -> None:
    """A gather over three fusions begins with the first and ends with the last."""
    text = (SAVED / "tpu_v6e_fused_all_gather.txt").read_text(encoding="utf-8")
    text = text.replace("\n", ", is_scheduled=true\n", 1)
    found = schedule(text, Topology.parse("v6e:2x4"), RINGS)
    (gather,) = found.sends
    assert gather.kind == "all_gather"
    assert gather.form == "fused asynchronously"
    assert gather.waited == gather.end > 0  # nothing has an estimate in that text


def test_a_schedule_step_by_step() -> None:
    """A printed schedule has each step with its beginning, time and wait."""
    found = schedule(by_hand(X, START, product("y", 940), DONE, more=NOTHING), V5E, RINGS)
    output = [line.split() for line in str(found).splitlines()]
    assert output[0] == ["begins", "us", "takes", "us"]
    assert [line[0] for line in output[1:]] == ["0.0", "0.0", f"{float(found.total / MICRO):.1f}"]
    assert {line[2] for line in output[1:-1]} == {"y", "permute"}
    assert f"waited for {float((SENT - found.compute) / MICRO):.1f} us" in str(found)


def test_what_is_not_scheduled_is_refused() -> None:
    """A program that is not scheduled is refused, and one with branches, which no product has."""
    with pytest.raises(HloError, match="not a scheduled program"):
        schedule(by_hand(X, START, DONE).replace(", is_scheduled=true", ""), V5E, RINGS)
    branches = "ROOT %c = f32[11250]{0} conditional(%x), branch_computations={%nothing, %nothing}"
    with pytest.raises(HloError, match="branches are not timed: ROOT %c"):
        schedule(by_hand(X, branches, more=NOTHING), V5E, RINGS)


def test_what_has_no_estimate_is_named() -> None:
    """A custom kernel without an estimate is named in the result."""
    kernel = 'ROOT %k = f32[11250]{0} custom-call(%x), custom_call_target="tpu_custom_call"'
    assert schedule(by_hand(X, kernel), V5E, RINGS).unpriced == ("k (tpu_custom_call)",)


def test_trip_counts_that_are_not_reported() -> None:
    """A loop without a constant bound has no trip count and is refused by name."""
    loop = by_hand(
        "%x = (s32[], s32[]) parameter(0)",
        "ROOT %w = (s32[], s32[]) while(%x), condition=%until, body=%once",
        more="""%until (p: (s32[], s32[])) -> pred[] {
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=1
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}
%once (q: (s32[], s32[])) -> (s32[], s32[]) {
  ROOT %q = (s32[], s32[]) parameter(0)
}""",
    )
    module = read(loop)
    with pytest.raises(HloError, match="the number of trips of the loop w is not in the text"):
        trips(module, module.entry, module.entry.instructions["w"])


@pytest.mark.parametrize(("name", "p"), [("v5e:2x4", 4), ("v5e:2x4", 8), ("v5e:16x16", 16), ("v4:4x4x4", 4)])
def test_rings_are_rings(name: str, p: int) -> None:
    """A ring has every chip once, each beside the next."""
    topology = Topology.parse(name)
    order = topology.rings(p)
    assert sorted(order) == sorted(set(order))
    assert len(order) == topology.chips
    for first in range(0, len(order), p):
        ring = order[first : first + p]
        for here, there in zip(ring, (*ring[1:], ring[0]), strict=True):
            assert len(list(topology.route(here, there))) == 1


def test_rings_that_are_not_there() -> None:
    """Three chips of a dimension that does not wrap are refused as a ring."""
    with pytest.raises(ValueError, match="no rings of 3 chips"):
        Topology.parse("v5e:2x3").rings(3)


@pytest.mark.parametrize("name", ["v5e", "v5e:2", "v9:2x4", "v5p:2x4", "v5e:2xa"])
def test_topologies_that_do_not_exist(name: str) -> None:
    """An unknown topology is refused with the known ones."""
    with pytest.raises(ValueError, match="expected one of v4, v5e"):
        Topology.parse(name)


def test_where_a_line_comes_from() -> None:
    """The tables of a text give a collective's file, line and callers."""
    text = """HloModule m, is_scheduled=true

FileNames
1 "/home/somebody/mine.py"

FunctionNames
1 "outer"
2 "inner"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3}
2 {file_name_id=1 function_name_id=2 line=7 end_line=7}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

"""
    lines = by_hand(X, START + ', metadata={op_name="f" stack_frame_id=2}', DONE).partition("\n")[2]
    (sent,) = schedule(text + lines, V5E, RINGS).sends
    assert sent.where == "mine.py:7 in inner, called at mine.py:3 in outer"
    assert not read_frames("")


def test_without_libtpu_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing TPU compiler is reported with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoTpuCompiler, match="needs libtpu, which is not installed: pip install --group tpu-compiler"):
        TpuCompiler()


def test_requests_survive_the_way_to_the_process() -> None:
    """A request to the compiler process equals itself after a round trip through JSON."""
    work = Work("matmul_reduce_scatter", "book", Place(V5E, 4))
    asked = Request("v5e:2x4", work.case(), "mine:function", "backward")
    assert Request.from_json(asked.to_json()) == asked
