"""Draws which form is best for every size: `python -m shardproof.properties.performance.commands.crossover -h`."""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.communication.pictures import LETTER
from shardproof.properties.performance.chips import Chip, chip
from shardproof.properties.performance.choosing import PLAIN, Choice, choose
from shardproof.properties.programs.examples import SHARDED
from shardproof.properties.report.arguments import add_machine, add_mesh, exit_code, parse_axes, parse_dtype, parse_mesh

SIDES = ("m", "k", "n")
SMALLEST, LARGEST = 64, 65536


@dataclass(frozen=True)
class Crossover:
    """What is best for every size of one side."""

    contract: str  # of which operation
    side: str  # which side grows: rows `m`, contracted `k`, columns `n`
    choices: dict[int, Choice]  # by its size

    @property
    def names(self) -> list[str]:
        """The forms, the plain one first, the others in the order of the project."""
        known = {row.implementation.name: row.implementation for c in self.choices.values() for row in c.rows}
        return sorted(known, key=lambda name: name not in PLAIN)

    @property
    def best(self) -> list[tuple[int, int, str]]:
        """From which size to which a form is the best, one after the other."""
        found: list[tuple[int, int, str]] = []
        for size, choice in self.choices.items():
            name = choice.timed.name
            if found and found[-1][2] == name:
                found[-1] = (found[-1][0], size, name)
            else:
                found.append((size, size, name))
        return found

    def text(self) -> str:
        """Which form is best for which sizes."""
        lines = [f"{self.contract} on {next(iter(self.choices.values())).machine.name}, by {self.side}:"]
        for first, last, name in self.best:
            sizes = f"{first:,}" if first == last else f"{first:,} to {last:,}"
            lines.append(f"  {sizes}: {name}" + (", the plain form" if name in PLAIN else ""))
        return "\n".join(lines)


def crossover(
    contract: str,
    sides: tuple[int, int, int],
    side: str,
    machine: Chip,
    mesh: MeshCase,
    axes: tuple[str, ...],
    **more: Any,
) -> Crossover:
    """What is best for every power of two, times the number of participants, of one side; the others are given.

    Raises:
        RequestError: for a contract that is no product, or sides that do not divide.
    """
    if contract not in SHARDED:
        raise RequestError(f"contract={contract!r}: expected a product: {', '.join(SHARDED)}")
    p, choices = mesh.axis_size(axes), {}
    size = p * 2 ** max(0, math.ceil(math.log2(SMALLEST / p)))
    while size <= LARGEST:
        m, k, n = (size if name == side else given for name, given in zip(SIDES, sides, strict=True))
        shapes = ((m, k), (k, n), (n, k))[: len(SHARDED[contract])]  # a transformer block has n hidden features
        choices[size] = choose(contract, shapes, machine, mesh=mesh, axis_name=axes, **more)
        size *= 2
    return Crossover(contract, side, choices)


def parse_sides(text: str) -> tuple[int, int, int]:
    """Rows, contracted size and columns.

    Raises:
        RequestError: if the text does not list them.
    """
    parts = text.split(",")
    if len(parts) != len(SIDES) or not all(part.isdecimal() and int(part) for part in parts):
        raise RequestError(f"--sides={text}: expected rows, contracted size and columns, as in 512,2048,8192")
    m, k, n = map(int, parts)
    return m, k, n


