"""The picture of an algorithm: devices side by side, rounds downwards, an arrow for every message."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from shardproof.oracles.layout import device_name
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.simulate.exchange import process_groups
from shardproof.properties.programs.program import Program


@dataclass(frozen=True)
class Step:
    """One collective."""

    kind: str
    bytes: int  # those of its operand on each device
    links: tuple[tuple[int, int], ...]  # from device to device, by position in the mesh; empty if the backend chooses
    round: int  # those of one round may run at the same time

    def __str__(self) -> str:
        size = f"{self.kind} of {self.bytes:,} bytes"
        if not self.links:
            return f"{size} per device; who sends to whom is the backend's choice"
        return f"{size} each: " + ", ".join(f"{source} -> {target}" for source, target in self.links)


def steps(program: Program, mesh: MeshCase) -> list[Step]:
    """The collectives that a program executes, round by round."""
    arrays = [generate(Data("exact", 0), a.shape, np.dtype(a.dtype)) for a in program.arguments]
    executed = SimulateEngine().prepare(program, mesh).evidence(arrays).collectives
    return [
        Step(c.kind, c.operand_bytes, tuple(sorted(c.links)), c.round)
        for c in sorted(executed, key=lambda collective: collective.round)
    ]


def text(title: str, found: list[Step]) -> str:
    """The steps in words."""
    total, lines = sum(step.bytes for step in found), [title]
    for number, times, steps in repeated(found):
        which = f"round {number}" if times == 1 else f"rounds {number} to {number + times - 1} (x {times})"
        lines += [f"{which}: {step}" for step in steps]
    rounds = max((step.round for step in found), default=0)
    plural = "s" * (rounds != 1)
    total_line = f"in all: {len(found)} collectives in {rounds} round{plural}, {total:,} bytes of operands per device"
    return "\n".join([*lines, total_line])


def repeated(found: list[Step]) -> list[tuple[int, int, list[Step]]]:
    """Runs of equal rounds: the number of the first, how many there are, and the collectives of one."""
    rounds = [[*steps] for _, steps in itertools.groupby(found, key=lambda step: step.round)]
    number, runs = 1, list[tuple[int, int, list[Step]]]()
    for _, equal in itertools.groupby(rounds, key=lambda steps: [dataclasses.replace(s, round=0) for s in steps]):
        steps, *others = equal
        runs.append((number, 1 + len(others), steps))
        number += runs[-1][1]
    return runs


def describe(drawing: Any, title: str, description: str) -> None:
    """Adds the `<title>` and `<desc>` of a drawing, for screen readers and tooltips."""
    import drawsvg

    for tag, words in (("desc", description), ("title", title)):
        drawing.elements.insert(0, drawsvg.Raw(f"<{tag}>{escape(words)}</{tag}>"))


COLUMN, ROW, MARGIN, HEAD = 70, 80, 40, 58
UP, DOWN, NEUTRAL = "#0072b2", "#d55e00", "#999999"
"""Towards higher indices, towards lower ones (each the shorter way round the ring), and a backend's choice."""
DASHES = (None, "7 4", "2 3")
"""The dashes of the arrows of the first, second and third collective of a round, and again from the first."""
LETTER = 0.62
"""The mean width of a letter of a wide sans-serif font, relative to its size."""
SHOWN = 3
"""The number of collectives of one round that are named."""


def columns(mesh: MeshCase, axes: tuple[str, ...]) -> list[int]:
    """The devices by column: one process group after the other, each in the order of the axis tuple."""
    (devices,) = process_groups(mesh, axes)
    return [int(device) for device in devices.ravel()]


