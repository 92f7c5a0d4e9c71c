"""Which form is best for every size: printed, and drawn."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.communication.pictures import LETTER, describe
from shardproof.properties.performance.chips import Chip, chip
from shardproof.properties.performance.choosing import PLAIN, Choice, choose
from shardproof.properties.programs.examples import SHARDED
from shardproof.properties.report.arguments import parse_axes, parse_dtype, parse_mesh

SIDES = ("m", "k", "n")
SMALLEST, LARGEST = 64, 65536


Choices = dict[int, Choice]
"""What is best, by the size of a side."""


def best(choices: Choices) -> list[tuple[int, int, str]]:
    """From which size to which a form is the best, one after the other."""
    runs = itertools.groupby(choices, key=lambda size: choices[size].timed.name)
    return [(sizes[0], sizes[-1], name) for name, sizes in ((name, [*run]) for name, run in runs)]


def crossover(
    contract: str, sides: Sequence[int], side: str, machine: Chip, mesh: MeshCase, axes: tuple[str, ...], **more: Any
) -> Choices:
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
    return choices


WIDTH, HEIGHT, LEFT, TOP, RIGHT = 760, 380, 74, 92, 210
INK, FAINT, GRID = "#222222", "#666666", "#e8e8e8"
COLOURS = ("#444444", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The plain form's, and those of the others in their order."""


def plot(contract: str, side: str, choices: Choices, title: Sequence[str]) -> Any:
    """A drawing: a line for every form, its time over that of the unsharded product, and which is best for what.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    import drawsvg

    sizes, lines = list(choices), dict[str, list[tuple[int, float]]]()
    for size, choice in choices.items():
        for row in choice.rows:
            lines.setdefault(row.implementation.name, []).append((size, float(choice.ratio(row))))
    names = sorted(lines, key=lambda name: name not in PLAIN)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    shorter = {name: name.removesuffix(contract).rstrip("_") for name in names}
    floor = [(size, float(choice.floor)) for size, choice in choices.items()]
    most = max(ratio for line in lines.values() for _, ratio in line)
    width = max(
        LEFT + WIDTH + RIGHT, *(LETTER * (16 if i == 0 else 12) * len(line) + 36 for i, line in enumerate(title))
    )
    drawing = drawsvg.Drawing(width, TOP + HEIGHT + 112)
    drawing.append(drawsvg.Rectangle(0, 0, width, TOP + HEIGHT + 112, fill="white"))
    told = f"Lines: the time of {', '.join(names)} over that of the unsharded product, by {side}"
    describe(drawing, title[0], ". ".join([*title[1:], told]))

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
    text(f"{side}, of the whole array", 12, LEFT + WIDTH / 2, TOP + HEIGHT + 36, FAINT, text_anchor="middle")
    label = {"transform": f"rotate(-90, 22, {TOP + HEIGHT / 2})", "text_anchor": "middle"}
    text("time over that of the unsharded product", 12, 22, TOP + HEIGHT / 2, FAINT, **label)
    draw(floor, FAINT, stroke_width=1.3, stroke_dasharray="3 4")
    for name in names:
        draw(lines[name], colours[name], stroke_width=2.2, stroke_linejoin="round")
        for size, ratio in lines[name]:
            drawing.append(drawsvg.Circle(x_of(size), y_of(ratio), 2.6, fill=colours[name]))
    strip = TOP + HEIGHT + 54
    for first, last, name in best(choices):
        begin = x_of(first) if first == sizes[0] else x_of(first / math.sqrt(2))
        end = x_of(last) if last == sizes[-1] else x_of(last * math.sqrt(2))
        shape = drawsvg.Rectangle(begin, strip, end - begin, 20, fill=colours[name])
        shape.append_title(f"{first:,} to {last:,}: {name}")
        drawing.append(shape)
        if LETTER * 11 * len(shorter[name]) < end - begin - 4:
            text(shorter[name], 11, (begin + end) / 2, strip + 14, "white", text_anchor="middle")
        if first != sizes[0]:
            drawing.append(drawsvg.Line(begin, TOP, begin, strip, stroke=INK, stroke_width=1, stroke_dasharray="2 3"))
    text("best", 12, LEFT - 8, strip + 14, FAINT, text_anchor="end")
    for i, name in enumerate([*names, "floor"]):
        x, y = LEFT + WIDTH + 22, TOP + 10 + 20 * i
        dashes = {"stroke_dasharray": "3 4"} if name == "floor" else {}
        drawing.append(drawsvg.Line(x, y, x + 26, y, stroke=colours.get(name, FAINT), stroke_width=2.4, **dashes))
        text(shorter.get(name, name), 12, x + 34, y + 4)
    return drawing


def draw_crossover(
    contract: str,
    *,
    mesh: str,
    axis: str,
    output: Path | None,
    machine: str,
    dtype: str,
    gradient: bool,
    sides: str,
    vary: str,
) -> None:
    """Prints which form of a product is the fastest for which size of one side, and draws it.

    Raises:
        RequestError: if what is asked for cannot be had, as `crossover` does.
    """
    parts = sides.split(",")
    if len(parts) != len(SIDES) or not all(part.isdecimal() and int(part) for part in parts):
        raise RequestError(f"--sides={sides}: expected rows, contracted size and columns, as in 512,2048,8192")
    sizes, of, stated, on = [*map(int, parts)], parse_dtype(dtype), chip(machine), parse_mesh(mesh)
    found = crossover(contract, sizes, vary, stated, on, parse_axes(axis, on), dtype=of, gradient=gradient)
    print(f"{contract} on {stated.name}, by {vary}:")
    for first, last, name in best(found):
        run = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        print(f"  {run}: {name}" + (", the plain form" if name in PLAIN else ""))
    fixed = ", ".join(f"{name} = {size:,}" for name, size in zip(SIDES, sizes, strict=True) if name != vary)
    title = [f"{contract}{' and its gradient' * gradient} on {stated.name}, mesh {on}", f"{fixed}, {of}; by timelines"]
    path = output or Path(f"{contract}-{stated.name}-crossover.svg")
    plot(contract, vary, found, title).save_svg(str(path))
    print(f"wrote {path}")
