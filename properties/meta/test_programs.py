"""A user's own programs: right ones of many kinds pass, and a bug in each is reported on two devices."""

import dataclasses
import inspect
import re
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.described import Array
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.meta.brief import marked
from shardproof.properties.meta.drawn import drawn
from shardproof.properties.meta.pages import README, block
from shardproof.properties.meta.runs import PYTEST, pytest_run, python
from shardproof.properties.meta.whole_programs import PROGRAMS, Written, mlp, numpy_mlp
from shardproof.properties.programs.violation import Broken, NothingToCompare
from shardproof.properties.report.checking import check_program
from shardproof.properties.report.failures.text import render
from shardproof.properties.report.summary import verdict_row, verdict_table
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.search import find_violation
from shardproof.properties.runner.tally import Tally

MLP: dict[str, Any] = {
    "arguments": ("batch@data embed", "embed hidden@model", "hidden@model embed"),
    "results": "batch@data embed",
}


BRIEF = ("mlp",)
"""Those that are tried in every run."""


def checked(written: Written, function: Any, **more: Any) -> Any:
    """The summary of `check_program` on a function in place of the written program's."""
    described: Any = {"arguments": written.arguments, "results": written.results}
    return check_program(function, written.reference, **described, **written.more, **more)


@pytest.mark.parametrize("name", marked(PROGRAMS, BRIEF))
def test_a_right_program_passes(name: str) -> None:
    """Every law holds for a right program or does not apply to it."""
    summary = checked(PROGRAMS[name], PROGRAMS[name].right, max_examples=12)
    assert {tally.outcome for tally in summary.tallies} <= {"passed", "skipped"}
    assert {tally.law for tally in summary.tallies if tally.outcome == "passed"} >= {"value", "agreement"}
    assert any(tally.drawn["transformations"].keys() != {"none"} for tally in summary.tallies if tally.structures)


@pytest.mark.parametrize("name", marked(PROGRAMS, BRIEF))
def test_a_wrong_program_is_reported(name: str) -> None:
    """A wrong program is reported by name on at most one sharded axis of two devices."""
    written = PROGRAMS[name]
    with pytest.raises(AssertionError) as raised:
        checked(written, written.wrong, max_examples=200, laws=written.law)
    headline = str(raised.value).partition("\n")[0]
    assert headline.startswith(f"{written.wrong.__name__}: ")
    sizes = re.search(r"mesh \(([^)]*)\)", headline)
    assert sizes is not None
    devices = [int(n) for n in re.findall(r"=(\d+)", sizes[1])]
    assert sorted(devices)[-1] <= 2
    assert sum(n > 1 for n in devices) <= 1


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("function", "reference", "arguments", "results", "text"),
    [
        (
            PROGRAMS["mlp"].wrong,
            PROGRAMS["mlp"].reference,
            PROGRAMS["mlp"].arguments,
            PROGRAMS["mlp"].results,
            "partial sums: added up over model the blocks are right",
        ),
        (
            lambda x, w, *, data: ((x @ w) ** 2).mean(),
            lambda x, w: ((x @ w) ** 2).mean(),
            ("batch@data k", "k n"),
            "",
            "partial means: averaged over data the blocks are right",
        ),
    ],
    ids=["sum", "mean"],
)
def test_a_missing_reduction_is_named_with_its_role(
    function: Any, reference: Any, arguments: Any, results: Any, text: str
) -> None:
    """Blocks whose sum or average over a role is right are reported as partial sums or means over that role."""
    with pytest.raises(AssertionError) as raised:
        check_program(function, reference, arguments=arguments, results=results, max_examples=100, laws="value")
    assert f"  {text}\n" in str(raised.value)


