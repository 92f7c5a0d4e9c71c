"""Single operations with all layouts: parameters are drawn, layouts of operands and results are enumerated."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, islice, permutations, product
from typing import Any

import msgspec
import numpy as np

from shardproof.properties.conformance.program import INEXACT, Output, Program, Spec
from shardproof.properties.conformance.programs import programs

replace = msgspec.structs.replace

MESHES: tuple[dict[str, int], ...] = ({"a": 2}, {"a": 4}, {"a": 2, "b": 2}, {"a": 3}, {"a": 2, "unused": 3})
"""The meshes; no layout has the axis `unused`."""


class Reached(msgspec.Struct):
    """How many operations were reached, of how many, and how many combinations of all that these have."""

    of_operations: int
    operations: int = 0
    combinations: int = 0
    of_combinations: int = 0


def layouts(shape: Sequence[int], axes: dict[str, int]) -> Iterator[Spec]:
    """All layouts of an array whose parts are even."""
    if not shape:
        yield []
        return
    tuples = [list(p) for count in (1, 2) for p in permutations(axes, count)]
    for entry in (None, *tuples):
        if shape[0] % math.prod(axes[axis] for axis in entry or ()) == 0:
            left = {axis: size for axis, size in axes.items() if axis not in (entry or ())}
            yield from ([entry, *rest] for rest in layouts(shape[1:], left))


def choices(program: Program) -> list[list[list[Any]]]:
    """The choices: a layout of each operand, one of each result that may have one, and a derivative.

    Those of forward programs, and then those of derivatives, if there are any, whose results have no layouts stated.
    """
    axes = {axis: size for axis, size in program.mesh.items() if axis != "unused"}
    operands: list[list[Any]] = [[*layouts(one.shape, axes)] for one in program.inputs]
    (step,) = program.steps
    of_results: list[list[Any]] = []
    if program.axes == "auto":
        of_results = [[None, *layouts(value.shape, axes)] for value in step.results]
    elif "to" in step.params:
        operands.append([None, *layouts(step.results[0].shape, axes)])
    made = [[*operands, *of_results, [""]]]
    if program.differentiated() and all(value.dtype in INEXACT for value in step.results):
        made.append([*operands, *([None] for _ in of_results), ["jvp", "vjp"]])
    return made


def apply_choice(program: Program, choice: Sequence[Any]) -> Program:
    """A program with one of each of its choices."""
    *specs, derivative = choice
    count = len(program.inputs)
    inputs = tuple(replace(one, spec=spec, reduced=()) for one, spec in zip(program.inputs, specs, strict=False))
    (step,) = program.steps
    outputs = program.outputs
    if program.axes == "auto":
        outputs = tuple(Output(one.name, spec) for one, spec in zip(step.results, specs[count:], strict=True))
    elif specs[count:]:
        step = replace(step, params={**step.params, "to": specs[-1]})
    return replace(program, inputs=inputs, steps=(step,), outputs=outputs, derivative=derivative)


def combinations(program: Program, rng: np.random.Generator) -> tuple[list[Program], int]:
    """Programs in which each choice is made at least once, and of how many combinations: all, where they are few."""
    some: list[Program] = []
    of = 0
    for every in choices(program):
        total, most = math.prod(map(len, every)), max(map(len, every))
        of += total
        if total <= 2 * most:
            some += [apply_choice(program, choice) for choice in product(*every)]
            continue
        shuffled = [[options[i] for i in rng.permutation(len(options))] for options in every]
        made = zip(*(islice(cycle(options), 2 * most) for options in shuffled), strict=True)
        found = {msgspec.json.encode(one): one for one in (apply_choice(program, choice) for choice in made)}
        some += found.values()
    return some, of


def enumerate_layouts(
    names: Sequence[str], kinds: Sequence[str], sets: int, seed: int, devices: int, reached: Reached
) -> Iterator[list[Program]]:
    """All programs of one operation after the other, with `sets` of drawn parameters on each mesh."""
    rng = np.random.default_rng(seed)
    for number, i in enumerate(rng.permutation(len(names))):
        batch: list[Program] = []
        for (m, mesh), axes in product(enumerate(MESHES), kinds):
            if math.prod(mesh.values()) > devices:
                continue
            drawn = programs([names[i]], axes, 1, sets, seed * 1_000_003 + 64 * number + m, mesh=mesh, plain=True)
            for program in drawn:
                some, total = combinations(program, rng)
                batch += some
                reached.combinations += len(some)
                reached.of_combinations += total
        yield batch
