"""A script exits with 1 while the bug shows, with 0 once it is fixed, and with 2 if it cannot be run."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof import Array, check_program
from shardproof.impl import collectives
from shardproof.oracles.dtypes import ALL, as_dtype
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import Chain
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import Engine, SimulateEngine, XlaEngine
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import fit_chain
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.meta.runs import python, work_in
from shardproof.properties.meta.whole_programs import numpy_mlp
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.failures.files import Written, write
from shardproof.properties.report.scripts.script import script
from shardproof.properties.report.scripts.source import array_text, source_of
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.tally import Tally

ROOT = Path(collectives.__file__).resolve().parents[1]
NEEDED = re.compile(r"^\s*(?:from|import) shardproof\.(?:properties|oracles)\b", re.MULTILINE)

MINE = '''
"""A user's functions, each with a bug that the line below it repairs."""
import os
from functools import partial

import jax
from jax import lax
from shardproof.impl import collectives

RIGHT = False


def ring_shift(x, axis_name, *, offset=1):
    return collectives.ring_shift(x, axis_name, offset=offset + (not RIGHT))


def all_reduce(x, axis_name, *, op="sum"):
    """Right values, and twice the gradient."""
    if RIGHT:
        return collectives.all_reduce(x, axis_name, op=op)

    @jax.custom_vjp
    def reduce(x):
        return collectives.all_reduce(x, axis_name, op=op)

    reduce.defvjp(
        lambda x: (reduce(x), None),
        lambda _, ct: (2 * lax.pcast(collectives.all_reduce(ct, axis_name, op=op), axis_name, to="varying"),),
    )
    return reduce(x)


def tangent(x, axis_name, *, offset=1):
    y = collectives.ring_shift(x, axis_name, offset=offset)
    return y if RIGHT else lax.stop_gradient(y)


def broadcast(x, axis_name, *, root=0):
    """Typed invariant along the axis, and different along it."""
    if RIGHT:
        return collectives.broadcast(x, axis_name, root=root)
    return lax.pmax(x, axis_name, axis_index_groups=[[i] for i in range(lax.axis_size(axis_name))])


def ignores(x, axis_name, *, offset=1):
    return collectives.ring_shift(x, axis_name, offset=offset) if RIGHT else x


def there_and_back(x, axis_name, *, offset=1):
    if RIGHT:
        return collectives.ring_shift(x, axis_name, offset=offset)
    return collectives.ring_shift(collectives.ring_shift(x, axis_name, offset=1), axis_name, offset=offset - 1)


def raises(x, axis_name, *, offset=1):
    if not RIGHT:
        raise ZeroDivisionError("on purpose")
    return collectives.ring_shift(x, axis_name, offset=offset)


def aborts(x, axis_name, *, offset=1):
    if not RIGHT:
        os.abort()
    return collectives.ring_shift(x, axis_name, offset=offset)


def deadlocks(x, axis_name, *, offset=1):
    shift = lambda x: collectives.ring_shift(x, axis_name, offset=offset)
    return shift(x) if RIGHT else lax.cond(lax.axis_index(axis_name) == 0, shift, lambda x: x, x)


def unwritten(x, axis_name, *, op):
    blocks = lax.all_gather(x, axis_name)
    rows = lax.empty((len(blocks) + (not RIGHT), *x.shape), x.dtype)
    return lax.pmax(lax.dynamic_update_slice(rows, blocks, (0,) * rows.ndim).max(axis=0), axis_name)


def moved_on(x, axis_name, *, offset=1, by=0):
    return collectives.ring_shift(x, axis_name, offset=offset + by * (not RIGHT))


HELD = partial(moved_on, by=1)
PAIR = lambda x, axis_name, *, offset: x, lambda x, axis_name, *, offset: -x


class Shift:
    def ring_shift(self, x, axis_name, *, offset=1):
        return moved_on(x, axis_name, offset=offset, by=1)


SHIFT = Shift()
PARTS = {"partial": partial(moved_on, by=1), "method": SHIFT.ring_shift}