@pytest.mark.lengthy
def test_the_script_of_a_program_runs_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of a failing program, with trees, roles and global arrays, exits with 1."""
    monkeypatch.chdir(tmp_path)
    for name in ("mlp", "step", "whole"):
        with pytest.raises(AssertionError):
            checked(PROGRAMS[name], PROGRAMS[name].wrong, max_examples=100, laws=["value"])
    scripts = sorted((tmp_path / ".shardproof" / "failures").glob("*.py"))
    assert len(scripts) >= 3
    for script in scripts:
        ended = python(script)
        assert ended.returncode == 1, (script, ended.stderr)
        assert "result" in ended.stdout


def first_half(x: Any, *, data: Any) -> Any:
    """The bug is that the second half of the participants holds zeros."""
    return jnp.where(lax.axis_index(data) < 1, x, jnp.zeros_like(x))


def test_an_element_is_reported_by_its_global_index_and_its_owner(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is that in the whole array, and the coordinates of the device stand apart from it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError) as raised:
        check_program(first_half, lambda x: x, arguments=("n@data",), results="n@data", laws="value", max_examples=20)
    text = str(raised.value)
    assert re.search(
        r"wrong element: result\[1\] is 0.0, .*\n    it is element \[0\] of the block of device 1, \(\w+=1\)", text
    )
    (script,) = re.findall(r"^  python (\S+)$", text, re.MULTILINE)
    assert re.match(r"result\[0\] on \(\w+=1\) is 0.0, expected ", python(script).stdout)
    assert (tmp_path / ".shardproof" / ".gitignore").read_text() == "*\n"


def right_always(results: Any, x: Any, w_in: Any, w_out: Any) -> bool:
    """A predicate that accepts everything."""
    return True


HELD: dict[str, Any] = {"reference": None, "holds": right_always}
MISSPELT = ("batch@dta embed", "embed hidden@model", "hidden@model embed")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arguments": "batch@data embed"}, "arguments='batch@data embed': expected a description for each argument"),
        ({"arguments": ("batch@data",)}, "cannot be called as mlp(<x>, data=): missing a required argument"),
        ({"arguments": ("batch-1", "a b", "b c")}, "x: array 'batch-1': 'batch-1': expected NAME, NAME@ROLE"),
        ({"arguments": ("a@data b@data", "b c", "c d")}, "x: array 'a@data b@data': expected each role to shard one"),
        ({"arguments": (3, "b c", "c d")}, "x=3: expected dimensions in a string, an Array, or a pytree of them"),
        ({"arguments": ("a b", "b c", "c d"), "results": "a d"}, "expected a role that shards a dimension"),
        ({"results": "batch@data"}, "result: the reference returns shape (2, 3): expected (2,), 'batch@data', of arg"),
        (
            {"results": "batch@data embd"},
            "of arguments of shapes (2, 3), (3, 4), (4, 3); no argument or option has embd: did you ",
        ),
        ({"results": {"y": "batch@data embed"}}, "the reference returns *: expected {'y': *}, as results are"),
        (
            {"arguments": (Array("n@data", "int32", below="rows"), "a b", "b c")},
            "x: below='rows': expected a dimension",
        ),
        ({"one_axis": ["expert"]}, "one_axis: 'expert': expected some of data, model"),
        ({"sizes": {"heads": 4}}, "sizes: 'heads': expected some of batch, embed, hidden"),
        ({"dtypes": ["float"]}, "dtype='float': expected one of"),
        ({"powers_of_two": ["expert"]}, "powers_of_two: 'expert': expected some of data, model"),
        (
            {"options": {"scale": (0.5, [1])}},
            "options: scale=[1]: expected None, a bool, a finite number, a short text",
        ),
        ({"options": {"op": "sum"}}, "options: op='sum': expected the values to draw from, such as ('sum',)"),
        ({"optional": ["expert"]}, "optional: 'expert': expected some of data, model"),
        ({"optional": ["model"], "one_axis": ["model"]}, "optional: 'model': expected none of one_axis"),
        ({"sizes": {"embed": -1}}, "sizes: embed=-1: expected a whole number of at least 1"),
        (
            {"sizes": {"embed": (8, 7)}, "multiples": {"embed": 2}},
            "sizes: embed=7, multiples: embed=2: expected a size that is a multiple",
        ),
        ({"arguments": ("batch@data 2", "2 m@model", "m@model 2"), "sizes": {"2": 4}}, "sizes: '2': expected some of"),
        ({"most_devices": 0}, "most_devices=0: expected a whole number of at least 1"),
        ({"random_seed": -1}, "random_seed=-1: expected"),
        ({"serves": lambda heads: True}, "serves: 'heads': expected parameters out of batch, embed, hidden, data"),
        (
            {"check_vma": False, "differentiates": True},
            "check_vma=False, differentiates=True: with unchecked types JAX has wrong gradients",
        ),
        ({"check_vma": False, "whole": True}, "check_vma=False, whole=True: a function of global arrays says it in"),
        ({"sizes": {"embed": 10**9}}, "sizes: embed=1000000000: x, 'batch@data embed', has 1,000,000,000 elements at"),
        ({"sizes": ("embed", 8)}, "sizes=('embed', 8): expected a dict, by names"),
        ({"roles": 3}, "roles=3: expected a name, some names, or None for the default"),
        ({"whole": "yes"}, "whole='yes': expected True or False"),
        ({"serves": 3}, "serves=3: expected a function"),
        ({"arguments": (np.ones((9, 99)), "b", "c")}, "…: expected dimensions in a string, an Array, or a pytree"),
        ({"laws": ["values"]}, "laws='values': no such law; did you mean 'value'"),
        ({"result": "n"}, "result: check_program has no such argument; did you mean 'results'?"),
        ({"max_example": 1}, "max_example: check_program has no such argument; did you mean 'max_examples'?"),
        ({"engines": ("xl",)}, "engines: check_program has no such argument; it runs on simulate and xla"),
        ({"bogus": 1}, "bogus: check_program has no such argument; expected some of arguments, results, holds, whole"),
        ({"arguments": MISSPELT}, "; arguments: role 'dta': did you mean 'data'?"),
        (
            {"arguments": MISSPELT, "function": lambda a, b, c, /, *, model, eps=1: a},
            "; arguments: role 'dta': expected a parameter 'dta' of the function",
        ),
        ({"roles": ["expert"]}, "; roles: role 'expert': expected a parameter 'expert' of the function"),
        ({"results": "batch@dta embed"}, "got an unexpected keyword argument 'dta'; results: role 'dta': did you mean"),
        (
            {"reference": None},
            "reference: expected the same function on whole arrays, or holds=, a predicate",
        ),
        ({"holds": right_always}, "reference, holds: both given: expected the same on whole arrays, or a predicate"),
        ({"reference": None, "holds": lambda y: True}, "cannot be called as holds(results, x, w_in, w_out): too many"),
        ({**HELD, "gradients": True}, "gradients=True, holds: expected a reference besides"),
        ({**HELD, "within": 0.1}, "within=0.1, holds: expected a reference besides"),
        ({**HELD, "results": "rows embed"}, "results: 'rows': expected a dimension of an argument, an option, or a"),
        ({"reference": None, "holds": 3}, "holds=3: expected a function"),
        ({"accumulator": "bfloat16"}, "accumulator='bfloat16': expected 'float32' or 'float64'"),
        ({"within": 2}, "within=2: expected a part of the largest number, such as 0.01"),
        ({"within": "1%"}, "within='1%': expected a part"),
        ({"within": 0.1, "relative_to": "column"}, "relative_to='column': expected 'array' or 'row'"),
        ({"results": Array("batch embed", only={"expert": 0})}, "only: 'expert': expected some of data, model"),
        ({"arguments": (Array("a", only={"data": 0}), "b", "c")}, "only: expected of results alone"),
        ({"whole": True, "results": Array("batch embed", only={"data": 0})}, "only, whole=True: a function of global"),
        (
            {"results": "batch@data k@model", "options": {"k": (1, 2)}},
            "results: 'k' is an option: expected no role, which may not divide it",
        ),
        ({"data": "scaled"}, "data='scaled': expected some of exact, real, special, nan, large, which programs have"),
    ],
)
def test_a_description_that_cannot_be_used_is_one_line(changed: dict[str, Any], message: str) -> None:
    """A wrong description is refused in one line with the argument, its value and what was expected."""
    given = {"function": mlp, "reference": numpy_mlp, **MLP, **changed}
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        check_program(**given)
    assert "\n" not in str(raised.value)
    assert "inspect.py" not in "".join(traceback.format_exception(raised.value))


def test_parts_of_listed_sizes_are_multiples() -> None:
    """Of listed sizes those are drawn whose part on each device is a multiple as well."""
    described: Any = {"arguments": ("n@data",), "results": "n@data", "sizes": {"n": 12}, "multiples": {"n": 4}}
    program = Program(lambda x, *, data: x, lambda x: x, **described)
    assert {case.operands[0].block for case in drawn(program.contract.cases(Scope(8, 8)), 30)} == {(4,), (12,)}


def gather_largest(x: Any, *, tp: Any, k: int) -> Any:
    """The k largest of each row, whose columns are sharded."""
    return lax.top_k(lax.all_gather(x, tp, axis=1, tiled=True), k)[0]


def largest(x: Any, *, k: int, more: int = 0) -> Any:
    """The same of whole arrays, and some more."""
    return lax.top_k(x, k + more)[0]


def test_a_dimension_of_results_may_be_an_option() -> None:
    """Results have as many elements as an option says, with a reference and with a predicate."""
    described: Any = {"arguments": ("rows n@tp",), "results": "rows k", "options": {"k": (3, 1)}, "sizes": {"n": 12}}
    for reference, holds in ((largest, None), (None, lambda y, x, *, k: y.shape == (len(x), k))):
        program = Program(gather_largest, reference, holds=holds, **described)
        for case in drawn(program.contract.cases(Scope(1, 1)), 4):
            x = np.ones((*case.mesh.sizes, *case.operands[0].block), case.operands[0].numpy_dtype)
            (found,) = program.contract.oracle.value(case, [x])
            assert found.shape == (*case.mesh.sizes, case.operands[0].block[0], case.keywords["k"])
    with pytest.raises(ValueError, match=r"returns shape \(2, 5\): expected \(2, 3\), 'rows k'"):
        _ = Program(gather_largest, partial(largest, more=2), **described).contract


def test_a_size_is_no_parameter_of_a_predicate() -> None:
    """A predicate of cases may have dimensions of arguments, roles and options, which messages list, and no sizes."""
    described: Any = {"arguments": ("2 batch@tp",), "results": "2 batch@tp", "options": {"k": (1, 2)}}
    program = Program(lambda x, *, tp, k: x, lambda x, *, k: x, **described)
    assert program.named == ["batch", "tp", "k"]
    wrong = Broken("raises", "raises ValueError: batch=1")
    (case,) = drawn(program.contract.cases(Scope(1, 1)), 1)
    violation = LawViolation(program.implementation, LAWS["value"], case, "simulate", wrong, origin=["f"])
    assert render(violation).endswith("or serves=, a predicate of any of batch, tp, k")


def test_what_is_excluded_has_the_share_of_what_was_drawn() -> None:
    """The share of what is excluded is that of all draws, without those of shrinking; a violated law has none."""
    described: Any = {"arguments": ("n@data",), "results": "n@data", "serves": lambda n, data: n == 3 * data}
    wrong = Program(lambda x, *, data: 2 * x, lambda x: x, **described).implementation
    on: Any = (wrong, engine_named("simulate"), Scope(8, 8))
    found = [find_violation([LAWS["value"]], *on, max_examples=2, shrink=shrink) for shrink in (False, True)]
    first, shrunk = (one.tallies["value"].excluded for one in found)
    assert first == shrunk > 0
    passed = Tally("f", "f", "value", structures=1, excluded=3)
    assert verdict_row(passed)[-1] == "3 (75% of all)"
    assert verdict_row(dataclasses.replace(passed, outcome="failed"))[-1] == "3"
    assert verdict_row(Tally("f", "f", "value", outcome="unchecked", excluded=3))[-1] == "3"
    nothing = Tally("f", "f", "communication", outcome="skipped", not_run={NothingToCompare.TEXT: 2})
    assert "communication" not in verdict_table([passed, nothing])


def test_a_wrong_description_names_its_line() -> None:
    """A program that cannot be described, or whose reference cannot be called, is named by file and line."""
    with pytest.raises(ValueError, match=r"\(the Program at .*test_programs\.py:\d+\)$"):
        Program(mlp, numpy_mlp, **MLP | {"arguments": "batch"})
    program = Program(mlp, lambda x: x, **MLP)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"TypeError: .* \(the Program at [^()]*test_programs\.py:{line}\)$"):
            _ = program.implementation


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dimensions": 3}, "dimensions=3: expected a string, such as 'batch@data features'"),
        ({"only": "data"}, "only='data': expected participants by roles, such as {'stage': -1}"),
        ({"gradient": "no"}, "gradient='no': expected True or False"),
        (
            {"dtype": "key<fry>"},
            (
                "dtype='key<fry>': no random key is drawn: describe its words, Array('2', 'uint32'), and call "
                "jax.random.wrap_key_data in both functions"
            ),
        ),
        ({"dtype": "int32", "below": 10**12}, "below='1000000000000': expected integers of int32 below it"),
        ({"only": {"data": "last"}}, "only={'data': 'last'}: data='last': expected a participant's number, such as -1"),
        ({"only": {"data": 0}}, "array 'n@data': only={'data': 0}: expected roles that do not shard it"),
    ],
)
def test_an_array_that_cannot_be_is_one_line(given: dict[str, Any], message: str) -> None:
    """A wrong argument of an `Array` is named with its value and what was expected."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Array(**{"dimensions": "n@data", **given})


