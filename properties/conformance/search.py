"""Draws programs, runs them, and reports what is not right: each cause once, with its smallest program."""

import collections
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import msgspec
import numpy as np

from shardproof.properties.conformance import running
from shardproof.properties.conformance.exhaustive import Reached, enumerate_layouts
from shardproof.properties.conformance.known import can_be, match_error, replicate_steps
from shardproof.properties.conformance.operations import OPERATIONS, TEMPLATES
from shardproof.properties.conformance.program import Program, script
from shardproof.properties.conformance.programs import programs
from shardproof.properties.conformance.running import Verdict
from shardproof.properties.conformance.shrink import normalize_message, shrink
from shardproof.properties.conformance.workers import Workers

replace = msgspec.structs.replace

EACH = 3
"""How many programs of one operation with one message are shrunk: an operation may have more than one cause."""

BATCH = 160
"""How many programs are drawn at once."""


class Finding(msgspec.Struct):
    """A cause: the smallest program that shows it, the one that was drawn, and a script in plain JAX."""

    kind: str
    detail: str
    operations: list[str]
    program: Program
    drawn: Program
    votes: dict[str, str]
    script: str
    confirmed: bool
    seen: int = 1
    at: int = 0
    """How many programs had been run."""


class Outcome(msgspec.Struct):
    """The findings of a run, and how often each operation had which verdict."""

    jax: str
    platform: str
    flags: str
    seed: int
    programs: int = 0
    seconds: float = 0.0
    counts: dict[str, dict[str, dict[str, int]]] = {}
    """By operation and column, how many programs had which verdict: of programs of one step."""
    longer: dict[str, int] = {}
    """How many programs of several steps had which verdict."""
    excused: int = 0
    """How many programs were wrong only for what the run had found already."""
    known: dict[str, int] = {}
    """How many programs met which known defect."""
    reached: Reached | None = None
    """How far an exhaustive run came."""
    deaths: int = 0
    findings: list[Finding] = []


def column(program: Program) -> str:
    """The column of the table that a program counts in."""
    if any(one.reduced for one in program.inputs):
        return "reduced"
    kind = "Auto" if program.axes == "auto" else "Explicit"
    if program.batch:
        return f"vmap, {kind}"
    return f"gradient, {kind}" if program.derivative else kind


def summarize(program: Program, verdict: Verdict) -> str:
    """The first line of a script: the operations and the verdict."""
    names = ", ".join(dict.fromkeys(program.operations))
    way = f"the {program.derivative} of {names}" if program.derivative else names
    return f"On {program.axes} axes, {way}: {verdict.kind}."


