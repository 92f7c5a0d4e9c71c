"""The pytest plugin in this checkout: options, header, table and reports."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.plugin import FILES, LOADING, OPTIONS
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts.contract import FEATURES
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.pages import CONTRACTS_PAGE, REPORT_PAGE, block
from shardproof.properties.meta.runs import PYTEST, ROOT, in_terminal, pytest_apart, python
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.program import matmul_precision, precision_of
from shardproof.properties.report.scripts.source import options
from shardproof.properties.report.session import check_destination, write_somewhere
from shardproof.properties.runner import platforms
from shardproof.properties.runner.platforms import BACKENDS, TooFewDevices, check_devices, use

CHOSEN = (
    "properties/suite/test_collectives.py",
    "--hypothesis-profile=ci",
    "-k",
    "lax-xla and (broadcast or ring_shift)",
    "--laws=value",
)
"""The cheapest law of the two cheapest contracts."""
CONTRACTS = ("broadcast", "ring_shift")


@dataclass(frozen=True)
class Run:
    """The exit code and the output of a pytest run."""

    code: int
    output: str

    @property
    def table(self) -> list[list[str]]:
        """The cells of the rows of the printed table, without the headings."""
        lines = [line for line in self.output.splitlines() if line.startswith("│")]
        return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]

    @property
    def headings(self) -> list[str]:
        """The headings of the printed table."""
        line = next(line for line in self.output.splitlines() if line.startswith("┃"))
        return [cell.strip() for cell in line.strip("┃").split("┃")]


def run_pytest(*arguments: str, **environment: str) -> Run:
    """A run on this checkout, of which the surrounding run is not a part."""
    return Run(*pytest_apart(*arguments, **environment))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the reports of `checked` are written to."""
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def checked(reports: Path) -> Run:
    """A run that checks two contracts and writes both reports."""
    files = [f"--report={reports / name}" for name in ("report.json", "report.md")]
    return run_pytest(*CHOSEN, *files)


@pytest.mark.lengthy
def test_the_header_says_what_is_verified_on_what(checked: Run) -> None:
    """The header names the versions, the devices, the profile, the seed and the contracts."""
    versions = f"jax {jax.__version__}, jaxlib {version('jaxlib')}, 8 cpu devices"
    assert re.search(rf"^shardproof.*: {re.escape(versions)}$", checked.output, re.MULTILINE)
    drawn = r"\d+ structures for each law, \d+ compiled"
    assert re.search(rf"^profile: ci \({drawn}\), seed: fixed by the profile$", checked.output, re.MULTILINE)
    contracts = re.search(r"^contracts: (.*)$", checked.output, re.MULTILINE)
    assert contracts
    assert set(CONTRACTS) < set(contracts[1].split(", "))


def test_the_table_has_a_row_per_implementation(checked: Run) -> None:
    """A passing run ends with 0 and a table with a row for each implementation."""
    assert checked.code == 0, checked.output
    assert [row[:2] for row in checked.table] == [[contract, "lax"] for contract in CONTRACTS]
    for row in checked.table:
        cells = dict(zip(checked.headings, row, strict=True))
        assert (cells["laws"], cells["interpreted"]) == ("1", "-")
        assert int(cells["compiled"].partition(" ")[0]) >= 1
        assert int(cells["compilations"]) >= 1
        assert 2 <= int(cells["largest mesh"]) <= 8