def mlp(x, w_in, w_out, *, data, model):
    """Without its sum a block that relu makes zero has no rounding at all."""
    y = jax.nn.relu(x @ w_in) @ w_out
    return lax.psum(y, model) if RIGHT else y
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of functions with bugs in the working directory, which can be imported by name."""
    work_in(tmp_path, monkeypatch, mine=MINE)
    return importlib.import_module("mine")


def a_case(contract: str, *, chain: Chain = (), out: tuple[Placement, ...] | None = None, **given: Any) -> Case:
    """A case on two participants of four devices."""
    forbidden, axis_name = given.pop("forbidden", ""), given.pop("axis_name", "tp")
    operand = Operand((2,), "float32", Placement((("tp",),), ("dp",)))
    mesh, data = MeshCase(("dp", "tp"), (2, 2), (3, 1, 0, 2)), (Data("distinct", 3),)
    case = Case(
        CONTRACTS[contract],
        mesh,
        axis_name,
        (operand,),
        tuple(given.items()),
        data,
        chain,
        out=out,
        forbidden=forbidden,
    )
    return fit_chain(case) if chain else case


def violation_of(
    function: Callable[..., Any] | Program, case: Case, law: str, engine: Engine | None = None, **said: Any
) -> LawViolation:
    """The violation of a law by a function."""
    name = getattr(function, "__name__", "mine")
    implementation = (
        function.implementation
        if isinstance(function, Program)
        else Implementation(CONTRACTS[case.contract.name], name, function, **said)
    )
    with pytest.raises(LawViolation) as caught:
        judge(LAWS[law], implementation, case, engine or SimulateEngine(), Tally(case.contract.name, "mine", law))
    return caught.value


def ran(files: Written) -> tuple[int, str]:
    """The exit code of a script that runs by itself, from another folder, and what it prints."""
    command = [sys.executable, str(files.script.resolve())]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


def repair(folder: Path) -> None:
    """Repairs the user's functions."""
    (folder / "mine.py").write_text(MINE.replace("RIGHT = False", "RIGHT = True"))


STANDALONE: dict[str, tuple[str, str, Case, str]] = {
    "value": ("ring_shift", "value", a_case("ring_shift", offset=1), "result[0] on (dp=0, tp=0) is"),
    "tuple": ("ring_shift", "value", a_case("ring_shift", axis_name=("tp", "dp"), offset=1), "result["),
    "eager": ("ring_shift", "value", a_case("ring_shift", chain=("eager",), offset=1), "result["),
    "scan": ("ring_shift", "value", a_case("ring_shift", chain=("scan", "vmap"), offset=1), "result["),
    "gradient": ("all_reduce", "gradient", a_case("all_reduce", op="sum"), "gradient[0] on (dp=0) is"),
    "tangent": ("tangent", "gradient", a_case("ring_shift", offset=1), "tangent[1] on (dp=0, tp=0) is 0.0"),
    "gradient of scan": (
        "all_reduce", "gradient", a_case("all_reduce", chain=("checkpoint", "scan"), op="sum"), "gradient[",
    ),
    "partial of a module": ("HELD", "value", a_case("ring_shift", offset=1), "result["),
    "partial": ("partial", "value", a_case("ring_shift", offset=1), "result["),
    "method": ("method", "value", a_case("ring_shift", offset=1), "result["),
    "many devices": (
        "ring_shift", "value",
        Case(CONTRACTS["ring_shift"], MeshCase(("tp",), (512,)), "tp",
             (Operand((1,), "float32", Placement((("tp",),))),), (("offset", 1),), (Data("distinct", 3),)), "result[",
    ),
}  # fmt: skip


@pytest.mark.lengthy
@pytest.mark.parametrize("name", STANDALONE)
def test_a_script_of_values_and_gradients_needs_no_shardproof(name: str, mine: Any, tmp_path: Path) -> None:
    """It imports JAX, NumPy and the function or its parts, exits with 1 and says where, with 0 after the repair."""
    function, law, case, message = STANDALONE[name]
    engine = XlaEngine() if "eager" in case.chain else SimulateEngine()
    files = write(violation_of(mine.PARTS.get(function) or getattr(mine, function), case, law, engine))
    assert not NEEDED.search(files.script.read_text())
    code, output = ran(files)
    assert (code, message in output) == (1, True), output
    repair(tmp_path)
    assert ran(files) == (0, "")


RUN_ALL = """
import runpy, sys
for script in sys.argv[1:]:
    try:
        runpy.run_path(script)
    except SystemExit as ended:
        print("exits with", ended.code)
"""
"""Runs several scripts for as many devices in one process."""


