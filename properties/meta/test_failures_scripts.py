"""A script exits with 1 while the bug is there and with 0 once it is fixed, with JAX, NumPy and the function alone."""

import base64
import contextlib
import importlib
import io
import json
import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof import Array, check_program
from shardproof.impl import collectives
from shardproof.impl.collective_matmul import naive
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import LINKS, Chain, in_words, links
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies.dtypes import ALL, as_dtype
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import SimulateEngine, XlaEngine
from shardproof.properties.laws.drawing import fitted
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.brief import marked
from shardproof.properties.mutants import runtime
from shardproof.properties.precision.numbers import operands
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.failures import write
from shardproof.properties.report.failures.text import render
from shardproof.properties.report.scripts.large import compared_at
from shardproof.properties.report.scripts.literals import MOST, array_text
from shardproof.properties.report.scripts.script import script
from shardproof.properties.report.scripts.source import source_of
from shardproof.properties.runner.judging import verify
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.violation import LawViolation

FORBIDDEN = re.compile(r"^\s*(?:from|import) shardproof\.(?:properties|oracles)\b", re.MULTILINE)
SCOPE = Scope()


class Wrong:
    """Wrong implementations, as a module that can be imported by name would hold them."""

    @staticmethod
    def ring_shift(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        """Shifts by one too many."""
        return collectives.ring_shift(x, axis_name, offset=offset + 1)

    @staticmethod
    def all_reduce(x: Any, axis_name: Any, *, op: str = "sum") -> Any:
        """Right values, twice the gradient."""

        @jax.custom_vjp
        def reduce(x: Any) -> Any:
            return collectives.all_reduce(x, axis_name, op=op)

        reduce.defvjp(
            lambda x: (reduce(x), None),
            lambda _, ct: (2 * lax.pcast(collectives.all_reduce(ct, axis_name, op=op), axis_name, to="varying"),),
        )
        return reduce(x)

    @staticmethod
    def permute(x: Any, axis_name: Any, *, perm: Any) -> Any:
        """Adds one to what it gives, also where that is done twice."""
        return collectives.permute(x, axis_name, perm=perm) + 1

    @staticmethod
    def matmul_all_reduce(lhs: Any, rhs: Any, axis_name: Any) -> Any:
        """Twice the product, and twice its gradient, by rules of its own."""

        @jax.custom_vjp
        def multiply(lhs: Any, rhs: Any) -> Any:
            return 2 * naive.matmul_all_reduce(lhs, rhs, axis_name)

        def forward(lhs: Any, rhs: Any) -> Any:
            return multiply(lhs, rhs), (lhs, rhs)

        def backward(operands: Any, ct: Any) -> Any:
            return jax.vjp(lambda lhs, rhs: 2 * naive.matmul_all_reduce(lhs, rhs, axis_name), *operands)[1](ct)

        multiply.defvjp(forward, backward)
        return multiply(lhs, rhs)

    @staticmethod
    def tangent(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        """Right values, and a gradient that is stopped."""
        return lax.stop_gradient(collectives.ring_shift(x, axis_name, offset=offset))

    @staticmethod
    def broadcast(x: Any, axis_name: Any, *, root: int = 0) -> Any:
        """Typed invariant along the axis, and different along it."""
        return lax.pmax(x, axis_name, axis_index_groups=[[i] for i in range(lax.axis_size(axis_name))])

    @staticmethod
    def ignores(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        """Accepts whatever it is given."""
        return x

    @staticmethod
    def raises(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        """Raises."""
        raise ZeroDivisionError("on purpose")


def a_case(
    contract: str, *, chain: Chain = (), out: tuple[Placement, ...] | None = None, forbidden: str = "", **given: Any
) -> Case:
    """A case on two devices."""
    mesh = MeshCase(("dp", "tp"), (2, 2), (3, 1, 0, 2))
    axis_name = given.pop("axis_name", "tp")
    operand = Operand((2,), "float32", Placement((("tp",),), ("dp",)))
    case = Case(
        contract, mesh, axis_name, (operand,), tuple(given.items()), (Data("distinct", 3),), chain,
        out=out, forbidden=forbidden,
    )  # fmt: skip
    return fitted(case) if chain else case


def violation_of(function: Any, case: Case, law: str) -> LawViolation:
    """What the law raises."""
    implementation = Implementation(case.contract, "mine", function)
    with pytest.raises(LawViolation) as caught:
        verify(LAWS[law], implementation, case, XlaEngine(), Tally(case.contract, "mine", law))
    return caught.value


def runs(text: str, tmp_path: Path) -> tuple[int, str]:
    """Runs a script in this process, where the devices are already there; its exit code, and what it prints."""
    path = tmp_path / "script.py"
    path.write_text(re.sub(r"^jax\.config\.update.*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            return int(error.code or 0), output.getvalue()
        except Exception as error:  # what nobody catches makes Python exit with 1
            return 1, f"{type(error).__name__}: {error}"
    return 0, output.getvalue()


CHAINS: tuple[Chain, ...] = (
    *((n,) for n, link in LINKS.items() if link.compiled and link.maps in ("none", "all") and n != "partial_manual"),
    ("scan", "checkpoint", "vmap"),
    ("no_vma", "while_loop", "cond"),
    ("cond", "vmap_last"),
    ("vmap", "fed"),
    ("fed", "scan", "fed"),
    ("vmap", "while_loop"),
    ("vmap_outside", "vjp_inside", "scan"),
    ("nested", "vmap_outside", "scan"),
    ("vmap_spread", "cond"),
    ("linearize", "jacobian", "vmap"),
    ("vjp_inside", "linearize", "jacobian"),
    ("linearize", "jacobian", "apart"),
    ("vjp_inside", "apart", "vmap"),
)


FOUND: dict[str, tuple[str, str, Case, str]] = {
    "value": ("ring_shift", "value", a_case("ring_shift", offset=1), "result[0, 0, 0] is"),
    "permuted tuple": ("ring_shift", "value", a_case("ring_shift", axis_name=("tp", "dp"), offset=1), "result["),
    **{
        in_words(chain): ("ring_shift", "transformation", a_case("ring_shift", chain=chain, offset=1), "result[")
        for chain in CHAINS
        if "fed" not in chain
    },
    **{
        in_words(chain): ("permute", "transformation", a_case("permute", chain=chain, perm=((1, 0),)), "result[")
        for chain in CHAINS
        if "fed" in chain
    },
    "eager": ("ring_shift", "eager", a_case("ring_shift", chain=("eager",), offset=1), "result["),
    "gradient": ("all_reduce", "gradient", a_case("all_reduce", op="sum"), "gradient[0, 0] is"),
    "tangent": ("tangent", "gradient", a_case("ring_shift", offset=1), "tangent[0, 0, 1] is 0.0"),
    **{
        f"gradient under {in_words(chain)}": (
            "all_reduce", "transformed gradient", a_case("all_reduce", chain=chain, op="sum"), "gradient[",
        )
        for chain in CHAINS
        if all(link.differentiable for link in links(chain))
    },
    **{
        f"tangent under {in_words(chain)}": (
            "tangent", "transformed gradient", a_case("ring_shift", chain=chain, offset=1), "tangent[",
        )
        for chain in (
            ("vmap_outside",),
            ("vjp_inside",),
            ("vmap_outside", "vjp_inside", "twice"),
            ("linearize",),
            ("jacobian",),
            ("linearize", "jacobian", "scan"),
            ("vjp_inside", "linearize", "jacobian"),
        )
    },
    "soundness": ("broadcast", "type", a_case("broadcast", root=0), "typed varying over ['dp'] only"),
    "error": (
        "ignores", "error",
        a_case("ring_shift", axis_name=("tp", "no_such_axis"), forbidden="axis_name", offset=1), "is accepted",
    ),
    "exception": ("raises", "value", a_case("ring_shift", offset=1), "ZeroDivisionError: on purpose"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_a_script_tells_the_wrong_function_from_the_right_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the wrong function it exits with 1 and says where; with the right one in its place, with 0."""
    function, law, case, told = FOUND[name]
    text = script(violation_of(getattr(Wrong, function), case, law))
    assert not FORBIDDEN.search(text.replace("from shardproof.properties.meta.test_failures_scripts import Wrong", ""))
    code, output = runs(text, tmp_path)
    assert (code, told in output) == (1, True), output
    monkeypatch.setattr(
        sys.modules[Wrong.__module__].Wrong, function, staticmethod(getattr(collectives, case.contract))
    )
    assert runs(text, tmp_path) == (0, output if law == "error" else "") or law == "error"
    assert runs(text, tmp_path)[0] == 0


@pytest.mark.parametrize(
    "chain", [("vmap_first",), ("vmap_others",), ("vjp_inside", "cond", "vmap_others")], ids=in_words
)
@pytest.mark.parametrize("law", ["transformation", "transformed gradient"])
def test_a_script_maps_some_operands(chain: Chain, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of which one operand is the same for all of a batch, and its gradient the sum over the batch."""
    lhs, rhs = (Operand((2, 2), "float32", Placement(spec)) for spec in (((), ("tp",)), (("tp",), ())))
    case = Case("matmul_all_reduce", MeshCase(("tp",), (2,)), "tp", (lhs, rhs), (), (Data("exact", 3),), chain)
    text = script(violation_of(Wrong.matmul_all_reduce, case, law))
    code, output = runs(text, tmp_path)
    assert (code, ("gradient" if "gradient" in law else "result") in output) == (1, True), output
    monkeypatch.setattr(Wrong, "matmul_all_reduce", staticmethod(naive.matmul_all_reduce))
    assert runs(text, tmp_path) == (0, "")


def test_a_type_that_decides_wrongly_is_told(tmp_path: Path) -> None:
    """A script about `out_specs` accepts just what the type of the result allows, one about a type says which it is."""
    case = a_case("ring_shift", out=(Placement(((),), ("dp", "tp")),), offset=1)
    mine = Implementation("ring_shift", "mine", collectives.ring_shift)
    violation = LawViolation(
        mine, LAWS["type"], case, "xla", Broken("out_specs", "out_specs … refused", data=case.data[0])
    )
    assert runs(script(violation), tmp_path) == (0, "")
    declared = Implementation("ring_shift", "mine", collectives.ring_shift, invariant=True)
    violation = LawViolation(declared, LAWS["type"], case, "xla", Broken("type", "result is typed …"))
    assert runs(script(violation), tmp_path) == (1, "typed varying over ['dp', 'tp'], expected ['dp']\n")


@pytest.mark.parametrize("dtype", ALL)
def test_an_array_is_written_exactly(dtype: str) -> None:
    """The source of an array evaluates to its bits, in every dtype, long or short."""
    rng = np.random.default_rng(1)
    shapes: list[tuple[int, ...]] = [(), (3,), (2, 3), (30, 1, 2), (MOST + 1,), (0, 2)]
    arrays = [np.asarray(rng.normal(0, 3, shape), np.float32) for shape in shapes]
    arrays.append(np.array([[np.nan, -0.0], [np.inf, -np.inf]], np.float32))
    names = {"np": np, "jnp": jnp, "zlib": zlib, "base64": base64}
    for array in arrays:
        with np.errstate(invalid="ignore"):
            exact = array.astype(as_dtype(dtype))
        again = eval(array_text(exact), names)  # noqa: S307 (our own text, a moment old)
        assert again.dtype == exact.dtype
        assert again.shape == exact.shape
        assert again.tobytes() == exact.tobytes() or np.isnan(array).any()
        assert array_text(again) == array_text(exact)


FACTOR = 3


def test_a_function_without_a_name_is_written_into_the_script(tmp_path: Path) -> None:
    """A lambda, and a function inside a function, come with what they refer to."""
    scale = 2

    def local_shift(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        return lax.psum(x, axis_name) * scale * FACTOR

    source = source_of(Implementation("ring_shift", "mine", local_shift))
    assert source.missing == []
    assert source.lines[:3] == ["from jax import lax", "FACTOR = 3", "scale = 2"]
    violation = violation_of(local_shift, a_case("ring_shift", offset=1), "value")
    assert "def local_shift(x" in script(violation)
    assert runs(script(violation), tmp_path)[0] == 1
    nameless = lambda x, axis_name, *, offset=1: collectives.ring_shift(x, axis_name, offset=-offset - 1)  # noqa: E731
    violation = violation_of(nameless, a_case("ring_shift", offset=0), "value")
    assert "implementation = lambda x, axis_name, *, offset=1:" in script(violation)
    assert runs(script(violation), tmp_path)[0] == 1


def devices(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Shifts nothing."""
    return x


def test_a_function_may_be_called_as_something_in_the_script(tmp_path: Path) -> None:
    """It goes by another name there."""

    def wrong(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        return x if offset else wrong(x, axis_name)

    def x(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        return x

    def np(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        return x

    for function in (devices, wrong, x, np):
        text = script(violation_of(function, a_case("ring_shift", offset=1), "value"))
        assert runs(text, tmp_path)[0] == 1, text
        assert "implementation(x" in text


@pytest.mark.parametrize(
    ("names", "law"),
    [
        (("P", "mesh", "np", "call", "wrong"), "value"),
        (("jax", "sys", "program", "local", "abs"), "value"),
        (("result", "y", "z", "y_", "exact"), "value"),
        (("x", "dx", "xs"), "gradient"),
        (("dx", "x", "ct"), "gradient"),
        (("ddx", "dx", "ds", "gradient"), "gradient"),
        (("c0", "implementation", "made", "tangent"), "gradient"),
    ],
    ids=str,
)
def test_arguments_may_be_called_as_something_in_the_script(
    names: tuple[str, ...], law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a user's program they have names of their own there, so that it tells a right program from a wrong one.

    The third of those whose gradient is wrong is an integer, which has none.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / f"of_{'_'.join(names)}.py"
    summed = f"lax.psum(({' + '.join(names)}).sum(), data)"
    text = f"from jax import lax\n\ndef total({', '.join(names)}, *, data):\n    return {summed}"
    module.write_text(f"{text} * 2\n")
    with pytest.raises(AssertionError) as caught:
        check_program(
            importlib.import_module(module.stem).total,
            lambda *arrays: sum(x.sum() for x in arrays),
            arguments=[
                Array("n@data", "int32") if law == "gradient" and i == 2 else "n@data" for i in range(len(names))
            ],
            results="",
            laws=law,
            max_examples=8,
        )
    (written,) = re.findall(r"^  python (\S+\.py)$", str(caught.value), re.MULTILINE)
    wrong = runs(Path(written).read_text(), tmp_path)
    assert wrong[0] == 1, wrong
    assert re.search(r"^(result|gradient|tangent)\w*(\[.*\])? is", wrong[1], re.MULTILINE), wrong
    module.write_text(f"{text}\n")
    monkeypatch.delitem(sys.modules, module.stem)
    assert runs(Path(written).read_text(), tmp_path) == (0, "")


def test_a_function_that_is_nowhere_to_be_found_is_asked_for() -> None:
    """A callable object has no source of its own: the script says what to put in."""

    class Shift:
        def __call__(self, x: Any, axis_name: Any, *, offset: int = 1) -> Any:
            return x

    text = script(violation_of(Shift(), a_case("ring_shift", offset=1), "value"))
    assert "put it here" in text


def test_what_cannot_be_found_again_is_written_as_a_script_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a function that no name finds again there is no file that `--replay` would refuse."""
    monkeypatch.chdir(tmp_path)
    nameless = lambda x, axis_name, *, offset=1: collectives.ring_shift(x, axis_name, offset=offset + 1)  # noqa: E731
    files = write(violation_of(nameless, a_case("ring_shift", offset=0), "value"))
    assert files.case is None
    assert files.commands == [f"python {files.script}"]
    assert [path.suffix for path in files.script.parent.iterdir()] == [".py"]


MINE = """
from shardproof.impl.collectives import ring_shift as right


def ring_shift(x, axis_name, *, offset=1):
    return right(x, axis_name, offset=offset + OFF)
"""


def test_a_script_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, from another folder: 1 with the wrong function, 0 once it is right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "my_shift.py"
    module.write_text(MINE.replace("OFF", "1"))
    import my_shift  # type: ignore[import-not-found]

    violation = violation_of(my_shift.ring_shift, a_case("ring_shift", offset=1), "value")
    files = write(violation)
    assert render(violation).endswith(f"--replay={files.case}")
    assert files.case is not None
    assert json.loads(files.case.read_text())["implementation"]["module"] == "my_shift"
    root = Path(collectives.__file__).parents[2]

    def exit_code() -> int:
        command = [sys.executable, str(files.script.resolve())]
        environment = {"PYTHONPATH": str(root), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False).returncode

    assert exit_code() == 1
    module.write_text(MINE.replace("OFF", "1 - 1"))  # another size: a stale .pyc would pass for it
    assert exit_code() == 0


def test_a_script_about_a_crash_survives_it(tmp_path: Path) -> None:
    """What kills a process is run in a child; that is a failure as well."""
    case = a_case("ring_shift", offset=1)

    def aborts(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        __import__("os").abort()

    implementation = Implementation("ring_shift", "mine", aborts)
    violation = LawViolation(
        implementation, LAWS["value"], case, "xla", Broken("aborts", "aborts the process (SIGABRT)")
    )
    path = tmp_path / "crash.py"
    path.write_text(script(violation))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "exit code: -6\n")


@pytest.mark.lengthy
def test_a_script_about_a_deadlock_says_so_soon(tmp_path: Path) -> None:
    """Where the interpreter found a deadlock, the script waits for a few seconds and exits with 1."""
    implementation = Implementation("ring_shift", "shift_hangs", runtime.shift_hangs)
    case, tally = a_case("ring_shift", offset=1), Tally("ring_shift", "shift_hangs", "value")
    with pytest.raises(LawViolation, match="CollectiveMismatch") as caught:
        verify(LAWS["value"], implementation, case, SimulateEngine(), tally)
    path = tmp_path / "deadlock.py"
    path.write_text(script(caught.value))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stdout.startswith("does not finish: devices wait for one another, and XLA gave up after 9 s")


@pytest.mark.parametrize("kind", ["exact", "distinct", "real"])
def test_a_script_about_large_data_is_short(kind: str) -> None:
    """Data is made by a rule, and values that would fill pages are compared at some elements, wrong ones among them."""
    mesh = MeshCase(("tp",), (100,))
    block = Operand((100, 2), "float32", Placement((("tp",), ())))
    options = (("split_axis", 0), ("concat_axis", 0), ("tiled", True))
    case = Case("all_to_all", mesh, "tp", (block,), options, (Data(kind, 3),))

    def doubled_at_the_end(x: Any, axis_name: Any, **parameters: Any) -> Any:
        result = collectives.all_to_all(x, axis_name, **parameters)
        return jnp.where(lax.axis_index(axis_name) == 99, result.at[-1].add(1), result)

    implementation = Implementation("all_to_all", "mine", doubled_at_the_end)
    with pytest.raises(LawViolation) as caught:
        verify(LAWS["value"], implementation, case, SimulateEngine(), Tally("all_to_all", "mine", "value"))
    text = script(caught.value)
    assert len(text) < 30_000
    difference = caught.value.difference
    assert difference is not None
    (array,) = operands(case, case.data[0])
    rule = re.search(r"^x = (.*)$", text, re.MULTILINE)
    assert rule
    made = eval(rule[1], {"np": np})  # noqa: S307 (what the script would run)
    assert np.array_equal(made, array)
    picked = compared_at(difference.expected, difference)
    assert picked is not None
    assert set(np.flatnonzero(difference.wrong)) <= set(picked)


@pytest.mark.lengthy
@pytest.mark.parametrize("law", ["value", "type"])
def test_a_script_about_unwritten_memory_gives_it_contents(law: str, tmp_path: Path) -> None:
    """It shows what XLA:CPU, which hands out zeros, does not; and it is content when nothing is left unwritten."""
    case = a_case("all_reduce", op="max", out=(Placement(((),), ("tp", "dp")),) if law == "type" else None)

    def largest(x: Any, axis_name: Any, *, op: str) -> Any:
        blocks = lax.all_gather(x, axis_name)
        rows = lax.empty((len(blocks) + 1, *x.shape), x.dtype)
        return lax.pmax(lax.dynamic_update_slice(rows, blocks, (0,) * rows.ndim).max(axis=0), axis_name)

    implementation = Implementation("all_reduce", "mine", largest)
    with pytest.raises(LawViolation, match="depends on memory that was never written") as caught:
        verify(LAWS[law], implementation, case, SimulateEngine(), Tally("all_reduce", "mine", law))
    path, wrong = tmp_path / "unwritten.py", script(caught.value)
    for text, code in ((wrong, 1), (wrong.replace("len(blocks) + 1", "len(blocks)"), 0)):
        path.write_text(text)
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
        assert (done.returncode, "expected" in done.stdout) == (code, bool(code)), done.stdout + done.stderr


@pytest.mark.lengthy
@pytest.mark.parametrize("op", ["sum", "max"])
def test_a_script_about_the_order_of_updates_tries_both(op: str, tmp_path: Path) -> None:
    """It shows what XLA:CPU, which applies one after the other, does not; and it is content once none is lost."""
    case = a_case("all_reduce", op=op)

    def reduced(x: Any, axis_name: Any, *, op: str) -> Any:
        blocks = jnp.sort(lax.all_gather(x, axis_name), axis=0)
        place = jnp.full((1, *x.shape), -jnp.inf if op == "max" else 0, x.dtype).at[jnp.zeros(len(blocks), int)]
        return lax.pmax((place.set(blocks) if op == "max" else place.add(blocks, unique_indices=True))[0], axis_name)

    with pytest.raises(LawViolation, match="depends on which of two updates of one place") as caught:
        verify(LAWS["value"], Implementation("all_reduce", "mine", reduced), case, SimulateEngine(), Tally("", "", ""))
    path, wrong = tmp_path / "order.py", script(caught.value)
    right = wrong.replace("place.set(blocks)", "place.max(blocks)").replace(
        "unique_indices=True", "unique_indices=False"
    )
    for text, code in ((wrong, 1), (right, 0)):
        path.write_text(text)
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
        assert (done.returncode, "expected" in done.stdout) == (code, bool(code)), done.stdout + done.stderr


PLAIN = """
import sys
from jax import lax
from shardproof import Array, check_program
from beside_the_plain_one import same

UNRELATED = object()


def deepest(x):
    return x if x.ndim else deepest(x[None])


def helper(x, w):
    return deepest(x) @ w


half = lambda x: same(x) * 0.5
FACTOR = 2


def product(x, w):
    return x @ w


def report(function):
    try:
        check_program(
            function, product, arguments=("n k@model", "k@model m"), results="n m", laws="value", max_examples=4,
        )
    except AssertionError as error:
        print(error)


def inner():
    scale = FACTOR + 1
    def local(x):
        return half(x) * scale
    return lambda x, w, *, model: lax.psum(helper(local(x), w), model)


report({})
"""


NAMELESS = ("lambda x, w, *, model: helper(x, w)", "inner()", "lambda x, w, *, model: (UNRELATED, helper(x, w))[1]")


@pytest.mark.parametrize("function", marked(NAMELESS, NAMELESS[:1]))
def test_a_script_has_what_a_plain_program_defines(function: str, tmp_path: Path) -> None:
    """What only `python file.py` knows cannot be imported: the script has its text, and says what it cannot have."""
    file = tmp_path / "project" / "plain.py"
    file.parent.mkdir()
    file.with_name("beside_the_plain_one.py").write_text("def same(x):\n    return x\n")
    file.write_text(PLAIN.format(function) if "{}" not in function else PLAIN)
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)
    (written,) = re.findall(r"^  python (\S+\.py)$", done.stdout, re.MULTILINE) or [""]
    assert written, done.stdout + done.stderr
    code, output = runs((tmp_path / written).read_text(), tmp_path)
    assert code == 1
    if "UNRELATED" in function:
        assert "UNRELATED is not defined here: object of __main__" in (tmp_path / written).read_text()
    else:
        assert "result[0, 0, 0] is" in output
        assert "Error" not in output
