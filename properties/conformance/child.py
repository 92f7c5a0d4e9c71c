"""The process that runs packs of programs: it reads them from its input, a line each, and answers in lines."""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np

from shardproof.properties.conformance import known, running
from shardproof.properties.conformance.known import Steps
from shardproof.properties.conformance.program import Program
from shardproof.properties.conformance.running import Reference, Traced, Verdict


class Request(msgspec.Struct):
    """Programs to run: *packed*, *alone*, with *votes* of others, only *traced*, or on *one device* without layouts."""

    programs: list[Program]
    how: str = "packed"
    quick: bool = False
    """Compiles packs in the fastest way, which is not XLA's default."""
    excused: list[str] = []
    """The known defects whose operations are replicated before a program is run."""


class Answer(msgspec.Struct):
    """The verdict on the program of this number in the request."""

    number: int
    verdict: Verdict


def run_unsharded(program: Program, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results by XLA on one device, and without a derivative all values of its steps behind them."""
    found = jax.jit(running.build_function(program, laid=False, every=not program.derivative))(*values)
    return [np.asarray(x) for x in jax.tree.leaves(found)]


class Ready(NamedTuple):
    """A traced program with its right results, the defects that it may meet, and the steps that were replicated."""

    traced: Traced
    right: Reference
    known: Steps
    replicated: Steps

    def final(self, verdict: Verdict) -> Verdict:
        """The verdict on a program, given the one on what was run."""
        if self.replicated and verdict.kind == "right":
            return Verdict("known", ", ".join(self.replicated))
        steps = sorted({i for steps in self.replicated.values() for i in steps})
        return msgspec.structs.replace(verdict, known={**verdict.known, **self.known}, replicated=steps)


def prepare(program: Program, excused: Sequence[str] = ()) -> Verdict | Ready:
    """A program traced with its layouts, and its right results; or the verdict that there is without running it."""
    values = running.make_inputs(program)
    try:
        unsharded = running.trace_unsharded(program)
    except Exception as error:  # JAX refuses it without layouts
        return Verdict("invalid", running.format_error(error))
    right = running.compute_reference(program, unsharded, values)
    if isinstance(right, Verdict):
        return right
    if right is None:
        if running.has_island(program):
            return Verdict("undetermined", "the interpreter lacks something")
        try:
            made = run_unsharded(program, values)
        except Exception as error:
            return Verdict("invalid", running.format_error(error))
        right = running.bound_results(program, unsharded, values, made)
        if isinstance(right, Verdict):
            return right
    try:
        traced = running.trace_program(program, values)
    except Exception as error:
        text = running.format_error(error)
        forward = msgspec.structs.replace(program, derivative="")
        steps = running.trace_unsharded(forward) if program.derivative else unsharded
        defects = known.match_error(program, steps, text, error)
        if program.derivative:
            try:
                running.trace_program(forward, values)
            except Exception:
                return Verdict("refused", text)
            return Verdict("fails", f"derivative: {text}", known=defects)
        return Verdict("refused" if running.is_refusal(error) else "fails", text, known=defects)
    certain = known.find_defects(program, traced.closed, values, certain=True)
    certain = {name: steps for name, steps in certain.items() if name in excused}
    if certain:
        held = known.replicate_steps(program, [i for steps in certain.values() for i in steps])
        with contextlib.suppress(Exception):  # then it is run as it is
            whole = running.trace_program(held, values)
            return Ready(whole, right, known.find_defects(held, whole.closed, values, certain=False), certain)
    return Ready(traced, right, known.find_defects(program, traced.closed, values, certain=False), {})


def renew(ready: Ready) -> Ready:
    """A program to be run once more, with new arguments where its own were donated."""
    program = ready.traced.program
    if not program.donated:
        return ready
    mesh = running.mesh_of(program)
    with jax.set_mesh(mesh):
        arguments = running.place_inputs(program, mesh, running.make_inputs(program))
    return ready._replace(traced=ready.traced._replace(arguments=arguments))


def judge(ready: Sequence[Ready], *, quick: bool = False) -> list[Verdict]:
    """The verdicts on programs that are compiled as one, or, if that fails, in two halves."""
    try:
        results = running.run_pack([one.traced for one in ready], quick=quick)
    except Exception as error:
        if len(ready) == 1:
            return [ready[0].final(judge_failure(ready[0].traced.program, error))]
        ready, half = [*map(renew, ready)], len(ready) // 2
        return [*judge(ready[:half], quick=quick), *judge(ready[half:], quick=quick)]
    return [
        one.final(running.judge_results(one.right, found, one.traced.shardings, one.traced.wrong_type))
        for one, found in zip(ready, results, strict=True)
    ]


def judge_failure(program: Program, error: Exception) -> Verdict:
    """The verdict on a program that XLA does not compile."""
    try:
        if not running.has_island(program):
            run_unsharded(program, running.make_inputs(program))
    except Exception as other:
        return Verdict("invalid", f"compiled without layouts: {running.format_error(other)}")
    text = running.format_error(error)
    defects = known.match_error(program, running.trace_unsharded(program), text, error)
    return Verdict("fails", f"compiled: {text}", known=defects)


def run(request: Request, reply: Any) -> None:
    """Answers a request."""
    ready: dict[int, Any] = {}
    for number, program in enumerate(request.programs):
        if request.how == "one device":
            run_unsharded(program, running.make_inputs(program))
            reply(Answer(number, Verdict("right")))
            continue
        made = prepare(program, request.excused)
        if isinstance(made, Verdict):
            reply(Answer(number, made))
        elif request.how == "packed":
            ready[number] = made
        elif request.how == "traced":
            reply(Answer(number, Verdict("undetermined", known=made.known)))
        else:
            verdict = judge([made])[0]
            if request.how == "votes" and verdict.kind == "wrong":
                verdict = msgspec.structs.replace(verdict, votes=collect_votes(program, made.right))
            reply(Answer(number, verdict))
    if ready:
        for number, verdict in zip(ready, judge([*ready.values()], quick=request.quick), strict=True):
            reply(Answer(number, verdict))


def collect_votes(program: Program, right: Reference) -> dict[str, str]:
    """The difference of other runs of a program from its right results: empty where there is none."""
    values = running.make_inputs(program)
    found = {}

    def vote(name: str, make: Any) -> None:
        try:
            results = [np.asarray(x) for x in jax.tree.leaves(make())]
            texts = [running.describe_difference(right, i, x, ...) for i, x in enumerate(results)]
            found[name] = next((text for text in texts if text), "")
        except Exception as error:
            found[name] = running.format_error(error)

    if not running.has_island(program):
        vote("one device", lambda: jax.jit(running.build_function(program, laid=False))(*values))
        vote("without jit", lambda: running.build_function(program, laid=False)(*map(jax.numpy.asarray, values)))
    usual = jax.config.jax_use_shardy_partitioner  # type: ignore[attr-defined] # an attribute made at run time
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        vote("older partitioner", lambda: running.run_pack([running.trace_program(program, values)]))
    finally:
        jax.config.update("jax_use_shardy_partitioner", usual)
    return found


def main() -> None:
    """Serves until its input ends; a module of a backend may be named, which is imported first."""
    if name := next(iter(sys.argv[1:]), ""):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def reply(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    for text in sys.stdin.buffer:
        run(msgspec.json.decode(text, type=Request), reply)
        answers.write(b"done\n")
        answers.flush()


if __name__ == "__main__":
    main()
