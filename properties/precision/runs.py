"""Runs of a case's program in double precision, and with each result rounded at random."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Interpreted, Sets, SimulateEngine
from shardproof.properties.engines.running import ready
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.interpreter import evaluate
from shardproof.properties.engines.simulate.liveness import widest
from shardproof.properties.engines.simulate.prepare import beside, of_set
from shardproof.properties.engines.simulated import failing_as_a_limit
from shardproof.properties.precision.arithmetic import Doubles, EndlessLoop, Sampled, double
from shardproof.properties.precision.charges import Charges
from shardproof.properties.precision.sums import fused_products, narrowed_constants, rounded_on_the_way, rounded_sums
from shardproof.properties.programs.implementations import Implementation

INTERPRETER = SimulateEngine()

SAMPLES = 16
"""The number of runs of a data set with each result rounded at random."""

MANY = 64
"""On a mesh of more devices half as many: there is nothing of roundings that a smaller mesh does not show."""

MOST = 2**19
"""The most numbers of one value, of all data sets and samples, that are computed at once; more leave the caches."""


def interpret_doubles(closed_jaxpr: Any, sets: Sets) -> list[list[np.ndarray]]:
    """The results of a closed jaxpr on several data sets in double precision, given what may be doubles already.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    stacked = [np.stack(column) for column in zip(*sets, strict=True)]
    results = evaluated(beside(len(sets)), closed_jaxpr, stacked, Doubles())
    return [[np.array(of_set(x, i)) for x in results] for i in range(len(sets))]


def evaluated(env: Env, closed_jaxpr: Any, values: Sequence[np.ndarray], arithmetic: Doubles) -> list[np.ndarray]:
    """The results of a closed jaxpr in an arithmetic.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    with np.errstate(all="ignore"), failing_as_a_limit():
        held = [x.astype(double(x.dtype), copy=False) for x in values]
        return evaluate(dataclasses.replace(env, arithmetic=arithmetic), closed_jaxpr, held)


def run_samples(
    program: Simulated, sets: Sets, arithmetic: Doubles, samples: int, chosen: range | None = None
) -> list[list[np.ndarray]]:
    """The results of a traced program on several data sets, `[samples, ...]` each, all of them run at once.

    Arguments:
        program: the program.
        sets: the data sets.
        arithmetic: in what it is run.
        samples: how many there are of each data set.
        chosen: those that are run; None: all of them.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    chosen = range(samples) if chosen is None else chosen
    if isinstance(arithmetic, Sampled):
        new: dict[str, Any] = {"inexact": {}, "turns": {}, "marks": {}, "steps": {}}
        arithmetic = dataclasses.replace(arithmetic, samples=samples, chosen=chosen, sets=len(sets), **new)
    count = len(chosen)
    values = [np.repeat(x, count, axis=0) for x in program.stacked(sets)]
    results = evaluated(beside(len(sets) * count), program.closed_jaxpr, values, arithmetic)
    return [
        [np.stack([np.array(of_set(x, i * count + k)) for k in range(count)]) for x in results]
        for i in range(len(sets))
    ]


class Runs:
    """The runs of a case's program, made ready as `kind`, on several data sets; each is made when it is asked for.

    Arguments:
        kind: as what it is made ready.
        implementation: the implementation.
        case: the case.
        sets: the data sets.
    """

    def __init__(self, kind: str, implementation: Implementation, case: Case, sets: Sets) -> None:
        self.kind, self.implementation, self.case, self.sets = kind, implementation, case, sets
        self._known: dict[Any, list[list[np.ndarray] | EndlessLoop]] = {}
        self._steps: dict[int, int] = {}

    @cached_property
    def program(self) -> Simulated:
        """The traced program."""
        prepared = ready(self.kind, self.implementation, self.case, INTERPRETER).prepared
        assert isinstance(prepared, Interpreted)
        return prepared.traced.live()

    def in_doubles(self, index: int) -> list[np.ndarray]:
        """The results on one data set.

        Raises:
            InterpreterLimit: if the interpreter cannot run it.
        """
        return [np.asarray(x[0]) for x in self._samples("doubles", Doubles(), 1, index)]

    @property
    def samples(self) -> int:
        """The number of samples of a data set: on many devices half as many."""
        return SAMPLES // 2 if self.case.mesh.size > MANY else SAMPLES

    def nearly(self, index: int) -> list[np.ndarray]:
        """`[samples, ...]` of what doubles may give that round otherwise, of constants as the source may have them."""
        own = narrowed_constants(self.program.closed_jaxpr)
        sampled = Sampled(samples=SAMPLES // 2, known=self._steps, own=own, fused=self._fused)
        return self._samples("nearly", sampled, SAMPLES // 2, index)

    def rounded(self, index: int, charges: Charges) -> list[np.ndarray]:
        """`[samples, ...]` of the results with each operation rounded as it is charged."""
        sampled = Sampled(charges=charges, known=self._steps, fused=self._fused)
        if charges.sums:
            parts = frozenset(id(one.equation) for one in rounded_sums(self.program.closed_jaxpr))
            sampled = dataclasses.replace(sampled, parts=parts)
        if charges.on_the_way:
            sampled = dataclasses.replace(sampled, own=rounded_on_the_way(self.program.closed_jaxpr))
        return self._samples(charges, sampled, self.samples, index)

    @cached_property
    def _fused(self) -> Mapping[int, tuple[frozenset[int], ...]]:
        return fused_products(self.program.closed_jaxpr)

    @cached_property
    def _at_once(self) -> int:
        """The number of samples that are run at once."""
        return max(1, MOST // widest(self.program.closed_jaxpr))

    def _samples(self, key: Any, arithmetic: Doubles, samples: int, index: int) -> list[np.ndarray]:
        if key not in self._known:
            together = max(1, self._at_once // samples)
            groups = [self.sets[i : i + together] for i in range(0, len(self.sets), together)]
            self._known[key] = [found for group in groups for found in self._group(group, arithmetic, samples)]
        found = self._known[key][index]
        if isinstance(found, EndlessLoop):
            raise found
        return found

    def _group(self, sets: Sets, arithmetic: Doubles, samples: int) -> list[list[np.ndarray] | EndlessLoop]:
        arithmetic = dataclasses.replace(arithmetic, steps={})
        at_once = math.gcd(samples, 1 << self._at_once.bit_length() - 1)
        try:
            each = [
                run_samples(self.program, sets, arithmetic, samples, range(k, k + at_once))
                for k in range(0, samples, at_once)
            ]
        except Exception as error:
            if len(sets) == 1 and isinstance(error, EndlessLoop):
                return [error]
            if len(sets) == 1:
                raise
            return [found for one in sets for found in self._group([one], arithmetic, samples)]
        if not isinstance(arithmetic, Sampled):
            for key, times in arithmetic.steps.items():
                self._steps[key] = max(times, self._steps.get(key, 0))
        return [[np.concatenate(x) for x in zip(*parts, strict=True)] for parts in zip(*each, strict=True)]