@pytest.mark.lengthy
def test_a_function_may_be_described_again() -> None:
    """A second description of a function is checked by itself, without results of the first."""
    right: dict[str, Any] = {"arguments": ("n@data",), "max_examples": 3, "laws": "value", "dtypes": ["float32"]}
    check_program(doubled, lambda x: 2 * x, results="n@data", **right)
    with pytest.raises(AssertionError, match=r"doubled: value: .* wrong"):
        check_program(doubled, lambda x: 3 * x, results="n@data", **right)
    with pytest.raises(AssertionError, match=r"returns .*: expected a tree like"):
        check_program(doubled, lambda x: {"y": 2 * x}, results={"y": "n@data"}, **right)
    listed = r"returns \[float32.*\]: expected a tree like \('result\[0\]', 'result\[1\]'\); a list is no tuple"
    both: Any = {"results": ("n@data", "n@data")}
    with pytest.raises(AssertionError, match=listed):
        check_program(lambda x, *, data: [x, x], lambda x: (x, x), **both, **right)
    with pytest.raises(
        ValueError,
        match=r"the reference returns \[\*, \*\]: expected \(\*, \*\), .*; a list is no tuple \(the P",
    ):
        check_program(lambda x, *, data: (x, x), lambda x: [x, x], **both, **right)


