"""`check` and `check_program` compile in a child process: what ends that is reported, and the caller lives."""

import dataclasses
import importlib
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from shardproof import Program, check, check_program
from shardproof.impl.collectives import ring_shift
from shardproof.properties.meta.runs import ROOT, python
from shardproof.properties.report import checking
from shardproof.properties.runner import child, isolation
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.isolation import Arrived, Here

HERE = "compiled in this process, which ends if XLA aborts: "


@pytest.fixture(autouse=True, scope="module")
def no_child_is_left() -> Iterator[None]:
    """Later tests of this process start one of their own."""
    yield
    isolation.end()


def called_in_the_child(x: Array, function: Callable[[], object]) -> Array:
    """An array, of which each block calls a function where it is compiled, and not where it is interpreted."""

    def call(block: Any) -> np.ndarray:
        if multiprocessing.parent_process() is not None:
            function()
        return np.asarray(block)

    return jax.pure_callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


def aborts(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Aborts the process that runs it."""
    return called_in_the_child(ring_shift(x, axis_name, offset=offset), os.abort)


def waits(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Never ends, beside an approximate maximum, which the interpreter lacks."""
    x, _ = lax.optimization_barrier((x, lax.approx_max_k(jnp.ones(1), 1)[0]))
    return called_in_the_child(ring_shift(x, axis_name, offset=offset), partial(time.sleep, 10**6))


def test_an_abort_is_reported_and_the_next_function_checked() -> None:
    """A function that aborts where it is compiled is reported with its case, and one that is right holds after it."""
    with pytest.raises(
        AssertionError, match=r"ring_shift\[aborts\]: value.*: mesh .*: aborts the process \(SIGABRT\)"
    ) as output:
        check("ring_shift", aborts, laws="value", max_examples=2)
    assert "\n  case: ring_shift(" in str(output.value)
    assert HERE not in str(output.value)
    held = check("ring_shift", ring_shift, laws="value", max_examples=6)
    assert [tally.structures for tally in held.tallies] == [6, 3]


def test_what_does_not_end_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that waits for ever is reported, and not run on a second engine."""
    monkeypatch.setattr(child, "IDLE_SECONDS", 3.0)
    with pytest.raises(AssertionError, match="does not finish: it waits, and has computed nothing for 3 s") as output:
        check("ring_shift", waits, laws="value", max_examples=2)
    assert "\nnot run on xla, since it did not end on simulate" in str(output.value)


@pytest.mark.lengthy
def test_a_script_survives_without_a_guard(tmp_path: Path) -> None:
    """A script is not run once more in the child, its functions are sent by value, and it ends by itself."""
    (tmp_path / "script.py").write_text(
        "import multiprocessing, os, jax\nfrom jax import lax\nfrom shardproof import check_program\n\n\n"
        "def gathered(x, *, data):\n    return lax.all_gather(x, data, tiled=True)\n\n\n"
        "def aborting(x, *, data):\n"
        "    y = gathered(x, data=data)\n"
        "    end = lambda y: os.abort() if multiprocessing.parent_process() else y\n"
        "    return jax.pure_callback(end, jax.ShapeDtypeStruct(y.shape, y.dtype), y, vmap_method='sequential')\n\n\n"
        "for function in (aborting, gathered):\n"
        "    try:\n"
        "        print(check_program(function, lambda x: x, arguments=('n@data',), results='n', laws='value',\n"
        "                            max_examples=2, check_vma=False))\n"
        "    except AssertionError as error:\n"
        "        print(error)\n"
        "print('the end')\n"
    )
    done = python("script.py", folder=tmp_path, PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert "aborting: value: mesh" in done.stdout
    assert ": aborts the process (SIGABRT)" in done.stdout
    assert "value  xla       held     2 (100%)" in done.stdout, done.stdout
    assert done.stdout.count("the end\n") == 1
    assert HERE not in done.stdout


def scaled(x: Any, *, data: Any, factor: float, twice: bool) -> Any:
    """The sum over `data`, times one factor and perhaps another."""
    return lax.psum(x.sum(), data) * factor * (2 if twice else 1)


def whole_scaled(x: Any, *, twice: bool) -> Any:
    """The same on whole arrays."""
    return x.sum() * 3.0 * (2 if twice else 1)


def test_the_tallies_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right program holds in the child as in this process, on as many structures, and nothing is said of it."""
    sent = Program(
        partial(scaled, factor=3.0), whole_scaled,
        arguments=("n@data",), results="", options={"twice": (False, True)}, serves=lambda n: n < 20,
    )  # fmt: skip
    isolated = check_program(sent, laws="value", max_examples=3)
    monkeypatch.setattr(checking.Searches, "__post_init__", lambda self: setattr(self, "reason", "as the test says"))
    together = check_program(sent, laws="value", max_examples=3)
    assert f"{HERE}as the test says" in together.machine
    assert not any(HERE in line for line in isolated.machine)
    counted = [
        [
            (t.law, t.engine, t.outcome, t.structures, t.cases, {*t.unsupported}, {*t.defects}, {*t.not_run})
            for t in one.tallies
        ]
        for one in (isolated, together)
    ]
    assert counted[0] == counted[1]


def wrong_for_xla(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A shift by one too many where it is traced in the child."""
    return ring_shift(x, axis_name, offset=offset + (multiprocessing.parent_process() is not None))


@pytest.mark.lengthy
def test_what_is_wrong_in_the_child_is_shrunk_and_diagnosed_there() -> None:
    """A violation that the child finds has the smallest mesh, the picture and the diagnosis of any other."""
    with pytest.raises(AssertionError) as raised:
        check("ring_shift", wrong_for_xla, laws="value", max_examples=40)
    output = str(raised.value)
    assert re.match(r"ring_shift\[wrong_for_xla\]: value.*: mesh \(dp=2\), axis 'dp': 2 of 2 blocks wrong\n", output)
    assert "permuted: each wrong block is the right one of another device" in output
    assert "engine: simulate" not in output
    assert "\n  python .shardproof/failures/" in output


def test_what_cannot_be_sent_is_compiled_here() -> None:
    """A function that holds a lock is checked in this process, and the summary says why."""
    lock = threading.Lock()

    def locked(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
        with lock:
            return ring_shift(x, axis_name, offset=offset)

    summary = check("ring_shift", locked, laws="value", max_examples=6)
    assert [tally.structures for tally in summary.tallies] == [6, 3]
    assert f"{HERE}TypeError: cannot pickle '_thread.lock' object" in summary.machine


def test_what_raises_in_the_child_alone_is_compiled_here() -> None:
    """Of a class that is sent by value JAX does not know that it is a pytree: that is not held against the function."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Pair:
        left: Array
        right: Array

    def doubled(x: Any, *, data: Any) -> Any:
        return jax.tree.reduce(jnp.add, Pair(x, x))

    summary = check_program(
        doubled, lambda x: 2 * x, arguments=("n@data",), results="n@data", laws="value", max_examples=6
    )
    assert [tally.structures for tally in summary.tallies] == [6, 3]
    assert any(line.startswith(f"{HERE}in another, doubled returns Pair: ") for line in summary.machine)


def declares(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Refuses all cases in the child, and says how JAX is configured there."""
    if multiprocessing.parent_process() is not None:
        options = (jax.config.jax_default_matmul_precision, jax.config.jax_numpy_rank_promotion)  # type: ignore[attr-defined]
        raise NotImplementedError(f"{options} and {len(jax.devices())} devices")
    return ring_shift(x, axis_name, offset=offset)


def test_the_child_has_the_options_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has this process's options of JAX, whichever they are at that moment, and its number of devices."""
    monkeypatch.setattr(checking, "MAX_UNSUPPORTED", 20)
    for precision, promotion in (("float32", "raise"), (None, "allow")):
        configured = jax.default_matmul_precision(precision), jax.numpy_rank_promotion(promotion)
        with configured[0], configured[1], pytest.raises(AssertionError) as raised:
            check("ring_shift", declares, laws="value", max_examples=1)
        assert f"NotImplementedError: ({precision!r}, {promotion!r}) and {len(jax.devices())} devices" in str(
            raised.value
        )


def test_an_exception_of_the_child_is_raised_here() -> None:
    """An exception of a condition in the child alone is the same here, with the child's traceback as a note."""

    def small(n: int) -> bool:
        if multiprocessing.parent_process() is not None:
            raise KeyError("n")
        return True

    with pytest.raises(ValueError, match=r"^serves\(n=\d+\) raises KeyError: 'n'\n") as raised:
        check_program(lambda x, *, data: x, lambda x: x, arguments=("n@data",), results="n@data", serves=small)
    assert "in the process that was to check it:\nTraceback" in raised.value.__notes__[0]


def test_the_seconds_hold_in_the_child() -> None:
    """A check that compiles ends when its seconds are spent."""
    summary = check("ring_shift", ring_shift, laws="agreement", max_examples=100_000, max_seconds=8)
    assert "\nxla: max_seconds=8 ended it after " in str(summary)


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a check, and the child that was in the middle of it."""

    def interrupt(child: object, watch: object) -> None:
        raise KeyboardInterrupt

    process = isolation.start().process
    with monkeypatch.context() as patch:
        patch.setattr(isolation, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            check("ring_shift", ring_shift, laws="agreement", max_examples=1)
    assert process.exitcode is not None


@pytest.mark.lengthy
def test_a_child_is_kept_until_a_module_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second check runs in the same child; what was edited and reloaded is checked as it is now."""
    text = (
        "from shardproof.impl.collectives import ring_shift\n\n\ndef edited(x, axis_name, *, offset=1):\n    return {}"
    )
    right = "ring_shift(x, axis_name, offset=offset)"
    wrong = "ring_shift(x, axis_name, offset=offset + 1)"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edited_module.py").write_text(text.format(wrong))
    module = importlib.import_module("edited_module")
    try:
        with pytest.raises(AssertionError, match=r"value: mesh \(dp=2\), axis 'dp': 2 of 2 blocks wrong"):
            check("ring_shift", module.edited, laws="value", max_examples=20)
        (tmp_path / "edited_module.py").write_text(f"{text.format(right)}\n")
        importlib.invalidate_caches()
        importlib.reload(module)
        check("ring_shift", module.edited, laws="value", max_examples=20)
        process = isolation.start().process
        check("ring_shift", module.edited, laws="value", max_examples=20)
        assert isolation.start().process is process
    finally:
        del sys.modules["edited_module"]


def test_code_that_is_sent_keeps_its_lines() -> None:
    """Code that is sent by value has the file and line by which reports tell where something is."""
    there, (content, *_) = Here(user_implementation("ring_shift", lambda x, axis_name: x)).__reduce__()
    assert there is Arrived
    assert cloudpickle.loads(content).function.__code__.co_filename == __file__