def test_a_script_allows_what_the_repaired_function_rounds(mine: Any, tmp_path: Path) -> None:
    """A sum that is missing is more than rounding: with it scripts exit with 0, whatever the data."""
    arguments = ("batch@data embed", "embed hidden@model", "hidden@model embed")
    program = Program(mine.mlp, numpy_mlp, arguments=arguments, results=arguments[0])
    blocks = ((3, 6), (("dp",), ())), ((6, 2), ((), ("tp",))), ((2, 6), (("tp",), ()))
    checked: tuple[tuple[str, Chain, str], ...] = (
        ("value", ("vmap",), "float32"),
        ("value", (), "bfloat16"),
        ("gradient", ("vmap",), "float32"),
    )
    scripts = []
    for (law, chain, dtype), seed in product(checked, (35, 37)):  # with the latter a derivative is close to a kink
        case = Case(
            program.contract,
            MeshCase(("dp", "tp"), (2, 3)),
            ("dp", "tp"),
            tuple(Operand(block, dtype, Placement(spec)) for block, spec in blocks),
            data=(Data("real", seed),),
            chain=chain,
            roles=(("data", "dp"), ("model", "tp")),
        )
        scripts.append(write(violation_of(program, case, law)).script)
    done = python("-c", RUN_ALL, *scripts, PYTHONPATH=str(ROOT))
    assert re.findall("^exits with .", done.stdout, re.MULTILINE) == ["exits with 1"] * len(scripts), done.stderr
    repair(tmp_path)
    done = python("-c", RUN_ALL, *scripts, PYTHONPATH=str(ROOT))
    assert done.stdout == "exits with 0\n" * len(scripts), done.stdout + done.stderr


CALLING: dict[str, tuple[str, str, Case, dict[str, Any]]] = {
    "type": ("broadcast", "type", a_case("broadcast", root=0), {}),
    "error": (
        "ignores", "error",
        a_case("ring_shift", axis_name=("tp", "no_such_axis"), forbidden="axis_name", offset=1), {},
    ),
    "communication": (
        "there_and_back", "communication", a_case("ring_shift", offset=1),
        {"communication": Expectation.parse("permute=1,bytes=n")},
    ),
    "exception": ("raises", "value", a_case("ring_shift", offset=1), {}),
    "deadlock": ("deadlocks", "value", a_case("ring_shift", offset=1), {}),
    "unwritten memory": ("unwritten", "value", a_case("all_reduce", op="max"), {}),
    "long chain": ("ring_shift", "value", a_case("ring_shift", chain=("cond", "vmap_last"), offset=1), {}),
}  # fmt: skip


@pytest.mark.lengthy
@pytest.mark.parametrize("name", CALLING)
def test_a_script_of_another_law_calls_shardproof(name: str, mine: Any, tmp_path: Path) -> None:
    """It loads the case that lies beside it, prints the report and exits with 1, and with 0 after the repair."""
    function, law, case, said = CALLING[name]
    violation = violation_of(getattr(mine, function), case, law, **said)
    files = write(violation)
    assert NEEDED.search(files.script.read_text())
    code, output = ran(files)
    assert (code, violation.headline in output) == (1, True), output
    repair(tmp_path)
    assert ran(files)[0] == 0
    files.case.write_text("{")
    code, output = ran(files)
    assert (code, "not JSON" in output) == (2, True), output


def crash(function: Callable[..., Any]) -> LawViolation:
    """The violation of a function that aborts its process."""
    broken = Broken("aborts", "aborts the process (SIGABRT)")
    mine = Implementation(CONTRACTS["ring_shift"], function.__name__, function)
    return LawViolation(mine, LAWS["value"], a_case("ring_shift", offset=1), "simulate", broken)


@pytest.mark.lengthy
def test_a_script_survives_a_crash(mine: Any, tmp_path: Path) -> None:
    """It runs a function that ends its process in another one, also where the script itself defines the function."""
    nameless = lambda x, axis_name, *, offset=1: __import__("os").abort()  # noqa: E731
    for function in (mine.aborts, nameless):
        files = write(crash(function))
        code, output = ran(files)
        assert (code, "aborts the process (SIGABRT)" in output) == (1, True), output
    files = write(crash(mine.aborts))
    repair(tmp_path)
    assert ran(files)[0] == 0


@pytest.mark.lengthy
def test_a_script_without_its_function_exits_with_2(mine: Any, tmp_path: Path) -> None:
    """A missing module says nothing about the bug."""
    files = [
        write(violation_of(mine.ring_shift, a_case("ring_shift", offset=1), "value")),
        write(violation_of(mine.broadcast, a_case("broadcast", root=0), "type")),
    ]
    (tmp_path / "mine.py").unlink()
    for one in files:
        code, output = ran(one)
        assert (code, "No module named 'mine'" in output) == (2, True), output
        assert f"to have mine found: PYTHONPATH=FOLDER python {one.script.resolve()}\n" in output


@pytest.mark.lengthy
def test_a_script_that_cannot_have_its_function_shows_nothing(mine: Any, tmp_path: Path) -> None:
    """It exits with 2 if its function has no source, or a part of it is no text, or if it raises."""
    case = a_case("ring_shift", offset=1)
    for function, message in (
        (mine.PAIR[0], "this script lacks the implementation"),
        (partial(mine.moved_on, by=np.int32(1)), "this script lacks implementation_by"),
    ):
        code, output = ran(write(violation_of(function, case, "value")))
        assert (code, message in output) == (2, True), output
    files = write(violation_of(mine.ring_shift, case, "value"))
    (tmp_path / "mine.py").write_text(MINE.replace("offset + (not RIGHT)", "offset / 0"))
    code, output = ran(files)
    assert (code, "ZeroDivisionError" in output) == (2, True), output


