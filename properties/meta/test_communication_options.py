"""Communication as a user sees it: expectations, claims, and pictures of what is sent."""

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof import check, no_communication
from shardproof.impl.collectives import ring_shift
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication import pictures as drawn
from shardproof.properties.communication.pictures import Step, steps
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.meta.pages import README
from shardproof.properties.meta.runs import command
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.expectation import Expectation, ExpectationError, value
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.runner.child import Task
from shardproof.properties.runner.given import parse_all
from shardproof.properties.runner.search import Finding
from shardproof.properties.runner.stated import GivenError
from shardproof.properties.runner.tally import Tally

ROOT = README.parent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p-1", Fraction(7)),
        ("(p-1)*n/p", Fraction(70)),
        ("ceil(log2(p+1))", Fraction(4)),
        ("2**3//3", Fraction(2)),
        ("-p+n", Fraction(72)),
        ("n*0.5", Fraction(40)),
    ],
)
def test_values(text: str, expected: Fraction) -> None:
    """Arithmetic is exact."""
    assert value(text, p=8, n=80) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "permute", "permutes=1", "permute=", "permute=q", "permute=__import__('os')", "permute=p.real",
        "permute=[1]",
        "permute=1/0", "permute=p**p**p", "permute=log2(0)", "permute=max(p)", "permute=1,permute=2", "permute=True",
        "permute=1;permute=1", "grad:permute=1;grad:permute=1", "permute=1;exactly:bytes=n", "grad:", ";", "exactly:",
        "permute='1'", "permute=" + "(" * 150, "permute=1" + "+1" * 200, "permute=2**0.5**9999",
    ],
)  # fmt: skip
def test_what_is_no_expectation(text: str) -> None:
    """Anything but that arithmetic is refused in one line; nothing is executed."""
    with pytest.raises(ExpectationError) as error:
        Expectation.parse(text)
    assert str(error.value).startswith(f"communication={text}: ")
    assert "\n" not in str(error.value)


def test_expectations_belong_to_functions_in_order() -> None:
    """The first belongs to the first function; one too many is refused."""
    functions = ["ring_shift=a:b", "broadcast=c:d"]
    first, second = parse_all(functions, ["permute=1"])
    assert (first.contract, first.module, first.function) == ("ring_shift", "a", "b")
    assert dict(first.claims)["communication"] == Expectation.parse("permute=1")
    assert dict(second.claims)["communication"] is None
    with pytest.raises(GivenError, match=r"^--expect-communication=bytes=n: expected no more of them than of --impl$"):
        parse_all(functions[:1], ["permute=1", "bytes=n"])


