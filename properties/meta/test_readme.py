"""The README files say what is so today. What their commands and programs do is in `test_readme_commands`."""

import math
import re
from collections import Counter
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import jax
import numpy as np
import pytest

from shardproof.impl.collective_matmul.operands import UNROLLED
from shardproof.impl.losses import PARALLELISATIONS
from shardproof.properties.benchmark.readme import (
    COMPUTED,
    HOMES,
    PAGES,
    README,
    ROOT,
    TRACED,
    cells,
    in_short,
    section,
    verified,
    with_section,
)
from shardproof.properties.cases.chain import MOST_LINKS
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.whole import KINDS
from shardproof.properties.meta.brief import marked
from shardproof.properties.meta.test_scheduled import MICRO, saved
from shardproof.properties.precision.doubles import DIGITS
from shardproof.properties.precision.references import NumpyReference
from shardproof.properties.precision.references.evaluated import MOST_DIFFERENCES
from shardproof.properties.precision.references.traced import DOUBT, DOUBT_OF_TABLES
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.report.asking import LARGE
from shardproof.properties.report.options import SIMULATED
from shardproof.properties.report.report import COLUMNS, report_text, sealed
from shardproof.properties.runner import budgets, profiles
from shardproof.properties.runner.reach import LARGEST
from shardproof.properties.suite.test_training import FORMS

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
MOST_BYTES = 20_480
"""Of the front page: it is read in one sitting, and what takes longer is on a page of its own."""

EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def flat(text: str) -> str:
    """In one line."""
    return re.sub(r"\s+", " ", text)


ALL = flat("\n".join(TEXTS.values()))


def test_the_front_page_is_short() -> None:
    """It has at most 20 KB."""
    assert len(TEXTS[README].encode()) <= MOST_BYTES


def test_every_section_is_in_its_home() -> None:
    """Each stands once, in the file that `HOMES` names, and there are no others."""
    found = [
        (name, page) for page, text in TEXTS.items() for name in re.findall(r"^<!-- ([a-z-]+) -->$", text, re.MULTILINE)
    ]
    ends = [
        (name, page)
        for page, text in TEXTS.items()
        for name in re.findall(r"^<!-- /([a-z-]+) -->$", text, re.MULTILINE)
    ]
    assert sorted(found) == sorted(ends) == sorted(HOMES.items())


@pytest.mark.parametrize("name", marked(COMPUTED, COMPUTED.keys() - {"parity", "products"}))
def test_tables_are_those_of_the_suite(name: str) -> None:
    """Laws, signatures, claims, transformations, defects and costs are listed as they are."""
    assert section(name) == COMPUTED[name]()


def numbers(text: str) -> np.ndarray:
    """All numbers of a text, in order."""
    return np.array([float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)])


@pytest.mark.lengthy
@pytest.mark.parametrize(("name", "computed"), TRACED.items(), ids=TRACED)
def test_traced_tables_are_those_of_the_suite(name: str, computed: Callable[[], str]) -> None:
    """To the letter by the JAX that they name; by another, all rows are there, and no figure is off by a quarter."""
    written, found = section(name), computed()
    if f"JAX {jax.__version__} traces" in written:
        assert written == found
        return
    texts = [re.sub(r"JAX [\w.]+ traces", "JAX", text) for text in (written, found)]
    assert re.sub(r"[\d,.]+", "#", texts[0]) == re.sub(r"[\d,.]+", "#", texts[1])
    np.testing.assert_allclose(numbers(texts[1]), numbers(texts[0]), rtol=0.25)


def test_a_section_is_replaced_where_it_stands() -> None:
    """What is around it stays; a text without it is an error that names it."""
    assert with_section("a\n<!-- x -->\nold\n<!-- /x -->\nb", "x", "new") == "a\n<!-- x -->\n\nnew\n\n<!-- /x -->\nb"
    with pytest.raises(ValueError, match="name='y': the text has no <!-- y -->"):
        with_section("a", "y", "new")


def test_what_was_verified_is_what_the_suite_wrote() -> None:
    """Nobody changed it since; it has the report's columns, and counts all implementations, among others."""
    text, _, _ = section("verified-in-full").rpartition("\n\n<!-- ")
    assert section("verified-in-full") == sealed(text)
    rows = cells(text)
    assert list(rows[0]) == ["implementations" if name == "implementation" else name for name in COLUMNS]
    counted = {row["contract"]: int(row["implementations"]) for row in rows}
    there = Counter(one.contract for one in IMPLEMENTATIONS)
    missing = {name: number for name, number in there.items() if counted.get(name, 0) < number}
    assert not missing, f"run `pytest -n auto --report report.md` and the generator: it lacks some of {missing}"


def test_the_front_page_has_it_in_short() -> None:
    """The same rows with fewer columns, and the same sentence on the whole run."""
    assert section("verified") == in_short(section("verified-in-full"))