def picture(title: str, found: list[Step], mesh: MeshCase, axes: tuple[str, ...]) -> Any:
    """A drawing of collectives over an axis tuple: each round leads from one row of devices to the next."""
    import drawsvg

    def text(words: str, size: float, x: float, y: float, **options: Any) -> None:
        drawing.append(drawsvg.Text(words, size, x, y, font_family="sans-serif", **options))

    devices, participants, order = mesh.size, mesh.axis_size(axes), columns(mesh, axes)

    def colours(step: Step) -> list[str]:
        places = [[order.index(end) % participants for end in link] for link in step.links]
        return [direction(begin, end, participants) for begin, end in places]

    runs = repeated(found)
    rounds = [steps for _, _, steps in runs]
    labels = [_labels(number, times, steps, colours) for number, times, steps in runs]
    legend = _legend(rounds, {colour for steps in rounds for step in steps for colour in colours(step)})
    left = 30 + LETTER * 12 * max((len(line) for lines in labels for line, _ in lines), default=0)
    places = list(np.ndindex(*mesh.sizes))
    names = [device_name(mesh, places[device]).strip("()").split(", ") for device in order]
    pitch = max(COLUMN, 8 + LETTER * 10 * max(len(line) for name in names for line in name))
    deep = max(map(len, names))
    top = HEAD + 12 * deep
    width = max(
        left + (devices - 1) * pitch + 2 * MARGIN,
        20 + LETTER * 14 * len(title),
        60 + LETTER * 11 * max(len(words) for _, _, words in legend),
    )
    bottom = top + len(rounds) * ROW + MARGIN
    drawing = drawsvg.Drawing(width, bottom + 18 * len(legend))
    drawing.append(drawsvg.Rectangle(0, 0, "100%", "100%", fill="white"))
    total = sum(times for _, times, _ in runs)
    describe(drawing, title, f"Who sends what to whom on {devices} devices, in {total} round{'s' * (total != 1)}.")
    text(title, 14, 10, 20)
    heads = {}
    for colour in (UP, DOWN):
        heads[colour] = drawsvg.Marker(-0.1, -0.51, 0.9, 0.5, scale=5, orient="auto")
        heads[colour].append(drawsvg.Lines(-0.1, 0.5, -0.1, -0.5, 0.9, 0, fill=colour, close=True))

    def arrow(ends: tuple[float, float, float, float], colour: str, dash: str | None) -> None:
        dashes = {} if dash is None else {"stroke_dasharray": dash}
        drawing.append(drawsvg.Line(*ends, stroke=colour, stroke_width=1.6, marker_end=heads[colour], **dashes))

    for number, (steps, lines) in enumerate(zip(rounds, labels, strict=True)):
        start = top + number * ROW
        for line, (words, colour) in enumerate(lines):
            text(words, 12, 10, start + ROW / 2 - 7 * (len(lines) - 1) + 14.4 * line, fill=colour)
        if any(not step.links for step in steps):
            box = (left - 14, start + 16, (devices - 1) * pitch + 28, ROW - 32)
            drawing.append(drawsvg.Rectangle(*box, fill="none", stroke=NEUTRAL))
        for nth, step in enumerate(steps):
            for (source, target), colour in zip(step.links, colours(step), strict=True):
                begin, end = order.index(source), order.index(target)
                at, to = left + begin * pitch, left + end * pitch
                shift = 5 * (nth - (len(steps) - 1) / 2)  # arrows along the same way are drawn side by side
                aside = math.copysign(3, to - at) if at != to else 0
                ends = (at + shift + aside, start + 12, to + shift - aside, start + ROW - 16)
                arrow(ends, colour, DASHES[nth % len(DASHES)])
    for column, name in enumerate(names):
        x = left + column * pitch
        for i, part in enumerate(name):
            text(part, 10, x, HEAD - 16 + 12 * i, center=True)
        for row in range(len(rounds) + 1):
            y = top + row * ROW
            drawing.append(drawsvg.Circle(x, y, 11, fill="white", stroke="black"))
            text(str(order[column]), 11, x, y, center=True)
    for line, (colour, dash, words) in enumerate(legend):
        y = bottom + 18 * line
        if colour in heads:
            arrow((12, y, 36, y), colour, dash)
        elif colour == NEUTRAL:
            drawing.append(drawsvg.Rectangle(12, y - 5, 28, 10, fill="none", stroke=NEUTRAL))
        else:
            drawing.append(drawsvg.Circle(26, y, 6, fill="white", stroke="black"))
        text(words, 11, 50, y + 4)
    return drawing


def _labels(number: int, times: int, steps: list[Step], colours: Callable[[Step], list[str]]) -> list[tuple[str, str]]:
    """The collectives of a round in words, each with the colour of its arrows, black if they have several."""
    lines = []
    for step in steps[:SHOWN]:
        its = {*colours(step)} or {NEUTRAL}
        lines.append((f"{step.kind}, {step.bytes:,} B", its.pop() if len(its) == 1 else "black"))
    lines[0] = (f"{number}: {lines[0][0]}", lines[0][1])
    lines += [(f"and {len(steps) - SHOWN} more", "black")] * (len(steps) > SHOWN)
    return [*lines, *([(f"x {times}", "black")] if times > 1 else [])]


def _legend(rounds: list[list[Step]], drawn: Collection[str]) -> list[tuple[str, str | None, str]]:
    """The colour, dashes and meaning of all that is drawn, given the colours of the arrows."""
    neutral = {NEUTRAL} if any(not step.links for steps in rounds for step in steps) else set()
    meanings = {
        "black": "a device by its position in the mesh; columns are in the order of the axis tuple",
        UP: "sent towards higher indices, from the last to the first as well",
        DOWN: "sent towards lower indices, from the first to the last as well",
        NEUTRAL: "who sends to whom is the backend's choice",
    }
    lines = [(colour, None, words) for colour, words in meanings.items() if colour in {"black", *drawn} | neutral]
    several = max((sum(bool(step.links) for step in steps) for steps in rounds), default=0)
    others = list(zip(("first", "second", "third"), DASHES, strict=True))[1:several]
    arrow = UP if UP in drawn else DOWN
    return lines + [(arrow, d, f"the {nth} collective of a round, at the same time as the first") for nth, d in others]


def direction(source: int, target: int, devices: int) -> str:
    """The colour of an arrow between logical indices, by the shorter way round the ring."""
    return UP if (target - source) % devices <= devices / 2 else DOWN