def test_the_markdown_report_is_the_printed_table(checked: Run, reports: Path) -> None:
    """The Markdown report has the headings, the rows and the closing sentence of the printed table."""
    text, _, drawn = (reports / "report.md").read_text(encoding="utf-8").partition("\n## What was drawn\n")
    summary, _, text = text.partition("\n## By implementation\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert lines[0] == checked.headings
    assert all(set(cell) <= {"-", ":"} for cell in lines[1])
    assert lines[2:] == checked.table
    assert summary.strip().split("\n\n")[-1] in checked.output.splitlines()
    for cells in checked.table:  # there is one implementation of each contract
        assert f"| {' | '.join([cells[0], '1', *cells[2:]])} |" in summary
    rows = re.findall(r"^\| broadcast \| dtype \| (.*) \|$", drawn, re.MULTILINE)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", rows[0])]
    assert len(rows) == 1
    assert sum(shares) == pytest.approx(100, abs=1)


def test_the_json_report_agrees_with_the_printed_table(checked: Run, reports: Path) -> None:
    """The JSON report has the numbers and the header that were printed."""
    record = json.loads((reports / "report.json").read_text(encoding="utf-8"))
    assert f"shardproof: wrote {reports / 'report.json'}" in checked.output.splitlines()
    assert set(record["header"]) <= set(checked.output.splitlines())
    assert record["total"] in checked.output.splitlines()
    for row in checked.table:
        cells = dict(zip(checked.headings, row, strict=True))
        entries = [entry for entry in record["verified"] if entry["contract"] == cells["contract"]]
        assert {(e["implementation"], e["law"], e["outcome"]) for e in entries} == {("lax", "value", "passed")}
        assert str(sum(entry["compilations"] for entry in entries)) == cells["compilations"]
        assert [f"{entry['structures']} ({entry['structures']})" for entry in entries] == [cells["compiled"]]
        assert all(entry["cases"] > entry["structures"] for entry in entries)  # the data sets of each
        assert all(1 <= entry["compilations"] <= entry["cases"] for entry in entries)
        for entry in entries:  # the histograms count the same structures
            assert {sum(histogram.values()) for histogram in entry["drawn"].values()} == {entry["structures"]}


@pytest.mark.lengthy
@pytest.mark.either_end
def test_workers_verify_what_one_process_verifies(checked: Run) -> None:
    """Two workers print the table of one process, except for the time."""
    spread = run_pytest(*CHOSEN, "-n", "2")
    assert spread.code == 0, spread.output
    assert spread.headings == checked.headings
    time = checked.headings.index("time")
    tables = [[row[:time] + row[time + 1 :] for row in run.table] for run in (checked, spread)]
    assert tables[0] == tables[1]


@pytest.mark.lengthy
@pytest.mark.either_end
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "0"), "ERROR: --devices=0: expected at least 1"),
        (("--laws", "valu"), "ERROR: --laws='valu': no such law; did you mean 'value'?"),
        (("--claims=x64",), "ERROR: --claims=x64: expected --impl as well, whose function it is said of"),
        (
            ("--hypothesis-profile=nosuch",),
            "ERROR: --hypothesis-profile=nosuch: expected one of dev, ci, matrix, few, thorough, debug",
        ),
        (("--report", "x.txt"), "ERROR: --report=x.txt: expected a file name that ends in .html, .json or .md"),
        (
            ("--report", "no/such/x.md"),
            "ERROR: --report=no/such/x.md: expected a file in a folder that exists, no/such does not",
        ),
    ],
    ids=["devices", "laws", "claims", "profile", "ending of a report", "folder of a report"],
)
def test_a_wrong_option_is_one_clear_line(arguments: tuple[str, ...], message: str) -> None:
    """A wrong option is a usage error in one line with its value and what was expected."""
    run = run_pytest("properties/suite/test_collectives.py", *arguments)
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert [line for line in run.output.splitlines() if line.strip()] == [message]


def test_a_report_is_not_lost(tmp_path: Path) -> None:
    """A report that cannot be written goes to the temporary folder, and a folder is refused as its file."""
    said: list[str] = []
    folder = tmp_path / "gone"
    folder.mkdir()
    check_destination("--report", folder / "report.md")
    folder.rmdir()
    write_somewhere(folder / "report.md", "all of it", said.append)
    answer = re.fullmatch(
        rf"shardproof: {folder}/report\.md cannot be written: No such file .*; wrote (.*) instead", said[0]
    )
    assert answer
    assert Path(answer[1]).read_text(encoding="utf-8") == "all of it"
    Path(answer[1]).unlink()
    Path(answer[1]).parent.rmdir()
    with pytest.raises(RequestError, match="expected a file, this is a folder"):
        check_destination("--report", tmp_path)


@pytest.mark.lengthy
def test_workers_share_a_bar(tmp_path: Path) -> None:
    """In a terminal, a run with workers has a bar with the time left, and pytest's words in its summary."""
    tests = "import time, pytest\n\n@pytest.mark.parametrize('i', range(9))\ndef test_it(i):\n    time.sleep(0.2)\n"
    (tmp_path / "test_some.py").write_text(f"{tests}    assert i != 7\n")
    options = ("-n2", "-p", "shardproof.properties.report.plugin", "test_some.py")
    shown = in_terminal(*PYTEST, *options, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert re.search(rb"\r(\xe2\x94\x81)+ +[1-9] of 9 tests(, 1 failed)?, 0:0\d:\d\d left ", shown), shown
    assert b"1 failed, 0:0" in shown
    assert re.search(rb"FAILED.* test_some.py::", shown)
    assert b"8 passed" in shown


@pytest.mark.lengthy
def test_the_failure_of_the_readme_is_what_happens(tmp_path: Path) -> None:
    """The failure printed in the pages is that of its function, except for file names."""
    (tmp_path / "mine.py").write_text(block(CONTRACTS_PAGE, "mine", "python"), encoding="utf-8")
    program, *given = block(CONTRACTS_PAGE, "mine", "sh").split()
    assert program == "pytest"
    ended = python(*PYTEST, "--color=no", *given, "--laws=value", "--engine=simulate", folder=tmp_path)
    shown = block(REPORT_PAGE, "failure", "text").rstrip()
    answer, printed = (re.sub(r"-[0-9a-f]{8}\.", "-HASH.", lines) for lines in (shown, ended.stdout))
    assert answer in printed


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("arguments", "environment", "profile", "repeats"),
    [
        pytest.param([], {"CI": "1"}, "ci", True, id="ci"),
        pytest.param([], {"GITHUB_ACTIONS": "true"}, "dev", False, id="dev, whatever Hypothesis makes of the machine"),
        pytest.param(["--hypothesis-profile=thorough"], {"CI": "1"}, "thorough", False, id="thorough, in CI as well"),
    ],
)
def test_whether_a_run_draws_the_same_is_said_by_its_profile(
    arguments: list[str], environment: dict[str, str], profile: str, repeats: bool
) -> None:
    """A run with `CI` set draws the same cases each time, and other profiles draw new ones."""
    run = run_pytest("properties/suite/test_axis_index.py", "--collect-only", "-v", *arguments, **environment)
    (line,) = [line for line in run.output.splitlines() if line.startswith("hypothesis profile ")]
    assert f"{profile!r} -> " in line
    assert ("derandomize=True" in line, "database=None" in line) == (repeats, repeats)