def doubled(x: Any, *, data: Any) -> Any:
    """Twice each element."""
    return 2 * x


def test_a_function_that_takes_gradients_is_seen() -> None:
    """Second derivatives are checked only where they are asked for, and no case is drawn with unchecked types."""

    @jax.custom_vjp
    def square(x: Any) -> Any:
        return x**2

    def step(w: Any, x: Any, *, data: Any) -> Any:
        return w - jax.grad(lambda w: lax.psum(square(x * w).sum(), data))(w)

    def whole(w: Any, x: Any) -> Any:
        return w - 2 * w * (x**2).sum()

    square.defvjp(lambda x: (x**2, x), lambda x, ct: (lax.stop_gradient(2 * x) * ct,))
    described: Any = {"arguments": ("", "n@data"), "results": "", "dtypes": "float32", "max_examples": 48}
    summary = check_program(step, whole, **described | {"max_examples": 6})
    assert {tally.outcome for tally in summary.tallies} <= {"passed", "skipped"}
    assert "gradient" not in {tally.law for tally in summary.tallies}
    assert "differentiates, so that no second derivatives are checked" in str(summary)
    with pytest.raises(AssertionError, match="step: gradient: "):
        check_program(step, whole, **described, gradients=True, laws="gradient")


@pytest.mark.lengthy
def test_a_gradient_taken_inside_is_guessed() -> None:
    """A right step that takes gradients by an option, and fails with unchecked types, is reported with a hint."""

    def step(weights: Any, batch: Any, *, data: Any, trains: bool) -> Any:
        return written.right(weights, batch, data=data) if trains else (weights, batch["x"].sum() * 0)

    def whole(weights: Any, batch: Any, *, trains: bool) -> Any:
        return written.reference(weights, batch) if trains else (weights, batch["x"].sum() * 0)

    written = PROGRAMS["step"]
    described: Any = {"arguments": written.arguments, "results": written.results, "options": {"trains": (False, True)}}
    with pytest.raises(AssertionError, match="JAX has wrong gradients of sums") as raised:
        check_program(step, whole, **described, laws="value", max_examples=800)
    text = str(raised.value)
    hint = text.index("if step takes gradients, say differentiates=True, and no such case is drawn")
    assert hint < text.index("first wrong element: "), "what may be no bug comes before what is wrong"


