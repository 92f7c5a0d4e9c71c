"""Users' functions: checked by name and by hand, in a project of their own, and whatever they do to their process."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from shardproof.properties.meta.runs import pytest_given
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.stated import GivenError

FUNCTIONS = {
    "mine": """
import jax.numpy as jnp
from jax import lax


def right(x, axis_name, *, offset=1):
    from shardproof.impl.collectives import ring_shift

    return ring_shift(x, axis_name, offset=offset)


def wrong(x, axis_name, *, offset=1):
    return right(x, axis_name, offset=offset + 1)


def declines(x, axis_name, *, offset=1):
    if x.ndim > 1:
        raise NotImplementedError("blocks of rank above one")
    return right(x, axis_name, offset=offset)


def other(x):
    return x


def ragged(x, axis_name, *, offset=1):
    if x.ndim != 1:
        raise NotImplementedError("blocks of other ranks than one")
    p, index, zeros = lax.axis_size(axis_name), lax.axis_index(axis_name), jnp.zeros(lax.axis_size(axis_name), int)
    sent, received = (zeros.at[(index + sign * offset) % p].set(x.shape[0]) for sign in (1, -1))
    return lax.ragged_all_to_all(x, jnp.zeros_like(x), zeros, sent, zeros, received, axis_name=axis_name)


def summed(x, axis_name, *, op="sum"):
    from shardproof.impl.collectives import all_reduce

    if not jnp.iscomplexobj(x):
        raise NotImplementedError("other dtypes than complex ones")
    nothing = lax.psum(jnp.zeros_like(x), axis_name)
    return all_reduce(x, axis_name, op=op) + nothing
""",
    "ends": "import sys\n\nsys.exit(3)\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder outside of the checkout with a module of functions."""
    for name, text in FUNCTIONS.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.either_end
@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            "ring_shif=mine:right",
            "--impl=ring_shif=mine:right: contract='ring_shif': no such contract; did you mean 'ring_shift'?",
        ),
        ("ring_shift=yours:right", "cannot import yours: ModuleNotFoundError: No module named 'yours'"),
        ("ring_shift=ends:right", "cannot import ends: SystemExit: 3"),
        ("ring_shift=mine:left", "--impl=ring_shift=mine:left: module mine has no left"),
        ("ring_shift=mine:other", "ring_shift: other(x) cannot be called as (x, axis_name, *, offset)"),
        ("json:dumps", "--impl=json:dumps: expected a Program, got function; or CONTRACT=json:dumps"),
        ("mine:mlp p-1", "--expect-communication=p-1: mine:mlp is a Program: expected communication='p-1' in its own"),
        ("mine", "--impl=mine: expected CONTRACT=MODULE:FUNCTION, as in all_gather=mine:gather, or MODULE:PROGRAM"),
        ("=mine:mlp", "--impl==mine:mlp: expected CONTRACT=MODULE:FUNCTION"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, given: str, line: str
) -> None:
    """A wrong name or signature, or what is no program, is refused before anything is checked."""
    monkeypatch.syspath_prepend(project)
    sys.modules.pop("mine", None)
    with pytest.raises(GivenError) as caught:
        Given.parse(*given.split()).load()
    sys.modules.pop("mine", None)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


MEETING = {
    "ring_shift=mine:ragged": "ragged_all_to_all_cpu",
    "all_reduce=mine:summed": "complex_constant_sum",
}
"""Right functions, and the known defect of XLA that each meets."""


@pytest.mark.lengthy
def test_what_the_compiler_gets_wrong_is_not_held_against_a_function(project: Path) -> None:
    """A right function that meets a known defect of XLA passes, even where that ends the process, with a note."""
    given = [f"--impl={one}" for one in MEETING]
    done = pytest_given(project, *given, "--laws=value,agreement", "--engine=xla", "--hypothesis-profile=ci")
    assert done.returncode == 0, done.stdout
    for one, defect in MEETING.items():
        contract, _, function = one.partition("=mine:")
        assert re.search(rf"known defect, met \d+ times?: {defect}: ", done.stdout), defect
        assert f"{contract}[{function}]" in done.stdout


RUNTIME = "shardproof.properties.mutants.runtime"
GREEDY = ("ring_shift=shift_never_ends", "broadcast=broadcast_eats_memory")
"""Planted bugs that take all they can get of the machine, whatever compiles them."""

VALUE = r"value(?: under [^:]*)?"
"""The law of values in a headline, with whatever is around the call: what ends a process is not shrunk."""

CRASHES = sorted({f"{m.contract}={m.name}" for m in MUTANTS.values() if m.runs == "isolated"} - {*GREEDY})


def checked(project: Path, functions: Iterable[str], *more: str) -> str:
    """The output of a run with planted bugs that do not come back and with other functions; it runs to its end."""
    given = [*(one.replace("=", f"={RUNTIME}:") for one in functions), *more]
    chosen = ("--laws=value", "-k", "xla or (simulate and (hangs or aborts))", "--hypothesis-profile=ci")
    done = pytest_given(project, *[f"--impl={one}" for one in given], *chosen)
    assert done.returncode == 1
    return done.stdout


def scripts(project: Path) -> int:
    """How many scripts were written."""
    return len(list((project / ".shardproof" / "failures").glob("*.py")))


@pytest.mark.lengthy
def test_crashes_hangs_and_gaps_are_results(project: Path) -> None:
    """A function that hangs, aborts or recurses is reported with its case and script; every other result is kept."""
    text = checked(project, CRASHES, "ring_shift=mine:declines", "ring_shift=mine:right")
    assert re.search(rf"all_reduce\[reduce_aborts\]: {VALUE}: mesh .*: aborts the process \(SIGABRT\)", text)
    assert re.search(
        rf"wrong in the same way under 1 more check:\n    {VALUE}: mesh .*: aborts the process \(SIGABRT\)", text
    )
    assert re.search(
        rf"ring_shift\[shift_hangs_unseen\]: {VALUE}: .*: does not finish: devices wait for one another", text
    )
    assert re.search(
        r"all_gather\[gather_recurses_for_ever\]: value: mesh \(dp=[12]\), axis 'dp': raises RecursionError", text
    )
    # the interpreter says why: devices that disagree about the next collective, with both places in the program
    assert "ring_shift[shift_hangs]: value: mesh (dp=2), axis 'dp': raises CollectiveMismatch" in text
    assert text.count("runtime.py:") >= 2
    assert "unsupported: ring_shift[declines]: NotImplementedError: blocks of rank above one, " in text
    assert "7 failed, 2 passed" in text
    assert scripts(project) == 7


@pytest.mark.lengthy
@pytest.mark.either_end
def test_what_takes_all_of_the_machine_is_a_result(project: Path) -> None:
    """A function that never ends or eats memory is stopped, and reported with its case and script; the run goes on."""
    text = checked(project, GREEDY, "ring_shift=mine:right")
    assert re.search(rf"ring_shift\[shift_never_ends\]: {VALUE}: mesh .*: does not finish: it still computes", text)
    assert re.search(rf"broadcast\[broadcast_eats_memory\]: {VALUE}: mesh .*: takes more than 6 GiB of memory", text)
    assert "2 failed, 1 passed" in text
    assert scripts(project) == 2