WIDTH, HEIGHT, LEFT, TOP, RIGHT = 760, 380, 74, 92, 210
INK, FAINT, GRID = "#222222", "#666666", "#e8e8e8"
COLOURS = ("#444444", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The plain form's, and those of the others in their order."""


def plot(found: Crossover, title: Sequence[str]) -> Any:
    """A drawing: a line for every form, its time over that of the unsharded product, and which is best for what.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    import drawsvg

    sizes, names = list(found.choices), found.names
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    lines: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    for size, choice in found.choices.items():
        for row in choice.rows:
            lines[row.implementation.name].append((size, float(choice.ratio(row))))
    floor = [(size, float(choice.floor)) for size, choice in found.choices.items()]
    most = max(ratio for line in lines.values() for _, ratio in line)
    width = max(
        LEFT + WIDTH + RIGHT, *(LETTER * (16 if i == 0 else 12) * len(line) + 36 for i, line in enumerate(title))
    )
    drawing = drawsvg.Drawing(width, TOP + HEIGHT + 112)
    drawing.append(drawsvg.Rectangle(0, 0, width, TOP + HEIGHT + 112, fill="white"))

    def text(words: str, size: float, x: float, y: float, colour: str = INK, **options: Any) -> None:
        drawing.append(drawsvg.Text(words, size, x, y, fill=colour, font_family="sans-serif", **options))

    def x_of(size: float) -> float:
        return LEFT + WIDTH * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def y_of(ratio: float) -> float:
        return TOP + HEIGHT * (1 - math.log(ratio / 0.95) / math.log(most * 1.05 / 0.95))

    def draw(points: list[tuple[int, float]], colour: str, **options: Any) -> None:
        path = [part for size, ratio in points for part in (x_of(size), y_of(ratio))]
        drawing.append(drawsvg.Lines(*path, stroke=colour, fill="none", **options))

    for i, line in enumerate(title):
        text(line, 16 if i == 0 else 12, 18, 30 + 19 * i + (3 if i else 0), INK if i == 0 else FAINT)
    for size in sizes:
        drawing.append(drawsvg.Line(x_of(size), TOP, x_of(size), TOP + HEIGHT, stroke=GRID))
        text(f"{size:,}", 11, x_of(size), TOP + HEIGHT + 17, FAINT, text_anchor="middle")
    for ratio in (r for r in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if r <= most * 1.05):
        drawing.append(drawsvg.Line(LEFT, y_of(ratio), LEFT + WIDTH, y_of(ratio), stroke=GRID))
        text(f"{ratio:g}", 11, LEFT - 8, y_of(ratio) + 4, FAINT, text_anchor="end")
    text(f"{found.side}, of the whole array", 12, LEFT + WIDTH / 2, TOP + HEIGHT + 36, FAINT, text_anchor="middle")
    label = {"transform": f"rotate(-90, 22, {TOP + HEIGHT / 2})", "text_anchor": "middle"}
    text("time over that of the unsharded product", 12, 22, TOP + HEIGHT / 2, FAINT, **label)
    draw(floor, FAINT, stroke_width=1.3, stroke_dasharray="3 4")
    for name, points in lines.items():
        draw(points, colours[name], stroke_width=2.2, stroke_linejoin="round")
        for size, ratio in points:
            drawing.append(drawsvg.Circle(x_of(size), y_of(ratio), 2.6, fill=colours[name]))
    strip = TOP + HEIGHT + 54
    for first, last, name in found.best:
        begin = x_of(first) if first == sizes[0] else x_of(first / math.sqrt(2))
        end = x_of(last) if last == sizes[-1] else x_of(last * math.sqrt(2))
        shape = drawsvg.Rectangle(begin, strip, end - begin, 20, fill=colours[name])
        shape.append_title(f"{first:,} to {last:,}: {name}")
        drawing.append(shape)
        short = name.removesuffix(found.contract).rstrip("_")
        if LETTER * 11 * len(short) < end - begin - 4:
            text(short, 11, (begin + end) / 2, strip + 14, "white", text_anchor="middle")
        if first != sizes[0]:
            drawing.append(drawsvg.Line(begin, TOP, begin, strip, stroke=INK, stroke_width=1, stroke_dasharray="2 3"))
    text("best", 12, LEFT - 8, strip + 14, FAINT, text_anchor="end")
    keys: list[tuple[str, str, dict[str, str]]] = [
        (colours[name], name.removesuffix(found.contract).rstrip("_"), {}) for name in names
    ]
    for i, (colour, words, dashes) in enumerate([*keys, (FAINT, "floor", {"stroke_dasharray": "3 4"})]):
        x, y = LEFT + WIDTH + 22, TOP + 10 + 20 * i
        drawing.append(drawsvg.Line(x, y, x + 26, y, stroke=colour, stroke_width=2.4, **dashes))
        text(words, 12, x + 34, y + 4)
    return drawing


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is best for which size, and draws it; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m shardproof.properties.performance.commands.crossover"
    )
    parser.add_argument("contract", help=f"one of {', '.join(SHARDED)}")
    add_mesh(parser)
    add_machine(parser)
    parser.add_argument("--sides", default="512,2048,8192", metavar="M,K,N", help="of whole arrays (512,2048,8192)")
    parser.add_argument("--vary", default="m", choices=SIDES, help="which of them grows (default: m)")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    return exit_code(lambda: _drawn(options), options, options.contract)


def _drawn(options: argparse.Namespace) -> None:
    sides, dtype = parse_sides(options.sides), parse_dtype(options.dtype)
    machine, mesh = chip(options.machine), parse_mesh(options.mesh)
    axes = parse_axes(options.axis, mesh)
    more = {"dtype": dtype, "gradient": options.gradient}
    found = crossover(options.contract, sides, options.vary, machine, mesh, axes, **more)
    print(found.text())
    fixed = ", ".join(f"{name} = {size:,}" for name, size in zip(SIDES, sides, strict=True) if name != options.vary)
    gradient = " and its gradient" if options.gradient else ""
    title = [f"{options.contract}{gradient} on {machine.name}, mesh {mesh}", f"{fixed}, {dtype}; by timelines"]
    path = options.output or Path(f"{options.contract}-{machine.name}-crossover.svg")
    plot(found, title).save_svg(str(path))
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