@pytest.mark.parametrize("dtype", ALL)
def test_an_array_is_written_exactly(dtype: str) -> None:
    """The source of an array evaluates to its bits, in every dtype, long or short."""
    rng = np.random.default_rng(1)
    shapes: list[tuple[int, ...]] = [(), (3,), (2, 3), (30, 1, 2), (700,), (0, 2)]
    arrays = [np.asarray(rng.normal(0, 3, shape), np.float32) for shape in shapes]
    arrays.append(np.array([[np.nan, -0.0], [np.inf, -np.inf]], np.float32))
    names = {"np": np, "jnp": jnp}
    for array in arrays:
        with np.errstate(invalid="ignore"):
            exact = array.astype(as_dtype(dtype))
        again = eval(array_text(exact), names)  # noqa: S307 (our own text, a moment old)
        assert (again.dtype, again.shape) == (exact.dtype, exact.shape)
        assert again.tobytes() == exact.tobytes() or np.isnan(array).any()


FACTOR = 3


def test_a_function_without_a_name_is_written_into_the_script() -> None:
    """A lambda, and a function inside a function, come with what they refer to."""
    scale = 2

    def local_shift(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
        return lax.psum(x, axis_name) * scale * FACTOR

    source = source_of(local_shift)
    assert (source.name, source.missing) == ("implementation", [])
    assert [line.strip() for line in source.lines[1:4]] == ["from jax import lax", "FACTOR = 3", "scale = 2"]
    assert "def local_shift(x" in script(violation_of(local_shift, a_case("ring_shift", offset=1), "value"))
    nameless = lambda x, axis_name, *, offset=1: collectives.ring_shift(x, axis_name, offset=-offset - 1)  # noqa: E731
    text = script(violation_of(nameless, a_case("ring_shift", offset=0), "value"))
    assert "implementation = lambda x, axis_name, *, offset=1:" in text


NAMES = [(("P", "mesh", "np", "x0", "x1"), "value"), (("dx0", "jax", "x", "ct0", "gradient"), "gradient")]


@pytest.mark.lengthy
@pytest.mark.parametrize(("names", "law"), NAMES, ids=str)
def test_arguments_may_be_called_as_something_in_the_script(
    names: tuple[str, ...], law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They, and the function, go by other names; a third argument of integers has no gradient."""
    module = work_in(tmp_path, monkeypatch) / f"of_{'_'.join(names)}.py"
    total = f"lax.psum(({' + '.join(names)}).sum(), data)"
    text = f"from jax import lax\n\ndef differs({', '.join(names)}, *, data):\n    return {total}"
    module.write_text(f"{text} * 2\n")
    with pytest.raises(AssertionError) as caught:
        check_program(
            importlib.import_module(module.stem).differs,
            lambda *arrays: sum(x.sum() for x in arrays),
            arguments=[Array("n@data", "int32") if (law, i) == ("gradient", 2) else "n@data" for i in range(5)],
            results="",
            laws=law,
            max_examples=40,
        )
    (path,) = re.findall(r"^  python (\S+\.py)$", str(caught.value), re.MULTILINE)
    files = Written(Path(path), Path(), Path(), "")
    code, output = ran(files)
    assert (code, bool(re.search(r"^(result|gradient|tangent)\w*(\[.*\])?( on \(.*\))? is", output, re.MULTILINE))) == (
        1,
        True,
    ), output
    module.write_text(f"{text}\n")
    assert ran(files) == (0, "")


@pytest.mark.lengthy
def test_a_program_without_a_name_is_written_into_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions, arrays and options stand in the script, which checks the recorded case of it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="communication") as caught:
        check_program(
            lambda x, n, *, data: lax.psum(x.sum(0) + 0 * n.sum(), data),
            lambda x, n: x.sum(0),
            arguments=(Array("batch@data k", least=0), Array("batch@data", "int32", below="k")),
            results="k",
            communication="all_reduce=0",
            laws="communication",
            max_examples=40,
        )
    (path,) = re.findall(r"^  python (\S+\.py)$", str(caught.value), re.MULTILINE)
    assert "--replay" not in str(caught.value)
    code, output = ran(Written(Path(path), Path(), Path(), ""))
    assert (code, "communication: mesh" in output) == (1, True), output
