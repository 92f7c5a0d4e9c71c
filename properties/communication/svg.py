"""The picture of an algorithm: devices side by side, rounds downwards, an arrow for everything that is sent."""

import itertools
import math
from pathlib import Path
from typing import Any

from properties.communication.steps import Step

COLUMN, ROW, MARGIN, LEFT = 70, 80, 40, 190
UP, DOWN, NEUTRAL = "#0072b2", "#d55e00", "#999999"
"""Towards higher indices, towards lower ones (each the shorter way round the ring), and a backend's choice."""
SHOWN = 3
"""How many of the collectives of one round are named."""


def picture(title: str, found: list[Step], devices: int) -> Any:
    """A drawing: each round leads from one row of devices to the next.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    import drawsvg

    rounds = [list(steps) for _, steps in itertools.groupby(found, key=lambda step: step.round)]
    labels = [[f"{step.kind}, {step.bytes:,} B" for step in steps[:SHOWN]] for steps in rounds]
    width = max(LEFT + (devices - 1) * COLUMN + 2 * MARGIN, 7 * len(title) + 20)
    drawing = drawsvg.Drawing(width, (len(rounds) + 1) * ROW + MARGIN)
    drawing.append(drawsvg.Rectangle(0, 0, "100%", "100%", fill="white"))
    drawing.append(drawsvg.Text(title, 14, 10, 20, font_family="sans-serif"))
    heads = {}
    for colour in (UP, DOWN):
        heads[colour] = drawsvg.Marker(-0.1, -0.51, 0.9, 0.5, scale=5, orient="auto")
        heads[colour].append(drawsvg.Lines(-0.1, 0.5, -0.1, -0.5, 0.9, 0, fill=colour, close=True))
    for number, (steps, label) in enumerate(zip(rounds, labels, strict=True)):
        top = MARGIN + 20 + number * ROW
        lines = [f"{number + 1}: {label[0]}", *label[1:]]
        lines += [f"and {len(steps) - SHOWN} more"] * (len(steps) > SHOWN)
        middle = top + ROW / 2 - 7 * (len(lines) - 1)
        drawing.append(drawsvg.Text("\n".join(lines), 12, 10, middle, font_family="sans-serif", line_height=1.2))
        if any(not step.links for step in steps):
            box = (LEFT - 14, top + 16, (devices - 1) * COLUMN + 28, ROW - 32)
            drawing.append(drawsvg.Rectangle(*box, fill="none", stroke=NEUTRAL))
        for source, target in sorted({link for step in steps for link in step.links}):
            colour = direction(source, target, devices)
            aside = 0 if source == target else math.copysign(3, target - source)
            at, to = LEFT + source * COLUMN + aside, LEFT + target * COLUMN - aside
            start, end = top + 12, top + ROW - 16
            drawing.append(drawsvg.Line(at, start, to, end, stroke=colour, stroke_width=1.6, marker_end=heads[colour]))
    for row in range(len(rounds) + 1):
        for device in range(devices):
            x, y = LEFT + device * COLUMN, MARGIN + 20 + row * ROW
            drawing.append(drawsvg.Circle(x, y, 11, fill="white", stroke="black"))
            drawing.append(drawsvg.Text(str(device), 11, x, y, center=True, font_family="sans-serif"))
    return drawing


def direction(source: int, target: int, devices: int) -> str:
    """The colour of an arrow: which way round the ring is shorter."""
    return UP if (target - source) % devices <= devices / 2 else DOWN


def write(path: Path, title: str, found: list[Step], devices: int) -> None:
    """Writes the picture.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    picture(title, found, devices).save_svg(str(path))