def exits_wrong(text: str) -> bool:
    """True if a script in a process of its own exits neither with 0, all is right, nor with 2, it cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(text, encoding="utf-8")
        try:
            env = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS",)}
            done = subprocess.run(
                [sys.executable, str(path)], env=env, capture_output=True, text=True, check=False, timeout=150
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode not in (0, 2)


def format_results(program: Program) -> str:
    """The right results of a program, as they are written in a script, if the interpreter has finite ones."""
    found = running.compute_reference(program, running.trace_unsharded(program), running.make_inputs(program))
    if not isinstance(found, running.Reference) or not all(np.isfinite(x.astype(complex)).all() for x in found.results):
        return ""
    return f"({', '.join(f'np.array({x.tolist()})' for x in found.results)},)"


class Search:
    """A search.

    Arguments:
        seed: what it draws from.
        names: the operations; all, if there are none.
        axes: the kinds of axes.
        workers: what runs programs.
        report: called with a line for each cause.
    """

    def __init__(
        self, seed: int, names: Sequence[str], axes: Sequence[str], workers: Workers, report: Callable[[str], None]
    ) -> None:
        self.seed, self.names, self.axes = seed, list(names) or [*OPERATIONS], list(axes)
        self.workers, self.report = workers, report
        self.outcome = Outcome(jax.__version__, workers.where.platform, os.environ.get("XLA_FLAGS", ""), seed)
        self.shrunk: collections.Counter[object] = collections.Counter()
        self.causes: dict[object, Finding] = {}
        self.rounds = 0

    def run(self, programs: Sequence[Program]) -> list[Verdict]:
        """The verdicts on programs, in their order."""
        found = {id(program): verdict for program, verdict in self.workers.run(programs)}
        return [found[id(program)] for program in programs]

    def draw(self) -> Iterator[list[Program]]:
        """Batches of programs, without end: every other one of single operations, each as often as it weighs."""
        turn: list[str] = []
        while True:
            cycle, turn_of = divmod(self.rounds, 2 * len(self.axes))
            axes, steps = self.axes[turn_of // 2], (3, 8)[cycle % 2]
            self.rounds += 1
            start = self.seed * 1_000_003 + self.rounds * 1009
            if self.rounds % 2:
                batch: list[Program] = []
                while len(batch) < min(BATCH, 16 * len(self.names)):
                    if not turn:
                        most = max(OPERATIONS[name].weight for name in self.names)
                        turn = [n for i in range(most) for n in self.names if OPERATIONS[n].weight > i]
                        turn = [turn[i] for i in np.random.default_rng(self.seed).permutation(len(turn))]
                    name = turn.pop(0)
                    batch += programs([name], axes, 1, 2, start + len(batch), self.workers.where.devices)
                yield batch
            else:
                yield programs(
                    self.names, axes, steps, min(BATCH, 16 * len(self.names)), start, self.workers.where.devices
                )

    def count(self, program: Program, verdict: Verdict) -> None:
        """Counts a verdict."""
        if len(program.steps) > 1:
            self.outcome.longer[verdict.kind] = self.outcome.longer.get(verdict.kind, 0) + 1
            return
        of = self.outcome.counts.setdefault(program.operations[0], {}).setdefault(column(program), {})
        of[verdict.kind] = of.get(verdict.kind, 0) + 1

    def step(self, batch: Sequence[Program], until: float) -> None:
        """Runs a batch, as much of it as begins in time, and looks into what is not right."""
        bad, before = [], self.outcome.programs
        for drawn, verdict in self.workers.run(batch, until):
            self.outcome.programs += 1
            if verdict.kind in ("wrong", "fails"):
                bad.append((drawn, verdict))
                continue
            if verdict.kind == "known":
                self.meet(verdict.detail.split(", "))
            self.count(drawn, verdict)
        for drawn, verdict in sorted(bad, key=lambda pair: pair[0].size()):
            # what is wrong is the program that was run
            program = replicate_steps(drawn, verdict.replicated) if verdict.replicated else drawn
            self.count(drawn, Verdict("known" if self.excuse(program, verdict) else self.look_into(program, verdict)))
        if self.outcome.reached is not None:
            missing = len(batch) - (self.outcome.programs - before)
            self.outcome.reached.operations += bool(batch) and not missing
            self.outcome.reached.combinations -= missing

    def meet(self, names: Sequence[str]) -> None:
        """Counts known defects that a program has met."""
        for name in names:
            self.outcome.known[name] = self.outcome.known.get(name, 0) + 1

    def excuse(self, program: Program, verdict: Verdict) -> bool:
        """True if a wrong program is right once the steps that known defects make wrong are replicated.

        If one of them alone is enough, and ends a process, its operations are replicated from then on before they run.
        """
        met = verdict.known
        if verdict.detail.startswith(("aborts", "hangs")) and not verdict.replicated:
            traced = self.workers.worker(fast=True).run_alone([program], [0], "traced")[0]
            met = {**match_error(program, running.trace_unsharded(program), verdict.detail), **traced.known}
        met = {name: steps for name, steps in met.items() if can_be(name, verdict.kind, verdict.detail)}
        for names in dict.fromkeys([*((name,) for name in met), tuple(met)] if met else []):
            steps = [i for name in names for i in met[name]]
            if self.run([replicate_steps(program, steps)])[0].kind in ("right", "known"):
                self.workers.excused.update(names if len(names) == 1 and verdict.detail.startswith("aborts") else ())
                self.meet(names)
                return True
        return False

    def found_before(self, program: Program) -> list[int]:
        """The steps of a program whose operation this run has found wrong by itself, on its axes."""
        names = {
            finding.operations[0]
            for finding in self.causes.values()
            if len(finding.operations) == 1 and finding.program.axes == program.axes
        }
        return [i for i, step in enumerate(program.steps) if step.op in names - {"constrain", "constrain_twice"}]

    def look_into(self, program: Program, verdict: Verdict) -> str:
        """Shrinks a program that is not right, unless its mistake is known; returns its verdict in the end."""
        message = normalize_message(verdict.detail)
        key = (verdict.kind, program.axes, bool(program.derivative), frozenset(program.operations), message)
        self.shrunk[key] += 1
        if self.shrunk[key] > EACH:
            return verdict.kind
        steps = self.found_before(program)
        if len(program.steps) > 1:
            if steps and self.run([replicate_steps(program, steps)])[0].kind not in ("wrong", "fails", "invalid"):
                self.outcome.excused += 1
                return "known"
        elif any(
            (finding.kind, finding.operations, normalize_message(finding.detail))
            == (verdict.kind, list(program.operations), message)
            and finding.seen >= EACH
            for finding in self.causes.values()
        ):
            return verdict.kind
        ends = verdict.detail.startswith(("aborts", "hangs"))
        small = shrink(program, verdict, self.run, together=1 if ends else 12)
        found, verdict = small.program, small.verdict
        if self.excuse(found, verdict):
            return "known"
        cause = (
            verdict.kind,
            tuple(found.operations),
            normalize_message(verdict.detail),
            found.axes,
            bool(found.derivative),
        )
        if cause in self.causes:
            self.causes[cause].seen += 1
            return verdict.kind
        voted = self.workers.worker(fast=False).vote(found)
        if voted.kind != verdict.kind:
            self.report(f"not confirmed by itself: {found.operations} {verdict.detail[:200]}")
            return "undetermined"
        unlaid = bool(voted.votes.get("one device"))
        if unlaid and (met := [name for name in verdict.known if can_be(name, voted.kind, voted.detail)]):
            self.meet(met)  # replicating does not help where one device is wrong as well
            return "known"
        kind = f"{voted.kind} without layouts" if unlaid else voted.kind
        where = self.workers.where
        right = format_results(found) if kind == "wrong without layouts" else ""
        said, raises = summarize(found, voted), voted.kind == "fails"
        text = script(found, TEMPLATES, said, where.platform, where.preload, right, raises=raises)
        finding = Finding(
            kind, voted.detail, list(found.operations), found, program, voted.votes, text,
            confirmed=(bool(right) or not unlaid) and exits_wrong(text), at=self.outcome.programs,
        )  # fmt: skip
        self.causes[cause] = finding
        self.outcome.findings.append(finding)
        self.report(f"{kind}{'' if finding.confirmed else ' (script shows nothing)'}: {found.axes} {found.mesh} "
                  f"{found.derivative} {found.operations}: {voted.detail[:220]} {voted.votes or ''}")  # fmt: skip
        return verdict.kind

    def enumerate(self, sets: int) -> Iterator[list[Program]]:
        """Batches of all layouts of single operations, with `sets` of drawn parameters each."""
        self.outcome.reached = reached = Reached(len(self.names))
        return enumerate_layouts(self.names, self.axes, sets, self.seed, self.workers.where.devices, reached)

    def search(self, seconds: float, sets: int = 0, after: Callable[[Outcome], None] = lambda outcome: None) -> Outcome:
        """Searches for some seconds: in drawn programs, or in all layouts with `sets` of drawn parameters."""
        start = time.monotonic()
        turns = 1 if sets else 2 * len(self.axes)
        for number, batch in enumerate(self.enumerate(sets) if sets else self.draw()):
            # three batches of four of each kind, and one as users compile
            self.workers.quick = number // turns % 4 != 3
            self.step(batch, start + seconds)
            self.outcome.seconds = time.monotonic() - start
            self.outcome.deaths = sum(worker.deaths for worker in self.workers.all)
            after(self.outcome)
            if self.outcome.seconds > seconds:
                break
        return self.outcome