def test_a_table_of_other_budgets_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no more what the suite verifies."""
    before = sealed("a table")
    monkeypatch.setattr(budgets, "LEAST", 3)
    assert sealed("a table") != before


def test_a_report_has_the_digest_of_what_is_copied() -> None:
    """What the generator takes out of a report ends in the digest of the rest."""
    copied = verified(report_text("report.md", [], ["profile: ci"])).strip()
    assert copied == sealed("- profile: ci")


def test_what_tox_leaves_out_the_workflow_has() -> None:
    """All tests of the suite itself on both ends, of which `tox` alone runs those that are not marked `lengthy`."""
    settings = ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini")
    commands = settings["testenv"]["commands"]
    assert '\nbrief: pytest -n auto properties/meta -m "not lengthy" {[few]options} {posargs}' in commands
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for part in ("meta", "catalogue"):
        assert {f"py311-{part}", f"py313-{part}"} <= set(re.findall(r"[\w-]+", workflow))
        assert f"py311-{part}" in ALL
    assert settings["meta"]["tests"] == "properties/meta --ignore=properties/meta/catalogue"
    assert "\ncatalogue: pytest -n auto properties/meta/catalogue {posargs}" in commands


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"up to (\d+) elements of each argument", MOST_DIFFERENCES),
        (
            r"must equal its reference to (\d+) digits of an",
            -math.log10(max(DOUBT[0], NumpyReference.doubt[0])),
        ),
        (r"in values and to (\d+) in derivatives of a NumPy reference", -math.log10(NumpyReference.doubt[1])),
        (r"must equal its reference to (\d+) digits, and", -math.log10(DIGITS)),
        (r"traced on float32, and precise to (\d+) digits", -math.log10(max(DOUBT_OF_TABLES))),
        (r"grow with the mesh is interpreted on at most (\d+) devices", LARGEST),
        (r"and others, at most (\d+) around a call", MOST_LINKS),
        (r"in NumPy, on up to ([\d,]+) devices", SIMULATED),
        (r"devices \(`check`: ([\d,]+)\)", LARGE),
        (r"Rings of up to (\d+) participants are unrolled", UNROLLED),
    ],
)
def test_numbers_are_those_of_the_suite(text: str, number: float) -> None:
    """What the README files say in digits stands in the code."""
    (found,) = re.findall(text, ALL)
    assert int(found.replace(",", "")) == number


@pytest.mark.parametrize(
    ("things", "number"),
    [
        ("dispatches", len(CONTRACTS["moe_layer"].implementations)),
        ("parallelisations", len(PARALLELISATIONS)),
        ("parallelisations with one device", len(FORMS)),
    ],
)
def test_counts_are_those_of_the_suite(things: str, number: int) -> None:
    """What there is of a kind, in words."""
    words = ["eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"]
    found = re.findall(rf"\b({'|'.join(words)}) {things}(?! with)", ALL)
    assert found
    assert {words.index(word) + 8 for word in found} == {number}


def test_numbers_are_of_the_size_that_is_stated() -> None:
    """Of all kinds that a program of a user's own gets."""
    (most,) = re.findall(r"Numbers are drawn of a size of about 1, of at most (\d+),", ALL)
    (again,) = re.findall(r"numbers above (\d+), NaN and infinity", ALL)
    assert most == again
    drawn = [
        np.abs(generate(Data(kind, seed), (64,), np.dtype(dtype), terms=terms, degree=3)).astype(float)
        for kind in KINDS
        for seed in range(20)
        for dtype in ("float32", "bfloat16")
        for terms in (1, 4, 64)
    ]
    assert max(x.max() for x in drawn) <= int(most)
    assert 0.3 < np.median(np.concatenate(drawn)) < 2


def test_times_of_the_tpu_compiler_are_those_of_its_saved_schedules() -> None:
    """Of three forms, to a tenth of a microsecond, in the order in which they stand there."""
    (times,) = re.findall(r"takes ([\d.]+) us, `ring` ([\d.]+) us, .*? and `shorter_way` ([\d.]+) us\.", ALL)
    schedules = [saved(name) for name in ("naive", "ring", "shorter_way")]
    assert [f"{float(schedule.total / MICRO):.1f}" for schedule in schedules] == list(times)


def test_profiles_are_those_of_the_suite() -> None:
    """By their names, in any order."""
    (names,) = re.findall(r"--hypothesis-profile ([\w|]+)`", ALL)
    assert sorted(names.split("|")) == sorted(profiles.NAMES)


@EACH_PAGE
def test_paths_exist(page: Path) -> None:
    """Every file and folder of the project that a page names is there."""
    for path in re.findall(r"\b((?:impl|oracles|properties)/[\w/.]*\w)", TEXTS[page]):
        assert (ROOT / path.replace("NAME", "pmax_loses_nan")).exists(), path


def anchors(text: str) -> set[str]:
    """What a link may name in a page: its headings, in small letters, with hyphens."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the project, and to a heading that is in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert file.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def test_every_page_is_linked_from_the_front_page() -> None:
    """Directly."""
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[README])}
    assert set(PAGES) - {README} <= linked
