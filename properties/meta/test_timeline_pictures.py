"""The commands that draw timelines and what is sent, and pictures of failures of the law of overlap."""

import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.pictures import LETTER
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.communication import check_overlap
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.meta.runs import command, work_in
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import implementation_of
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.lanes import gantt, lay_out
from shardproof.properties.performance.operations import Operation
from shardproof.properties.performance.routes import Loads
from shardproof.properties.performance.timeline import timeline
from shardproof.properties.programs.examples import product_case
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.failures import files
from shardproof.properties.report.failures.files import drawing
from shardproof.properties.report.failures.text import in_letters, report

MINE = """import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shardproof import Program


def layer(x, w, axis_name):
    return jnp.tanh(lax.all_gather(x, axis_name, axis=1, tiled=True) @ w)


def mlp(x, w, *, data, model):
    return lax.psum(jnp.tanh(x @ w["in"]) @ w["out"], model)


def whole(x, w, *, mesh, data, model):
    specs = P(data), {"in": P(None, model), "out": P(model)}
    local = lambda x, w: mlp(x, w, data=data, model=model)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(data))(x, w)


def unsharded(x, w):
    return jnp.tanh(x @ w["in"]) @ w["out"]


DESCRIBED = {"arguments": ("b@data f", {"in": "f h@model", "out": "h@model f"}), "results": "b@data f"}
MLP = Program(mlp, unsharded, **DESCRIBED)
WHOLE = Program(whole, unsharded, whole=True, **DESCRIBED)
BOTH = Program(
    lambda x, *, data, model: lax.psum(x, model), lambda x: x.reshape(-1), arguments=["n@data@model"], results="n@data"
)
number = 3


def mistaken(x, axis_name):
    return x + None
"""


MLP = "512@dpx2048,2048x8192@tp,8192@tpx2048"
"""The arrays of the program there."""

RING = "ring_all_gather_matmul_lhs"
AXES = "--mesh", "dp=2,tp=4"


def texts(svg: str) -> list[Any]:
    """The texts of a picture."""
    return [one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("}text")]


def words(svg: str) -> set[str]:
    """The strings in a picture."""
    return {"".join(one.itertext()).strip() for one in texts(svg)}


def check_nothing_is_clipped(svg: str) -> None:
    """Every text ends before the picture does, were all its letters as wide as the widest are on average."""
    width, height = (float(ElementTree.fromstring(svg).get(side, "0")) for side in ("width", "height"))
    for one in texts(svg):
        length = LETTER * float(one.get("font-size", "0")) * len("".join(one.itertext()))
        if "rotate" in one.get("transform", ""):
            continue
        before = {"middle": length / 2, "end": length}.get(one.get("text-anchor", "start"), 0)
        x, y = float(one.get("x", "0")), float(one.get("y", "0"))
        assert x - before >= 0
        assert x - before + length <= width + 1
        assert 0 < y < height


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a module of a user's."""
    return work_in(tmp_path, monkeypatch, timed_layer=MINE)


