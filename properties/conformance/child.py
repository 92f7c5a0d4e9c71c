"""The process that runs packs of programs: it reads them from its input, a line each, and answers in lines."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from shardproof.properties.conformance import running
from shardproof.properties.conformance.program import Program
from shardproof.properties.conformance.running import Reference, Traced, Verdict


class Request(msgspec.Struct):
    """Programs to run: *packed*, *alone*, with *votes* of others, or on *one device* without layouts."""

    programs: list[Program]
    how: str = "packed"


class Answer(msgspec.Struct):
    """The verdict on the program of this number in the request."""

    number: int
    verdict: Verdict


def unsharded(program: Program, values: Sequence[np.ndarray]) -> Reference | Verdict:
    """The right results by XLA on one device."""
    found = jax.jit(running.function(program, laid=False, every=not program.derivative))(*values)
    made = [np.asarray(x) for x in jax.tree.leaves(found)]
    return running.judged(program, values, made, "xla")


def prepared(program: Program) -> Verdict | tuple[Traced, Reference]:
    """A program traced with its layouts, and its right results; or the verdict that there is without running it."""
    values = running.arrays(program)
    try:
        right = running.reference(program, values)
    except Exception as error:
        return Verdict("invalid", running.message(error))
    if isinstance(right, Verdict):
        return right
    if not right.by:
        if running.has_island(program):
            return Verdict("undetermined", "the interpreter lacks something")
        try:
            right = unsharded(program, values)
        except Exception as error:
            return Verdict("invalid", running.message(error))
        if isinstance(right, Verdict):
            return right
    try:
        return running.traced(program, values), right
    except Exception as error:
        if program.derivative:
            forward = msgspec.structs.replace(program, derivative="")
            try:
                running.traced(forward, values)
            except Exception:
                return Verdict("refused", running.message(error))
            return Verdict("fails", f"derivative: {running.message(error)}", right.by)
        return Verdict("refused" if running.refusal(error) else "fails", running.message(error), right.by)


def judged(ready: Sequence[tuple[Traced, Reference]]) -> list[Verdict]:
    """The verdicts on programs that are compiled as one, or, if that fails, in two halves."""
    try:
        results = running.run_pack([traced for traced, _ in ready])
    except Exception as error:
        if len(ready) == 1:
            program = ready[0][0].program
            try:
                if not running.has_island(program):
                    unsharded(program, running.arrays(program))
            except Exception as other:
                return [Verdict("invalid", f"compiled without layouts: {running.message(other)}")]
            return [Verdict("fails", f"compiled: {running.message(error)}", ready[0][1].by)]
        half = len(ready) // 2
        return [*judged(ready[:half]), *judged(ready[half:])]
    return [
        Verdict("wrong" if text else "right", text, right.by)
        for (traced, right), found in zip(ready, results, strict=True)
        for text in [running.compared(right, found, traced.shardings) or traced.wrong_type]
    ]


def run(request: Request, tell: Any) -> None:
    """Answers a request."""
    ready: dict[int, Any] = {}
    for number, program in enumerate(request.programs):
        if request.how == "one device":
            unsharded(program, running.arrays(program))
            tell(Answer(number, Verdict("right")))
            continue
        made = prepared(program)
        if isinstance(made, Verdict):
            tell(Answer(number, made))
        elif request.how == "packed":
            ready[number] = made
        else:
            verdict = judged([made])[0]
            if request.how == "votes" and verdict.kind == "wrong":
                verdict = msgspec.structs.replace(verdict, votes=votes(program, made[1]))
            tell(Answer(number, verdict))
    if ready:
        for number, verdict in zip(ready, judged([*ready.values()]), strict=True):
            tell(Answer(number, verdict))


def votes(program: Program, right: Reference) -> dict[str, str]:
    """What others make of a program: empty where they agree with what is taken for right."""
    values = running.arrays(program)
    found = {}

    def vote(name: str, make: Any) -> None:
        try:
            results = [np.asarray(x) for x in jax.tree.leaves(make())]
            texts = [running.differing(right, i, x, ...) for i, x in enumerate(results)]
            found[name] = next((text for text in texts if text), "")
        except Exception as error:
            found[name] = running.message(error)

    if not running.has_island(program):
        vote("one device", lambda: jax.jit(running.function(program, laid=False))(*values))
        vote("without jit", lambda: running.function(program, laid=False)(*map(jax.numpy.asarray, values)))
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        vote("older partitioner", lambda: running.run_pack([running.traced(program, values)]))
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    return found


def main() -> None:
    """Serves until its input ends; a module of a backend may be named, which is imported first."""
    if name := next(iter(sys.argv[1:]), ""):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def tell(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    for text in sys.stdin.buffer:
        run(msgspec.json.decode(text, type=Request), tell)
        answers.write(b"done\n")
        answers.flush()


if __name__ == "__main__":
    main()