def test_a_role_may_shard_nothing() -> None:
    """A role that shards no dimension is passed to the function."""
    summary = check_program(
        lambda x, *, data, model: lax.pmean(2 * x, model) if data else x,
        lambda x: 2 * x,
        arguments=("n@data",),
        results="n@data",
        roles=["model"],
        max_examples=6,
        laws=["value", "gradient"],
    )
    assert {tally.outcome for tally in summary.tallies} == {"passed"}


def test_a_reference_that_cannot_be_called_is_reported() -> None:
    """A reference that cannot be called is reported with its exception and its arguments."""
    with pytest.raises(ValueError, match=r"called with x\[2, 3\] \('batch@data embed'\), .*, and no role: TypeError"):
        check_program(mlp, lambda x: x, **MLP)
    flat = ("batch@data", *MLP["arguments"][1:])
    at = r"with x\[2\] \('batch@data'\), w_in\[3, 4\] .*: ValueError in `.*x @ w_in.*`: matmul: "
    with pytest.raises(ValueError, match=at):
        check_program(mlp, numpy_mlp, **MLP | {"arguments": flat})


SERVED: dict[str, tuple[Any, dict[str, Any]]] = {
    "participants": (lambda x, **_: x.shape[0] > 1, {"arguments": ("@data k",), "serves": lambda data: data > 1}),
    "long": (lambda x, **_: x.shape[0] >= 64, {"serves": lambda n: n >= 64 and n % 4 == 0}),
    "option": (
        lambda x, heads: x.shape[1] % heads == 0,
        {"options": {"heads": (7, 2)}, "sizes": {"k": (4, 8)}, "serves": lambda k, heads: k % heads == 0},
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_reference_is_tried_with_what_is_served(name: str) -> None:
    """A reference that refuses what `serves` excludes, one participant or some sizes, is called with nothing else."""
    accepts, more = SERVED[name]

    def reference(x: Any, **options: Any) -> Any:
        if not accepts(x, **options):
            raise ValueError(f"{x.shape}, {options}")
        return 2 * x

    given = {"arguments": ("n@data k",), "laws": "value", "max_examples": 4, **more}
    summary = check_program(
        lambda x, *, data, heads=1: 2 * x, reference, results=given["arguments"][0], dtypes="float32", **given
    )
    assert "passed" in {tally.outcome for tally in summary.tallies}


@pytest.mark.lengthy
def test_the_example_of_the_readme_is_what_happens(tmp_path: Any) -> None:
    """The README's program passes, and without its sum it fails, both in the words printed there."""
    code = block(README, "program", "python").replace("    check_program(", "    print(check_program(")
    code = code.rstrip() + ")\n"
    shown = block(README, "program-failure", "text").rstrip()
    wrong = code.replace("jax.lax.psum(jax.nn.relu(x @ w_in) @ w_out, model)", "jax.nn.relu(x @ w_in) @ w_out")
    assert wrong != code
    (tmp_path / "test_mlp.py").write_text(code)
    passed = python(*PYTEST, "-qs", "test_mlp.py", folder=tmp_path)
    assert passed.returncode == 0
    assert block(README, "program-summary", "text") in passed.stdout, passed.stdout
    (tmp_path / "test_mlp.py").write_text(wrong)
    ended = python(*PYTEST, "-q", "test_mlp.py", folder=tmp_path)
    assert ended.returncode == 1, ended.stdout
    printed = "\n".join(line.removeprefix("E").removeprefix("       ") for line in ended.stdout.split("\n"))
    assert shown.removeprefix("AssertionError: ") in printed.replace("AssertionError: ", "")


@pytest.mark.lengthy
def test_the_tests_of_the_readme_run(tmp_path: Path) -> None:
    """The README's tests of a program pass by the names printed there."""
    code = block(README, "program", "python") + block(README, "program-tests", "python")
    short = code.replace("program_test(MLP)", "program_test(MLP, laws=['value', 'gradient'], max_examples=8)")
    assert short != code
    (tmp_path / "test_mlp.py").write_text(short)
    done = pytest_run("-v", "-k", "test_laws", folder=tmp_path)
    for engine in ("simulate", "xla"):
        assert f"test_mlp.py::test_laws[{engine}] PASSED" in done.stdout, done.stdout
        for law in ("value", "gradient"):
            assert re.search(rf"^{law} +{engine} +held", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.lengthy
def test_what_is_stated_is_in_the_summary() -> None:
    """The summary names stated limits, and no draw is spent on cases that they exclude."""
    written = PROGRAMS["from_before"]
    summary = checked(written, written.right, max_examples=16)
    assert {tally.law for tally in summary.tallies}.isdisjoint({"type", "gradient"})
    text = "stated, so nothing else was drawn: from_before: check_vma=False, so that no types are checked"
    assert text in str(summary)
    assert "and no gradients" in str(summary)
    with pytest.raises(AssertionError, match=r"from_before: type: .* raises TypeError"):
        checked(dataclasses.replace(written, more={}), written.right, laws="type", max_examples=40)
    written = PROGRAMS["butterfly"]
    summary = checked(written, written.right, laws="value", max_examples=64)
    assert "stated, so nothing else was drawn: butterfly: one_axis: data; powers_of_two: data" in str(summary)
    assert all(tally.excluded == 0 and tally.structures > 0 for tally in summary.tallies)
    meshes = {size for tally in summary.tallies for size in re.findall(r"=(\d+)", " ".join(tally.meshes))}
    assert {"2", "4"} < meshes


@pytest.mark.lengthy
def test_what_a_function_refuses_is_reported_unless_it_is_stated() -> None:
    """An exception on an unstated limit is a violation that says how to state it; `serves` excludes such cases."""
    written = PROGRAMS["butterfly"]
    unstated = dataclasses.replace(written, more={"one_axis": ["data"]})
    with pytest.raises(AssertionError) as raised:
        checked(unstated, written.right, laws="value", max_examples=100)
    headline = "butterfly: value: mesh (dp=3), data='dp': raises ValueError: data='dp': 3 participants: expected"
    assert str(raised.value).startswith(headline)
    assert "\n  if butterfly does not support such a case, say what it needs, and no other is drawn: one_axis," in str(
        raised.value
    )
    (script,) = re.findall(r"\n  python (\S+\.py)", str(raised.value))
    ended = python(script)
    assert (ended.returncode, "expected a power of two" in ended.stdout) == (1, True)

    def some(data: int, n: int) -> bool:
        return data & (data - 1) == 0 and n > 1

    stated = dataclasses.replace(written, more={"one_axis": ["data"], "serves": some})
    summary = checked(stated, written.right, laws="value", max_examples=40)
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    tally = summary.tallies[0]
    assert tally.excluded > 0
    share = f"{tally.excluded} ({tally.excluded / (tally.excluded + tally.structures):.0%} of all)"
    assert share in str(summary).split("\n")[2]
    assert "serves: some data, n" in str(summary)
    never = dataclasses.replace(written, more={"one_axis": ["data"], "serves": lambda n: n < 0})
    with pytest.raises(AssertionError, match="held on no case: all 1,000 that were drawn are excluded"):
        checked(never, written.right, laws="value", max_examples=2)
    wrong = dataclasses.replace(written, more={"one_axis": ["data"], "serves": lambda n: n // 0})
    with pytest.raises(ValueError, match=r"serves\(n=\d+\) raises ZeroDivisionError"):
        checked(wrong, written.right, laws="value", max_examples=2)


@pytest.mark.lengthy
def test_a_kernel_that_the_interpreter_cannot_run_is_held_in_doubles() -> None:
    """An error of one part in a billion in a compiled kernel is detected in double precision."""
    written = PROGRAMS["pallas"]

    def a_trifle(x: Any, w: Any, *, data: Any, model: Any) -> Any:
        return written.right(x, w, data=data, model=model) * (1 + 1e-9)

    with pytest.raises(AssertionError, match=r"a_trifle: value: .* in double precision"):
        checked(written, a_trifle, laws="value", max_examples=40)
    summary = checked(written, written.right, laws="value", max_examples=16)
    assert "the interpreter cannot run pallas_call" in str(summary)
    assert all(tally.structures > 0 for tally in summary.tallies)


def numbered(x: Any, *, data: Any, fsdp: Any) -> Any:
    """Adds its number to every row, over both roles."""
    first = lax.axis_index((*axes_of(data), *axes_of(fsdp))) * len(x)
    return x + (first + jnp.arange(len(x), dtype=x.dtype))[:, None]


def numbered_the_other_way(x: Any, *, data: Any, fsdp: Any) -> Any:
    """The same, with the roles exchanged."""
    return numbered(x, data=fsdp, fsdp=data)


def axes_of(role: Any) -> tuple[str, ...]:
    """A role's axes."""
    return (role,) if isinstance(role, str) else tuple(role)


def test_a_dimension_may_be_sharded_over_two_roles() -> None:
    """A dimension over two roles is sharded by the first role and then by the second."""
    described: dict[str, Any] = {"arguments": ["n@data@fsdp k"], "results": "n@data@fsdp k", "dtypes": "float32"}

    def reference(x: Any) -> Any:
        return x + np.arange(len(x))[:, None]

    check_program(numbered, reference, **described, laws=["value"], max_examples=8)
    with pytest.raises(AssertionError, match="blocks wrong"):
        check_program(numbered_the_other_way, reference, **described, laws=["value"], max_examples=100)


def test_a_random_key_that_is_returned_is_named() -> None:
    """It is no array of numbers, whatever is described."""

    def keys(x: Any, *, data: Any) -> Any:
        return jax.random.split(jax.random.key(0), len(x))

    with pytest.raises(AssertionError, match=r"returns key<fry>\[\d\]: expected its words, jax.random.key_data"):
        check_program(keys, lambda x: x, arguments=["n@data"], results="n@data", laws=["value"], max_examples=2)


def test_a_law_that_has_nothing_to_ask_is_said() -> None:
    """A law that does not apply to a program is named in the summary."""
    written = PROGRAMS["counts"]
    summary = checked(written, written.right, max_examples=2, laws=("value", "gradient"))
    assert "not checked, since they do not apply: gradient" in str(summary)


@pytest.mark.lengthy
def test_the_derivative_of_a_numpy_reference_knows_constants() -> None:
    """Results of a NumPy reference that are not floats have no derivative."""

    def in_numpy(x: Any, w: Any, mask: Any) -> Any:
        return {"loss": np.sum(((x @ w) ** 2)[mask]), "count": np.sum(mask).astype(np.int32)}

    written = dataclasses.replace(PROGRAMS["counted"], reference=in_numpy)
    summary = checked(written, written.right, max_examples=16, laws="gradient")
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    assert all(tally.drawn["transformations"].keys() != {"none"} for tally in summary.tallies)
    with pytest.raises(AssertionError, match=r"tangent|gradient"):
        checked(written, written.wrong, max_examples=40, laws="gradient")


def masked_softmax(x: Any, count: Any, *, context: Any, mask: float, right: bool) -> Any:
    """A softmax of the first `count` numbers, with the others masked by a large constant."""
    size = x.shape[0]
    counts = lax.axis_index(context) * size + jnp.arange(size) < count
    masked = jnp.where(counts, x, mask)
    powers = jnp.exp(masked - lax.pmax(lax.stop_gradient(masked.max()), context))
    found = powers / lax.psum(powers.sum(), context)
    return jnp.where(count > 0, found, 0).astype(x.dtype) if right else found


def whole_masked_softmax(x: Any, count: Any) -> Any:
    """None of it, of none."""
    powers = jnp.where(jnp.arange(x.shape[0]) < count, jnp.exp(x), 0)
    return jnp.where(count > 0, powers / jnp.where(count > 0, powers.sum(), 1), 0)


@pytest.mark.parametrize("dtype", ["float32", marked(["bfloat16"], ())[0]])
@pytest.mark.parametrize("mask", marked([-1e9, -1e30], [-1e9]))
def test_a_large_constant_hides_nothing(mask: float, dtype: str) -> None:
    """The rounding of a large mask that cancels itself neither excuses a wrong softmax nor fails a right one."""
    described: Any = {
        "arguments": ("t@context", Array("", "int32", upto="t")),
        "results": "t@context",
        "dtypes": (dtype,),
        "laws": ["value"],
        "max_examples": 64,
    }

    def wrong(x: Any, count: Any, *, context: Any) -> Any:
        return masked_softmax(x, count, context=context, mask=mask, right=False)

    def right(x: Any, count: Any, *, context: Any) -> Any:
        return masked_softmax(x, count, context=context, mask=mask, right=True)

    check_program(right, whole_masked_softmax, **described | {"max_examples": 16})
    with pytest.raises(AssertionError, match="wrong: value"):
        check_program(wrong, whole_masked_softmax, **described)


def test_what_cancels_in_the_reference_alone_is_its_own_rounding() -> None:
    """Where the right result is zero the reference may give what it rounds; what is wrong by more is reported."""
    described: Any = {"arguments": ("n@data",), "results": "n@data", "dtypes": "float32", "laws": ["value"]}

    def cancels(x: Any) -> Any:
        return (0.1 * x + 1) - 0.1 * x - 1

    def right(x: Any, *, data: Any) -> Any:
        return 0 * x

    def wrong(x: Any, *, data: Any) -> Any:
        return 1e-9 * x

    check_program(right, cancels, **described, max_examples=8)
    with pytest.raises(AssertionError, match="wrong: value"):
        check_program(wrong, cancels, **described, max_examples=20)


def counted(ids: Any, *, data: Any, dtype: str) -> Any:
    """Counts of five numbers, in a dtype on each participant."""
    local = jnp.sum(jax.nn.one_hot(ids, 5, dtype=dtype), 0, dtype=dtype)
    return lax.psum(local.astype("int32"), data)


def counted_whole(ids: Any) -> Any:
    """Counts of five numbers in the whole array."""
    return jnp.zeros(5, "int32").at[ids].add(1)


def in_chunks(x: Any, *, data: Any, keeps: bool) -> Any:
    """Rows in chunks of 256, and what is left of them if it is kept."""
    del data
    whole = max(x.shape[0] // 256 * 256, x.shape[0] * (x.shape[0] < 256))
    parts = [jnp.tanh(part) for part in jnp.split(x[:whole], max(1, whole // 256))]
    rest = x[whole:]
    return jnp.concatenate([*parts, jnp.tanh(rest) if keeps else jnp.zeros_like(rest)])


def normed(x: Any, *, data: Any, model: Any, guards: bool) -> Any:
    """Rows of length one, and of zeros where they are zero, whose derivative is NaN unless the root is guarded."""
    del data
    squares = lax.psum(jnp.sum(x * x, -1, keepdims=True), model)
    return jnp.where(squares > 0, x / jnp.sqrt(jnp.where(squares > 0, squares, 1) if guards else squares), 0)


def normed_whole(x: Any) -> Any:
    """The same on whole rows."""
    squares = jnp.sum(x * x, -1, keepdims=True)
    return jnp.where(squares > 0, x / jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


@pytest.mark.parametrize("reference", [counted_whole, lambda ids: np.bincount(ids, minlength=5)], ids=["jax", "numpy"])
def test_a_result_of_64_bits_has_32_where_jax_has_no_more(reference: Any) -> None:
    """So `int64`, as counts are in NumPy, is right of a function that cannot return it; the summary has a line."""
    described: dict[str, Any] = {"arguments": (Array("n@data", "int32", below=5),), "results": Array("5", "int64")}
    summary = check_program(partial(counted, dtype="int32"), reference, max_examples=8, laws=["value"], **described)
    assert "results stated as int64: half as many bits where no argument has 64, as x64 is off" in str(summary)


def through(dtype: str, x: Any) -> Any:
    """Numbers that are sent in another dtype."""
    return x.astype(dtype).astype(x.dtype) * 3


@pytest.mark.parametrize("stated", [None, "bfloat16"])
def test_a_cast_is_right_where_the_reference_has_one(stated: str | None) -> None:
    """A cast to the reference's dtype passes, and one to a narrower dtype is reported."""

    def intended(x: Any) -> Any:
        return 3 * x if stated is None else through(stated, x)

    described: Any = {"arguments": ["n@data k"], "results": "n@data k", "dtypes": "float32", "laws": ["value"]}
    for sent in ("float32", "bfloat16", "float8_e4m3fn"):

        def function(x: Any, *, data: Any, sent: str = sent) -> Any:
            return through(sent, x)

        if sent in ("float32", stated):
            check_program(function, intended, **described, max_examples=10)
        else:
            with pytest.raises(AssertionError, match="rounded too much"):
                check_program(function, intended, **described, max_examples=40)


IDS, COUNTS, ROWS = Array("n@data", "int32", below=5), Array("5", "int32"), "n@data d@model"


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("right", "wrong", "reference", "argument", "result", "law"),
    [
        (partial(counted, dtype="int32"), partial(counted, dtype="uint8"), counted_whole, IDS, COUNTS, "value"),
        (partial(counted, dtype="float32"), partial(counted, dtype="bfloat16"), counted_whole, IDS, COUNTS, "value"),
        (partial(in_chunks, keeps=True), partial(in_chunks, keeps=False), jnp.tanh, "n@data d", "n@data d", "value"),
        (partial(normed, guards=True), partial(normed, guards=False), normed_whole, ROWS, ROWS, "gradient"),
    ],
    ids=["counts", "rounded", "chunks", "norms"],
)
def test_what_few_cases_have_is_drawn(
    right: Any, wrong: Any, reference: Any, argument: Any, result: Any, law: str
) -> None:
    """Overflowing counts, remainders of long chunks and zero rows are drawn often enough to detect their bugs."""
    described: Any = {"arguments": (argument,), "results": result, "laws": [law]}
    check_program(right, reference, **described, max_examples=20)
    with pytest.raises(AssertionError, match=f"^{wrong.func.__name__}: {law}\\b.*: "):
        check_program(wrong, reference, **described)