@pytest.mark.parametrize(
    ("arguments", "lanes"),
    [
        (["ring_all_gather_matmul_lhs"], {"compute", "tp ->"}),
        (["alternating_matmul_reduce_scatter", "--gradient"], {"compute", "tp ->", "tp <-"}),
        (["attention[ring]", "--machine", "h100"], {"compute", "switch"}),
        (["timed_layer:layer", "--shape", "512x2048@tp,2048x2048"], {"compute", "tp ->", "tp <-"}),
        (["timed_layer:MLP", "--mesh", "dp=2,tp=4", "--shape", MLP], {"compute", "tp ->", "tp <-"}),
        (["timed_layer:WHOLE", "--mesh", "dp=2,tp=4", "--shape", MLP], {"compute", "tp ->", "tp <-"}),
        (["all_gather_matmul_lhs=timed_layer:layer"], {"compute", "tp ->", "tp <-"}),
        (["mlp_loss[fsdp_2d]", "--mesh", "dp=2,tp=4", "--gradient"], {"compute", "dp ->", "tp ->", "tp <-"}),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_the_command_draws_ours_and_theirs(arguments: list[str], lanes: set[str], mine: Path) -> None:
    """The command prints and draws the same lanes, for implementations of the suite and of users."""
    if arguments[0].startswith("all_gather_matmul_lhs="):
        source = MINE.replace("axis=1", "axis=x.ndim - 2")
        (mine / "timed_layer.py").write_text(source, encoding="utf-8")
    done = command("timeline", *arguments)
    assert done.exit_code == 0, done.output
    printed = done.stdout
    (path,) = mine.glob("*.svg")
    assert f"wrote {path.name}" in printed
    svg = path.read_text(encoding="utf-8")
    check_nothing_is_clipped(svg)
    assert lanes <= words(svg)
    assert {"compute", *re.findall(r"^    (\w+ (?:->|<-)|switch) ", printed, re.MULTILINE)} == lanes
    assert ("exposed: sent while nothing is computed" in words(svg)) == (" 0 exposed" not in printed)
    assert "products" in words(svg) or "all_reduce" in arguments[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["timeline", RING, "--machine", "v9"], "'--machine': 'v9' is not one of 'v4', "),
        (["timeline", RING, "--mesh", "a=2,b=2,c=2"], "v5e is a torus of 2 dimensions"),
        (["timeline", RING, "--shape", "3x4,4x4"], "shape=3x4: expected sides that divide by 4"),
        (["timeline", RING, "--shape", "8x4"], "expected as many sides as"),
        (["timeline", RING, "--shape", "8by4"], "--shape=8by4: expected the sides of whole arrays"),
        (["timeline", RING, "--dtype", "float64"], "no published peak of it on v5e"),
        (["timeline", RING, "--dtype", "bfloat61"], "--dtype='bfloat61': expected one of"),
        (["timeline", "timed_layer:layer"], "expected --shape, the arrays that it is called with"),
        (["timeline", "timed_layer:missing", "--shape", "8x4@tp"], "module timed_layer has no missing"),
        (["timeline", "timed_layer:number", "--shape", "8x4@tp"], "expected a function or a Program, got int"),
        (["timeline", "timed_layer:MLP", "--shape", "8x4@tp"], "arrays=1: expected 3: x, "),
        (["timeline", "timed_layer:MLP", "--shape", "8x4,4x8@tp,8x4"], "model=(): expected 'tp', as another array has"),
        (["timeline", "timed_layer:MLP", "--shape", "8,4x8,8x4"], "x=(8,): expected the dimensions b@data f"),
        (
            ["timeline", "timed_layer:MLP", "--shape", "8x4,4x8,8x4@tp"],
            "w['out']: f@tp: expected no axis: no role shards it in h@mo",
        ),
        (["timeline", "timed_layer:BOTH", *AXES, "--shape", "8@dp"], "x: n@dp: expected an axis for each of data"),
        (["timeline", "timed_layer:MLP", "--gradient", "--shape", "8x4,4x8,8x4"], "no gradient of timed_layer:MLP is"),
        (["timeline", "no_such_module:f", "--shape", "8x4@tp"], "cannot import no_such_module: ModuleNotFoundError"),
        (["draw", "recursive_doubling_all_reduce", "--mesh", "tp=3"], "all_reduce does not support --mesh=tp=3: "),
        (["draw", "ringshift"], "name='ringshift': no such implementation; did you mean 'ring_shift'?"),
        (["draw", "lax"], "name='lax': there are several: all_reduce[lax], "),
        (["draw", "ring_shift[lax]", "--mesh", "tp4"], "--mesh=tp4: expected names and sizes of axes, as in tp=4 or"),
        (["draw", "ring_shift[lax]", "--mesh", "tp=0"], "--mesh=tp=0: sizes=(0,): expected at least one device"),
        (["draw", "ring_shift[lax]", "--axis", "x"], "--axis=x: expected different axes of the mesh (tp=4)"),
        (["draw", "ring_shift=timed_layer:layre"], "module timed_layer has no layre; did you mean 'layer'?"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(arguments: list[str], reason: str, mine: Path) -> None:
    """A wrong argument is refused in one line with its value and what was expected."""
    done = command(*arguments)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert reason in line
    assert not [*mine.glob("*.svg")]


@pytest.mark.parametrize(
    ("arguments", "shape", "sharded", "roles"),
    [
        (["timed_layer:MLP", *AXES], "8x4,4x8,8x4", "8@dpx4,4x8@tp,8@tpx4", "data and model"),
        (["timed_layer:MLP"], "8x4,float32:4x8,8x4", "8x4,float32:4x8@tp,8@tpx4", "model"),
        (["timed_layer:BOTH", *AXES], "16", "16@dp@tp", "data and model"),
        (["timed_layer:layer"], "512x2048,8192x2048", "512x2048,8192x2048@tp", "the last dimension"),
    ],
)
def test_arrays_that_no_axis_shards_are_named(
    arguments: list[str], shape: str, sharded: str, roles: str, mine: Path
) -> None:
    """It is said how such arrays would be sharded, those of a program by its roles, and that is taken."""
    found = command("timeline", *arguments, "--shape", shape).stdout
    assert f"(not sharded: {sharded} would shard {roles}), bfloat16\n" in found
    found = command("timeline", *arguments, "--shape", sharded).stdout
    assert f"  of {sharded.replace(',', ', ')}, bfloat16\n" in found


@pytest.mark.parametrize(
    ("arguments", "lines", "file"),
    [
        (
            ["timed_layer:MLP", "--mesh", "dp=2,tp=2", "--shape", "4@dpx8,8x8@tp,8@tpx8"],
            ["timed_layer:MLP on mesh (dp=2, tp=2), axis ('dp', 'tp'), 4@dpx8, 8x8@tp, 8@tpx8", "all_reduce of 64"],
            "timed_layer-MLP.svg",
        ),
        (
            ["ring_shift[lax]", "--shape", "64x8"],
            ["block float32[16@tp,8]", "0 -> 1, 1 -> 2, 2 -> 3, 3 -> 0"],
            "ring_shift-lax.svg",
        ),
        (
            ["ring_shift=shardproof.impl.collectives:ring_shift", "--mesh", "tp=3"],
            ["ring_shift on mesh (tp=3), axis 'tp', block float32[2@tp,4]", "0 -> 1, 1 -> 2, 2 -> 0"],
            "ring_shift-ring_shift.svg",
        ),
    ],
)
def test_draw_takes_the_names_and_shapes_of_timelines(
    arguments: list[str], lines: list[str], file: str, mine: Path
) -> None:
    """Who sends what is drawn of a program on arrays of the shapes that are given."""
    done = command("draw", *arguments)
    assert done.exit_code == 0, done.output
    assert all(line in done.stdout for line in lines), done.stdout
    assert (mine / file).exists()


CALLED = "expected a function of 2 blocks, or of these and an axis name, or MODULE:PROGRAM of a Program"


@pytest.mark.parametrize("command_name", ["timeline", "draw"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["timed_layer:mistaken", "--shape", "8x4@tp"], "unsupported operand type(s) for +"),
        (["timed_layer:mlp", "--shape", "8x4,4x8@tp"], f"arguments: 'data' and 'model'; {CALLED}"),
        (["timed_layer:layer", "--shape", "8x4@tp,3x3"], "dot_general requires contracting dimensions"),
        (["timed_layer:MLP", "--shape", "8x4,5x8@tp,8@tpx4", "--mesh", "dp=2,tp=4"], "dot_general requires"),
        (["all_gather_matmul_lhs=timed_layer:layer"], "dot_general requires contracting dimensions"),
    ],
)
def test_an_exception_of_the_function_is_one_line(
    command_name: str, arguments: list[str], reason: str, mine: Path
) -> None:
    """An exception of the user's function is refused in one line, with its place in the source if it has one."""
    done = command(command_name, *arguments)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert (f" ({mine / 'timed_layer.py'}:" in line) == (CALLED not in line)
    assert not [*mine.glob("*.svg")]


def test_figures_say_what_is_assumed_and_where_they_are_from(mine: Path) -> None:
    """Printed figures name the dtype of the peak, assumptions and sources."""
    printed = command("timeline", "sequence_parallel_mlp[naive]", "--machine", "tpu7x", "--sources").stdout
    figures = "2307 TFLOP/s (bfloat16), memory 7380 GB/s, 100 GB/s a link, one way, 1 us a hop (assumed)"
    assert f"  tpu7x: {figures}\n" in printed
    for name, source in CHIPS["tpu7x"].sources.items():
        assert f"tpu7x {name}: {source}\n" in printed
    printed = command("timeline", "all_reduce[lax]", "--machine", "v5e", "--dtype", "int8").stdout
    assert "  v5e: 393 TFLOP/s (int8), memory 819 GB/s, 45 GB/s a link, one way, 1 us a hop\n" in printed
    printed = command("timeline", "all_reduce[lax]", "--machine", "h100", "--dtype", "int32").stdout
    assert "  h100: memory 3350 GB/s, 450 GB/s to a switch, 3.4 us a step\n" in printed


@pytest.mark.parametrize(
    ("arguments", "printed", "code", "kind"),
    [
        (["timeline", RING], "compute  ##", 0, "Note"),
        (["timeline", RING, "--output", "lanes.svg"], "compute  ##", 2, "Error"),
        (["draw", "ring_shift[lax]", "--output", "ring.svg"], "round 1: permute", 2, "Error"),
    ],
)
def test_without_drawsvg_figures_are_printed(
    arguments: list[str], printed: str, code: int, kind: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are printed without drawsvg, which is an error only if a picture was requested."""
    monkeypatch.setitem(sys.modules, "drawsvg", None)
    message = command(*arguments)
    assert message.exit_code == code
    assert printed in message.stdout
    assert message.stderr.startswith(f"{kind}: no picture: ")
    assert message.stderr.endswith("; pip install 'shardproof[draw]'\n")


def test_a_bar_says_what_it_is() -> None:
    """A bar has its source line, time and bytes, and a long title is not clipped."""
    send = Operation("ppermute", "mine.py:7", frozenset(), loads=Loads({("tp", 1): Fraction(45_000)}, 1))
    lanes = lay_out(timeline([send], CHIPS["v5e"]))
    svg = str(gantt(["a title that is long " * 12, "and more"], lanes).as_svg())
    check_nothing_is_clipped(svg)
    assert "<title>a title that is long " in svg
    assert "<desc>and more. Lanes: compute, tp -&gt;</desc>" in svg
    assert "ppermute, 2 us\nmine.py:7\n45,000 bytes over a link" in svg


def violation(name: str, law: str = "overlap") -> LawViolation:
    """The violation of a law by a planted bug, on two devices."""
    mutant = MUTANTS[name]
    case = product_case("matmul_reduce_scatter", MeshCase(("dp",), (2,)), "dp", (1, 1, 1))
    implementation = implementation_of(mutant)
    if law != "overlap":
        return LawViolation(implementation, LAWS[law], case, "simulate", Broken("communication", "sends too much"))
    with pytest.raises(Broken) as caught:
        check_overlap(implementation, case, SimulateEngine())
    return LawViolation(implementation, LAWS[law], case, "simulate", caught.value)


@pytest.mark.parametrize("name", ["one_place_too_far", "gradient_that_gathers"])
def test_a_failure_shows_its_timeline(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of overlap shows its lanes in letters and the path of a picture."""
    monkeypatch.chdir(tmp_path)
    found = violation(name)
    message = report(found)["text"]
    compute, link = re.findall(r"^    (?:compute|\w+ ->) +(\S+)$", message, re.MULTILINE)
    assert len(compute) == len(link)
    assert "!" in link
    assert all(one == "." for one, other in zip(compute, link, strict=True) if other == "!")
    (path,) = re.findall(r"^    drawn in (\S+)$", message, re.MULTILINE)
    svg = Path(path).read_text(encoding="utf-8")
    check_nothing_is_clipped(svg)
    assert svg == drawing(found)
    assert any("and its gradient" in line for line in words(svg)) == (name == "gradient_that_gathers")
    assert [one.suffix for one in sorted(Path(path).parent.iterdir())] == [".json", ".py", ".svg"]


def test_other_failures_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other laws have no timeline, and a function that raises meanwhile stops no report."""
    other = violation("one_place_too_far", "communication")
    assert in_letters(other) == []
    assert drawing(other) == ""
    broken = violation("one_place_too_far")
    assert in_letters(broken)
    monkeypatch.setattr(files, "operations_for", lambda *_: 1 / 0)
    assert in_letters(broken) == []
    assert drawing(broken) == ""
