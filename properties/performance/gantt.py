"""The picture of a timeline: a lane for what is computed, one for each link each way, and what is exposed in red."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from shardproof.properties.communication.pictures import LETTER
from shardproof.properties.performance.chips import SWITCH, in_words
from shardproof.properties.performance.lanes import Axis, Bar, Lanes, called
from shardproof.properties.performance.timeline import COMPUTE

PLOT, LANE, GAP, MARGIN, CUT = 960, 34, 10, 18, 84
"""The width of all that takes time, the height of a lane, what is between two, the margin, and a cut's width."""
PRODUCT, OTHER, FORTH, BACK, SENT, RED = "#0072b2", "#7fb8da", "#009e73", "#e69f00", "#8a6fb0", "#d55e00"
INK, FAINT, GRID = "#222222", "#666666", "#e4e4e4"
TICKS = 8
"""About how many ticks the axis has."""

Unit = Callable[[Fraction], str]


def gantt(title: Sequence[str], lanes: Lanes, unit: Unit = in_words) -> Any:
    """A drawing of lanes under a title, of which the first line is the largest.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    import drawsvg

    names = lanes.names
    labels = {lane: called(lane) for lane in names}
    left = MARGIN + 14 + LETTER * 13 * max(map(len, labels.values()))
    axis = Axis.of(lanes, left, PLOT, CUT)
    legend = _legend(lanes)
    keys = sum(40 + 0.56 * 11.5 * len(words) for _, words in legend)
    widest = max(LETTER * (16 if i == 0 else 12) * len(line) for i, line in enumerate(title))
    width = max(left + PLOT + MARGIN + 24, widest + 2 * MARGIN, keys + 2 * MARGIN)
    top = MARGIN + 24 + 18 * (len(title) - 1) + 16
    bottom = top + len(names) * (LANE + GAP)
    height = bottom + 76
    drawing = drawsvg.Drawing(width, height)
    drawing.append(drawsvg.Rectangle(0, 0, width, height, fill="white"))

    def text(words: str, size: float, x: float, y: float, colour: str = INK, **options: Any) -> None:
        drawing.append(drawsvg.Text(words, size, x, y, fill=colour, font_family="sans-serif", **options))

    def box(x: float, y: float, wide: float, high: float, told: str = "", **options: Any) -> None:
        shape = drawsvg.Rectangle(x, y, max(wide, 0.6), high, **options)
        if told:
            shape.append_title(told)
        drawing.append(shape)

    for i, line in enumerate(title):
        text(line, 16 if i == 0 else 12, MARGIN, MARGIN + 12 + 18 * i + (4 if i else 0), INK if i == 0 else FAINT)
    for start, end in lanes.exposed:
        box(axis.at(start), top - 6, axis.at(end) - axis.at(start), bottom - top + 2, fill=RED, fill_opacity=0.13)
    for time in axis.ticks(lanes.total, TICKS):
        x = axis.at(time)
        drawing.append(drawsvg.Line(x, top - 6, x, bottom, stroke=GRID, stroke_width=1))
        text(unit(time), 11, x, bottom + 16, FAINT, text_anchor="middle")
    for row, lane in enumerate(names):
        y = top + row * (LANE + GAP)
        text(labels[lane], 13, left - 12, y + LANE / 2 + 4.5, text_anchor="end")
        box(left, y, axis.at(lanes.total) - left, LANE, fill="#f4f4f4")
        for bar in [bar for bar in lanes.bars if bar.lane == lane]:
            x, wide = axis.at(bar.start), axis.at(bar.end) - axis.at(bar.start)
            edge = {"stroke": "white", "stroke_width": min(1, wide / 6), "rx": 2}
            box(x, y + 2, wide, LANE - 4, told(bar, unit), fill=_colour(bar), **edge)
            name = bar.operation.name
            if LETTER * 11 * len(name) < wide - 6:
                text(name, 11, x + wide / 2, y + LANE / 2 + 4, "white", text_anchor="middle")
        if lane != COMPUTE:
            for start, end in lanes.exposed:
                for bar in lanes.bars:
                    if bar.lane == lane and bar.start < end and bar.end > start:
                        x = axis.at(max(start, bar.start))
                        box(x, y + LANE - 6, axis.at(min(end, bar.end)) - x, 5, fill=RED)
    for start, end, left_out in lanes.cuts:
        x, middle = axis.at(start), (axis.at(start) + axis.at(end)) / 2
        box(x, top - 6, axis.at(end) - x, bottom - top + 2, fill="white", stroke=GRID)
        text(f"{left_out:,} more", 11, middle, top + 14, FAINT, text_anchor="middle")
        text("iterations", 11, middle, top + 28, FAINT, text_anchor="middle")
    x = float(MARGIN)
    for colour, words in legend:
        box(x, bottom + 42, 18, 12, fill=colour)
        text(words, 11.5, x + 24, bottom + 52)
        x += 40 + 0.56 * 11.5 * len(words)
    return drawing


def told(bar: Bar, unit: Unit) -> str:
    """What a bar is, for whoever points at it."""
    operation = bar.operation
    amounts = [f"{n:,} FLOPs of {dtype}" for dtype, n in operation.flops.items() if n]
    amounts += [f"{operation.bytes:,} bytes of memory"] if operation.bytes else []
    amounts += [f"{float(max(operation.loads.bytes.values())):,.0f} bytes over a link"] if operation.transfers else []
    return "\n".join([f"{operation.name}, {unit(bar.end - bar.start)}", operation.where, *amounts])


def _colour(bar: Bar) -> str:
    if bar.lane == COMPUTE:
        return PRODUCT if any(bar.operation.flops.values()) else OTHER
    return SENT if bar.lane == SWITCH else FORTH if bar.lane[1] == 1 else BACK


def _legend(lanes: Lanes) -> list[tuple[str, str]]:
    """The colours that are used, and what they mean."""
    meant = {
        PRODUCT: "products",
        OTHER: "other arithmetic, as fast as memory",
        FORTH: "sent to higher indices",
        BACK: "sent to lower indices",
        SENT: "sent to any device",
    }
    used = {_colour(bar) for bar in lanes.bars}
    found = [(colour, words) for colour, words in meant.items() if colour in used]
    return [*found, (RED, "exposed: sent while nothing is computed")] if lanes.exposed else found


def write(path: Path, title: Sequence[str], lanes: Lanes, unit: Unit = in_words) -> None:
    """Writes the picture.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
        OSError: if it cannot be written.
    """
    gantt(title, lanes, unit).save_svg(str(path))