@pytest.mark.lengthy
def test_a_missing_platform_is_a_usage_error_with_a_reason() -> None:
    """`--platform gpu` without a GPU is a usage error that says so."""
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
    run = run_pytest("properties/suite/test_collectives.py", "-k", "broadcast", "--platform=gpu", **hidden)
    assert run.code == pytest.ExitCode.USAGE_ERROR, run.output
    (line,) = [line for line in run.output.splitlines() if line.strip()]
    assert line.startswith("ERROR: --devices=8 --platform=gpu: expected 8 devices, and JAX finds no GPU at all")


def test_a_missing_platform_is_named_and_one_device_is_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no device of a platform the platform is missing; of a few devices there are fewer."""
    answers = {(False, "AssertionError"): "expected 1 device, and JAX finds no GPU at all$"}
    answers[False, "RuntimeError: no driver"] = "JAX finds no GPU at all: RuntimeError: no driver$"
    answers[True, "1"] = "expected 2 devices, found 1; give --devices 1, or run where there are more$"
    for answer, words in answers.items():
        monkeypatch.setattr(platforms, "run_python", lambda code, answer=answer: answer)
        with pytest.raises(TooFewDevices, match=words):
            check_devices("gpu", 1 + answer[0])


def test_a_driver_that_hangs_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs is reported after a time limit."""

    def hangs(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(TooFewDevices) as caught:
        check_devices("gpu", 8)
    answer = "--devices=8 --platform=gpu: expected 8 devices; JAX did not say within 120 s how many there are"
    assert str(caught.value) == answer


@pytest.mark.either_end
def test_help_shows_every_option() -> None:
    """`--help` shows every option of the plugin, and the pages name no other."""
    section = re.search(r"^shardproof: .*?(?=^\S|\Z)", run_pytest("--help").output, re.MULTILINE | re.DOTALL)
    assert section
    shown = set(re.findall(r"^  (--[a-z-]+)", section[0], re.MULTILINE))
    assert {*LOADING, *FILES} <= shown
    assert OPTIONS["--engine"]["choices"] == (*ENGINES, "all")
    assert OPTIONS["--platform"]["choices"] == (*BACKENDS,)
    assert f"of {', '.join(LAWS)} " in OPTIONS["--laws"]["help"]
    (page,) = re.findall(r"\S+\.md", OPTIONS["--claims"]["help"])
    assert all(f"`{claim}`" in (ROOT / page).read_text(encoding="utf-8") for claim in FEATURES)
    listed = REPORT_PAGE.read_text(encoding="utf-8").partition("## Options")[2]
    assert set(re.findall(r"(?<![\w-])--(?!hypothesis|help)[a-z][a-z-]+", listed)) <= shown


@pytest.mark.parametrize(
    ("platform", "answer", "expected"),
    [
        ("cpu", None, {"jax_platforms": "cpu"}),
        ("gpu", None, {"jax_platforms": "cuda", "jax_default_matmul_precision": "highest"}),
        ("tpu", "bfloat16", {"jax_platforms": "tpu"}),
    ],
)
def test_accelerators_multiply_in_the_operands_precision(
    platform: str, answer: str | None, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products on a GPU have full precision, unless JAX was configured otherwise."""
    updates: dict[str, str] = {}
    with jax.default_matmul_precision(answer):
        monkeypatch.setattr(jax.config, "update", updates.__setitem__)
        monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
        use(platform)
        several = os.environ.pop("XLA_PYTHON_CLIENT_PREALLOCATE", None)
        monkeypatch.undo()
    assert updates == expected
    assert several == ("false" if platform == "gpu" else None)  # workers and scripts share its memory


@pytest.mark.parametrize(
    ("backend", "answer", "expected"),
    [("cpu", None, None), ("gpu", None, "highest"), ("gpu", "tensorfloat32", "tensorfloat32")],
)
def test_a_case_is_judged_with_products_in_all_bits(
    backend: str, answer: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full precision of products lasts for one case, and a configured precision is kept."""
    case = example("ring_shift", MeshCase(("dp",), (1,)), "dp")
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    with jax.default_matmul_precision(answer):
        with precision_of(case):
            assert matmul_precision() == expected
            lines = options([0], in_doubles=False)
        assert matmul_precision() == answer
    assert any("matmul_precision" in line for line in lines) == (expected is not None)