def test_check_takes_an_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` holds a function against what is expected of it."""
    seen = []

    def find(laws: Sequence[Law], implementation: Implementation, *_: Any, **options: Any) -> Finding:
        seen.append(implementation.communication)
        return Finding(None, {law.name: Tally("ring_shift", "mine", law.name, structures=1) for law in laws})

    def isolated(task: Task, on_case: Any) -> Finding:
        return find([LAWS[name] for name in task.laws], task.given.load())

    monkeypatch.setattr("shardproof.properties.report.checking.find_violation", find)
    monkeypatch.setattr("shardproof.properties.report.checking.check_isolated", isolated)
    check("ring_shift", ring_shift, laws=["communication"], communication="permute=1,bytes=n")
    assert seen == [Expectation.parse("permute=1,bytes=n")] * 2
    with pytest.raises(ValueError, match=r"^communication=permutes=2: "):
        check("ring_shift", ring_shift, laws=["communication"], communication="permutes=2")


def test_a_wrong_expectation_is_one_line() -> None:
    """An expectation that cannot be read is what the plugin makes a usage error of."""
    line = (
        "--expect-communication=permute=exec(p): 'exec(p)': 'exec(p)' is not understood: "
        "expected arithmetic of p, n, x, out, axes, offset and numbers with + - * / // % ** < <= == if else "
        "ceil log2 min max sum size elements itemsize sum_itemsize replicated"
    )
    with pytest.raises(GivenError, match=f"^{re.escape(line)}$"):
        parse_all(["ring_shift=mine:right"], ["permute=exec(p)"])


def arguments(sizes: tuple[int, ...] = (2, 4)) -> tuple[Any, Any]:
    """A mesh over eight devices, and an array that is sharded over it."""
    mesh = jax.make_mesh(sizes, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    return mesh, jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("x", "y")))


@pytest.mark.needs_devices(8)
def test_no_communication_passes_what_sends_nothing(devices: int) -> None:
    """Local work passes, in either style; a collective of one device passes with a warning, and one device does not."""
    mesh, x = arguments()
    no_communication(lambda x: 2 * x + 1, x)
    no_communication(jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y")), x)
    alone, x = arguments((8, 1))
    with pytest.warns(
        UserWarning, match=r"all_reduce over y \(psum.* sends nothing over 1 device: expected an axis of"
    ):
        no_communication(
            jax.shard_map(lambda x: lax.psum(x, "y"), mesh=alone, in_specs=P("x", "y"), out_specs=P("x")), x
        )
    with pytest.raises(ValueError, match="sin runs on 1 device, where nothing can be sent: expected a mesh of several"):
        no_communication(jnp.sin, jnp.ones(8))


@pytest.mark.needs_devices(8)
def test_no_communication_lists_what_it_finds(devices: int) -> None:
    """Collectives of the program and those that the compiler adds are listed; a given function is named."""
    mesh, x = arguments()

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(x)

    with pytest.raises(
        AssertionError, match=r"^total: expected no communication, found \d+:\n  compiled: all_reduce of "
    ):
        no_communication(total, x)
    summed = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x", "y"), out_specs=P(None, "y"))
    with pytest.raises(AssertionError) as error:
        no_communication(jax.jit(summed), x)
    assert re.search(r"traced: all_reduce over x \(psum\w*, .*test_communication_options.py:\d+", str(error.value))
    assert "compiled: all_reduce of 32 bytes, synchronous, " in str(error.value)
    assert "{{0,4},{1,5},{2,6},{3,7}}" in str(error.value)

    def unread(x: jax.Array) -> jax.Array:
        jax.jit(summed)(x)
        return 2 * x

    # what is traced and not compiled, since nothing reads it, breaks the claim as well
    with pytest.raises(AssertionError, match="traced: all_reduce"):
        no_communication(unread, x)


def test_a_drawing_says_who_sends_what(tmp_path: Path) -> None:
    """The steps are printed, and the picture has an arrow for each link."""
    pytest.importorskip("drawsvg", reason="the extra `draw` is not installed")
    picture = tmp_path / "ring.svg"
    printed = command("draw", "ring_shift[lax]", "--mesh", "tp=4", "--output", str(picture)).stdout.splitlines()
    assert printed[0] == "ring_shift[lax] on mesh (tp=4), axis 'tp', block float32[2@tp,4]"
    assert printed[1] == "round 1: permute of 32 bytes each: 0 -> 1, 1 -> 2, 2 -> 3, 3 -> 0"
    text = picture.read_text()
    assert text.count("marker-end") == 4 + 1  # which the legend explains
    title = "ring_shift[lax] on mesh (tp=4), axis 'tp'"
    assert title in text.replace("&#x27;", "'").replace("&apos;", "'")
    assert float(re.findall(r'<svg [^>]*width="([\d.]+)"', text.replace("\n", " "))[0]) > 7 * len(title)
    assert "a device by its position in the mesh" in text


def test_a_drawing_is_in_the_order_of_the_axis_tuple() -> None:
    """Groups stand side by side, the devices of each in logical order, under their coordinates."""
    mesh = MeshCase(("dp", "tp"), (2, 3))
    assert drawn.columns(mesh, ("tp", "dp")) == drawn.columns(mesh, ("dp",)) == [0, 3, 1, 4, 2, 5]
    assert drawn.columns(mesh, ("dp", "tp")) == drawn.columns(mesh, ("tp",)) == [0, 1, 2, 3, 4, 5]
    pytest.importorskip("drawsvg", reason="the extra `draw` is not installed")
    text = drawn.picture("nothing", [], mesh, ("tp", "dp")).as_svg()
    assert re.findall(r">((?:dp|tp)=\d)<", text)[:6] == ["dp=0", "tp=0", "dp=1", "tp=0", "dp=0", "tp=1"]


def test_collectives_of_one_round_are_not_drawn_over_one_another() -> None:
    """Two permutes over the same links at the same time are two arrows, with different dashes."""
    pytest.importorskip("drawsvg", reason="the extra `draw` is not installed")
    twice = [Step("permute", 16, ((0, 1), (1, 0)), 1)] * 2
    text = drawn.picture("twice", twice, MeshCase(("tp",), (2,)), ("tp",)).as_svg()
    ends = re.findall(r'<path d="M([\d.,]+) L([\d.,]+)"[^>]*marker-end', text)
    assert len(set(ends)) == len(ends) == 4 + 2
    assert text.count("stroke-dasharray") == 2 + 1


def test_rounds_that_repeat_are_drawn_once() -> None:
    """Their label says how many there are, in the colour of its arrows, and the legend has that colour alone."""
    pytest.importorskip("drawsvg", reason="the extra `draw` is not installed")
    found = [Step("permute", 16, ((0, 2), (1, 0), (2, 1)), number) for number in range(1, 15)]
    text = drawn.picture("down & up", [*found, Step("psum", 4, (), 15)], MeshCase(("tp",), (3,)), ("tp",)).as_svg()
    assert text.count("marker-end") == 3 + 1
    assert re.findall(r'fill="(\S+)">(1: permute, 16 B|x 14|15: psum, 4 B)<', text) == [
        (drawn.DOWN, "1: permute, 16 B"), ("black", "x 14"), (drawn.NEUTRAL, "15: psum, 4 B"),
    ]  # fmt: skip
    assert "towards lower indices" in text
    assert "towards higher indices" not in text
    assert "<title>down &amp; up</title>\n<desc>Who sends what to whom on 3 devices, in 15 rounds.</desc>" in text


def test_a_bidirectional_ring_uses_both_directions() -> None:
    """Steps of either direction have arrows of different colours, and may be under way together."""

    def both(x: jax.Array, axis_name: str, *, offset: int) -> jax.Array:
        p = lax.axis_size(axis_name)
        up, down = ([(i, (i + step) % p) for i in range(p)] for step in (1, -1))
        return jnp.concatenate([lax.ppermute(x[:1], axis_name, up), lax.ppermute(x[1:], axis_name, down)])

    case = example("ring_shift", MeshCase(("tp",), (5,)), "tp")
    found = steps(forward(case, Implementation(CONTRACTS["ring_shift"], "both", both), Seen()), case.mesh)
    colours = [{drawn.direction(*link, 5) for link in step.links} for step in found]
    assert colours == [{drawn.UP}, {drawn.DOWN}]
    assert found[0] == Step("permute", 16, ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0)), 1)
    assert {step.round for step in found} == {1}
