"""The page of a run: what it shows of failures, and that it works in a browser, without a network."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardproof import Program
from shardproof.impl import collectives
from shardproof.properties.meta.runs import pytest_run
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.checking import check_here, chosen_laws, scope_of
from shardproof.properties.report.failures.causes import ReportedCauses
from shardproof.properties.report.failures.evidence import evidence
from shardproof.properties.report.failures.text import report
from shardproof.properties.report.report import Record, record_of, report_text
from shardproof.properties.report.session import facts
from shardproof.properties.report.summary import weak_points
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.tally import Tally

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), "")
SIZE = 2_000_000
"""The most bytes of a page."""


def shift(x: jax.Array, axis_name: Any, *, offset: int = 1) -> jax.Array:
    """Numbers the participants of an axis tuple in the order of the alphabet."""
    axes = axis_name if isinstance(axis_name, str) else tuple(sorted(axis_name))
    return collectives.ring_shift(x, axes, offset=offset)


def mlp(x: jax.Array, w_in: jax.Array, w_out: jax.Array, *, tp: Any) -> jax.Array:
    """Scales by the largest number of a device, where that of all devices is right."""
    hidden = jax.nn.relu(x @ w_in)
    scale = jnp.max(hidden, initial=1.0)
    return lax.psum((hidden / scale) @ w_out, tp) * scale


def unsharded(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """The layer of `mlp` on whole arrays."""
    return jax.nn.relu(x @ w_in) @ w_out


def summed(x: jax.Array, axis_name: Any, *, op: str = "sum") -> jax.Array:
    """Adds up in 16 bits."""
    if op != "sum" or x.dtype != jnp.float32:
        raise NotImplementedError
    return lax.psum(x.astype(jnp.bfloat16), axis_name).astype(x.dtype)


MLP = Program(mlp, unsharded, arguments=("b d", "d f@tp", "f@tp d"), results="b d")


def failing(implementation: Implementation) -> list[Tally]:
    """The interpreter's tally of its values, with the evidence that they are wrong."""
    laws, scope = chosen_laws("value"), scope_of("simulate")
    verdicts = check_here(implementation, "simulate", laws, ReportedCauses(), scope, max_examples=40, random_seed=1)
    for one in verdicts.violations:
        verdicts.tallies[one.law.name].failure = {**report(one), "evidence": evidence(one)}
    return [*verdicts.tallies.values()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for failures and pages, which is the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pages"))
        yield Path.cwd()


@pytest.fixture(scope="module")
def tallies(folder: Path) -> list[Tally]:
    """Three functions that are wrong."""
    wrong = user_implementation("ring_shift", shift), MLP.implementation, user_implementation("all_reduce", summed)
    return [tally for one in wrong for tally in failing(one)]


@pytest.fixture(scope="module")
def record(tallies: list[Tally], request: pytest.FixtureRequest) -> Record:
    """The run with these failures."""
    return record_of(tallies, facts(request.config, ""), [{"test": "test_other", "text": "<b>not a tag</b>"}])


def test_neighbours_say_what_makes_a_failure_go_away(tallies: list[Tally]) -> None:
    """Another order of the tuple is right, or one long axis; another mesh or dtype is not."""
    found = tallies[0].failure["evidence"]["neighbours"]
    verdicts = {(one["what"], one["now"]): one["verdict"] for one in found}
    orders = {now: verdict for (what, now), verdict in verdicts.items() if what == "axis order"}
    sizes = {now: verdict for (what, now), verdict in verdicts.items() if what == "mesh size"}
    assert orders
    assert all((verdict == "held") == (not now.startswith("mesh")) for now, verdict in orders.items())
    assert all((verdict == "held") == now.endswith("=1") for now, verdict in sizes.items())
    assert {verdict for (what, _), verdict in verdicts.items() if what == "dtype"} == {"violated"}


def test_steps_mark_where_a_program_goes_wrong(tallies: list[Tally]) -> None:
    """The first wrong step is the maximum that is not over all devices, and the cast that loses digits."""
    programs = [tally.failure["evidence"]["program"] for tally in tallies[1:]]
    firsts = [next(step for step in one["steps"] if step.get("wrong")) for one in programs]
    assert [step["does"].partition(" ")[0] for step in firsts] == ["reduce_max", "convert_element_type"]
    assert firsts[0]["line"] == "scale = jnp.max(hidden, initial=1.0)"
    assert firsts[0]["at"].startswith("meta/test_page.py:")
    assert len(set(firsts[0]["expected"])) == 1  # a maximum over all is the same everywhere
    assert "pmax over" in programs[0]["expected"]
    assert "double precision" in programs[1]["expected"]
    assert all(one["steps"][-1]["does"] == "result" and one["steps"][-1]["wrong"] for one in programs)


def test_the_page_is_the_data(record: Record, folder: Path) -> None:
    """A page says the verdict, the weak points, the causes, and no more of a text than that it is one."""
    page = report_text("report.html", json.loads(report_text("report.json", record)))
    assert '<h1><span class="glyph" aria-hidden="true">✗</span> Violated' in page
    assert "Laws are violated by 3 of 3 implementations, for 3 causes. 1 test failed without a verdict." in page
    assert "<title>Violated · shardproof</title>" in page
    assert "&lt;b&gt;not a tag&lt;/b&gt;" in page
    assert page.count('<details class="cause"') == 4
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_page_of_a_long_run_is_small(record: Record) -> None:
    """With two thousand rows and hundreds of failures a page has less than two megabytes, and every headline."""
    rows, own = [], [one for one in record["verified"] if one["failure"]]
    for i in range(2_000):
        failure = own[0]["failure"] | {"cause": f"shift{i}: wrong", "headline": f"shift{i}: value"} if i < 300 else {}
        rows.append(own[0] | {"implementation": f"shift{i}", "failure": failure})
    page = report_text("report.html", record | {"verified": rows})
    assert len(page.encode()) < SIZE
    assert page.count('<details class="cause"') == 301


def test_what_makes_a_pass_weak_is_listed() -> None:
    """Unsupported, excused and undecided shares, few structures, idle engines, and sizes that were never drawn."""
    usual = [Tally("one", name, "value", "simulate", structures=10) for name in "abc"]
    weak = Tally("one", "d", "value", "simulate", structures=4, undecided=7, unsupported={"no": 12}, defects={"bug": 4})
    found = weak_points([*usual, weak], 2)
    assert found["unsupported"] == ["one[d], value (simulate): 60% of 20 structures: no"]
    assert found["excused"] == ["one[d], value (simulate): 20% of 20 structures: bug"]
    assert found["few structures"] == ["one[d], value (simulate): held on 4, where the median is 10"]
    assert found["undecided"] == ["one[d], value (simulate): 7 elements compared with nothing, for roundings"]
    assert found["engines that did not run"] == [f"one[{name}]: xla" for name in "abcd"]
    assert found["never drawn"] == ["one: devices: 1, 2", "one: axis tuple: one axis, mesh order, permuted"]


def test_of_a_violation_no_page_says_that_an_engine_did_not_run() -> None:
    """Its search ended there: an engine that found it ran, and what was not drawn says nothing."""
    failing = [Tally("one", "a", law, engine, outcome="failed") for law, engine in (("value", "xla"), ("error", "xla"))]
    found = weak_points([Tally("one", "a", "type", "simulate", structures=10), *failing], 2)
    assert found == {"searches that ended at a violation": ["one[a]: value (xla), error (xla)"]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    if not CHROMIUM:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, record: Record, folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page of the run, opened without a network; an error in the console is a failure."""
    path = folder / "report.html"
    path.write_text(report_text(str(path), record), encoding="utf-8")
    opened = browser.new_context(color_scheme=request.param, offline=True).new_page()
    errors: list[str] = []
    opened.on("console", lambda message: errors.append(message.text))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    opened.context.close()
    assert errors == []


def test_results_are_filtered(page: Any) -> None:
    """By words, by a choice, and by a cell of the map; `/` goes to the search."""
    page.keyboard.press("/")
    page.keyboard.type("mlp value")
    assert page.locator("#rows tbody tr:visible").count() == 1
    assert page.locator("#count").inner_text() == "1 of 3 rows"
    page.locator("button[type=reset]").click()
    page.locator("#outcome").select_option("VIOLATED")
    assert page.locator("#rows tbody tr:visible").count() == 3
    page.locator(".heat button[data-contract=ring_shift]").click()
    assert page.locator("#rows tbody tr:visible td:first-child").all_inner_texts() == ["ring_shift"]


def test_a_failure_is_opened_and_scrubbed(page: Any) -> None:
    """`j` opens the next failure; its scrubber starts where it goes wrong, and steps with keys, buttons and a click."""
    page.keyboard.press("j")
    page.keyboard.press("j")
    cause = page.locator("#cause-2")
    assert cause.get_attribute("open") is not None
    steps, now = cause.locator(".steps li"), cause.locator(".steps li.now")
    assert "reduce_max" in now.inner_text()
    assert cause.locator(".scrubber .cell.wrong .should").first.inner_text().startswith("expected")
    assert cause.locator(".source code").inner_text() == "scale = jnp.max(hidden, initial=1.0)"
    cause.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    after = steps.locator("nth=-1")
    assert "now" not in (after.get_attribute("class") or "")
    after.click()
    assert now.inner_text() == after.inner_text()
    assert cause.locator("output").inner_text() == f"step {steps.count()} of {steps.count()}"
    cause.locator("[data-go=wrong]").click()
    assert "reduce_max" in now.inner_text()
    cause.locator("h3:text('The mesh') + .mesh button").first.focus()
    assert "expected: " in cause.locator(".said").inner_text()


def test_the_page_is_accessible(page: Any) -> None:
    """Axe finds no fault, with everything open."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = axe.Axe().run(page)
    assert found.response["passes"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found.response["violations"]] == []


ENDS = """
import os
from shardproof import Program, program_test


def double(x, *, data):
    if os.environ.get("PYTEST_CURRENT_TEST", "").startswith("test_double.py"):  # not while tests are collected
        os.write(2, b"F1130 thunk.cc:42] Check failed: devices == 3")
        os.abort()
    return x + x


test_double = program_test(Program(double, lambda x: 2 * x, arguments=("n@data",), results="n@data"), max_examples=2)
"""


def test_a_report_is_written_where_a_run_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says in which test the process ended, and its last words; or which flag XLA does not know."""
    (tmp_path / "test_double.py").write_text(ENDS, encoding="utf-8")
    options = ("test_double.py", "--report=report.html", "--engine=simulate")
    done = pytest_run(*options, folder=tmp_path)
    assert done.returncode < 0
    assert "shardproof: wrote report.html" in done.stdout
    ended = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert ended["ended"] == "The process ended in the middle of test_double.py::test_double[simulate]"
    assert ended["errors"][0]["text"].endswith("Check failed: devices == 3")
    assert ended["command"].startswith("pytest ")
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    done = pytest_run(*options, folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Ended early" in page
    assert "it ends the process for --xla_no_such_flag=1" in page
    assert "XLA_FLAGS=--xla_no_such_flag=1 pytest " in page
