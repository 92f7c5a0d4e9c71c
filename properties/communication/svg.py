"""The picture of an algorithm: devices side by side, steps downwards, an arrow for everything that is sent."""

from pathlib import Path
from typing import Any

from properties.communication.steps import Step

COLUMN, ROW, MARGIN, LEFT = 70, 80, 40, 190
UP, DOWN, NEUTRAL = "#0072b2", "#d55e00", "#999999"
"""Towards higher indices, towards lower ones (each the shorter way round the ring), and a backend's choice."""


def picture(title: str, found: list[Step], devices: int) -> Any:
    """A drawing: each step leads from one row of devices to the next.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    import drawsvg

    width = max(LEFT + (devices - 1) * COLUMN + 2 * MARGIN, 7 * len(title) + 20)
    drawing = drawsvg.Drawing(width, (len(found) + 1) * ROW + MARGIN)
    drawing.append(drawsvg.Rectangle(0, 0, "100%", "100%", fill="white"))
    drawing.append(drawsvg.Text(title, 14, 10, 20, font_family="sans-serif"))
    heads = {}
    for colour in (UP, DOWN):
        heads[colour] = drawsvg.Marker(-0.1, -0.51, 0.9, 0.5, scale=5, orient="auto")
        heads[colour].append(drawsvg.Lines(-0.1, 0.5, -0.1, -0.5, 0.9, 0, fill=colour, close=True))
    for number, step in enumerate(found):
        top = MARGIN + 20 + number * ROW
        label = f"{number + 1}: {step.kind}, {step.bytes:,} B"
        drawing.append(drawsvg.Text(label, 12, 10, top + ROW / 2, font_family="sans-serif"))
        if not step.links:
            drawing.append(
                drawsvg.Rectangle(
                    LEFT - 14, top + 16, (devices - 1) * COLUMN + 28, ROW - 32, fill="none", stroke=NEUTRAL
                )
            )
        for source, target in step.links:
            colour = direction(source, target, devices)
            at, to = (LEFT + i * COLUMN for i in (source, target))
            start, end = top + 12, top + ROW - 16
            drawing.append(drawsvg.Line(at, start, to, end, stroke=colour, stroke_width=1.6, marker_end=heads[colour]))
    for row in range(len(found) + 1):
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
