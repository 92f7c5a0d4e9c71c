"""A timeline as lanes, one for each resource, in letters and as a picture.

Loops are unrolled as far as they can be shown; exposed communication is red in the picture.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shardproof.properties.communication.pictures import LETTER, describe
from shardproof.properties.performance.chips import SWITCH, in_words
from shardproof.properties.performance.operations import Operation
from shardproof.properties.performance.routes import Link
from shardproof.properties.performance.timeline import COMPUTE, Span, Timeline, minus, union

MOST_BARS = 160
"""The most bars of a picture with all iterations of a loop; with more, it shows the first two and the last."""

WAYS = {1: "->", -1: "<-"}
FILLED, SENDING, EXPOSED, IDLE, CUT = "#", "=", "!", ".", "~"
KEY = "# computes, = sends, ! sends while nothing is computed, ~ iterations left out"
"""The meaning of the letters."""


@dataclass(frozen=True)
class Bar:
    """One operation on one resource."""

    lane: Link | str  # `compute`, or a link
    start: Fraction  # from the start of the program
    end: Fraction
    operation: Operation


@dataclass
class Lanes:
    """The bars of a timeline."""

    total: Fraction  # the time of the program
    bars: list[Bar] = field(default_factory=list)  # all that takes time, in the order of their start
    cuts: list[tuple[Fraction, Fraction, int]] = field(default_factory=list)  # times of iterations left out, how many
    exposed: list[tuple[Fraction, Fraction]] = field(default_factory=list)  # times of sending without computation

    @property
    def shown(self) -> Fraction:
        """The time that is not left out."""
        return self.total - sum((end - start for start, end, _ in self.cuts), start=Fraction(0))

    @property
    def waits(self) -> Iterator[tuple[Link | str, Fraction, Fraction]]:
        """The links that are busy while nothing is computed, with start and end."""
        for start, end in self.exposed:
            for bar in self.bars:
                if bar.lane != COMPUTE and bar.start < end and bar.end > start:
                    yield bar.lane, max(start, bar.start), min(end, bar.end)

    @property
    def names(self) -> list[Link | str]:
        """The lanes with bars: compute, then links by axis, both ways of each together."""
        links = {bar.lane for bar in self.bars if bar.lane != COMPUTE}
        return [COMPUTE, *sorted(links, key=lambda link: (link[0], -int(link[1])))]


def places(lanes: Lanes, left: float, width: float, cut: float) -> Callable[[Fraction], float]:
    """The position of a time in a picture: linear, but for the cuts, which all have the same width."""
    scale = (width - cut * len(lanes.cuts)) / float(lanes.shown or 1)

    def at(time: Fraction) -> float:
        gone = [(min(time, end) - start, end - start) for start, end, _ in lanes.cuts if time > start]
        return left + float(time - sum(g for g, _ in gone)) * scale + cut * float(sum(g / whole for g, whole in gone))

    return at


def ticks(lanes: Lanes) -> Iterator[Fraction]:
    """Round times, evenly spaced, up to the first cut, and the end if there are cuts."""
    step = round_step(lanes.shown / TICKS)
    first = min((start for start, _, _ in lanes.cuts), default=lanes.total)
    yield from (i * step for i in range(int(first / step) + 1))
    if lanes.cuts:
        yield lanes.total


def round_step(about: Fraction) -> Fraction:
    """The least number that is 1, 2 or 5 times a power of ten and not below a positive one."""
    power = Fraction(10) ** math.floor(math.log10(about))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about)


def lay_out(found: Timeline) -> Lanes:
    """The lanes of a timeline, with the iterations of loops one after the other."""
    lanes = Lanes(found.total)
    _place(found, Fraction(0), lanes, MOST_BARS)
    lanes.bars.sort(key=lambda bar: (bar.start, bar.end))
    computing = union((bar.start, bar.end) for bar in lanes.bars if bar.lane == COMPUTE)
    lanes.exposed = minus(union((bar.start, bar.end) for bar in lanes.bars if bar.lane != COMPUTE), computing)
    return lanes


def lane_name(lane: Link | str) -> str:
    """The name of a lane: `tp ->` for the link to the next device along tp."""
    if lane == SWITCH:
        return "switch"
    return lane if isinstance(lane, str) else f"{lane[0]} {WAYS[lane[1]]}"


def _place(found: Timeline, at: Fraction, lanes: Lanes, room: int) -> None:
    loops = [span for span in found.spans if span.inside is not None]
    for span in found.spans:
        if span.inside is not None:
            _repeat(span, at + span.start, lanes, max(1, room // len(loops)))
        elif span.end > span.start:
            for lane in span.links or (COMPUTE,):
                lanes.bars.append(Bar(lane, at + span.start, at + span.end, span.operation))


def _repeat(span: Span, at: Fraction, lanes: Lanes, room: int) -> None:
    inside, times = span.inside, span.operation.times
    assert inside is not None
    if not inside.total:
        return
    fitting = room // max(1, _bars(inside))
    shown = [*range(times)] if times <= max(fitting, 3) else [0, 1, times - 1]
    for i in shown:
        _place(inside, at + i * inside.total, lanes, max(1, room // len(shown)))
    if len(shown) < times:
        lanes.cuts.append((at + 2 * inside.total, at + (times - 1) * inside.total, times - len(shown)))


def _bars(found: Timeline) -> int:
    return sum(
        max(1, len(span.links)) if span.inside is None else span.operation.times * _bars(span.inside)
        for span in found.spans
        if span.end > span.start
    )


def text(lanes: Lanes, width: int = 64) -> list[str]:
    """The lanes in letters: `#` computes, `=` sends, `!` sends while nothing computes, `~` iterations left out."""
    if not lanes.total:
        return []
    rows: dict[str, list[str]] = {lane_name(lane): [IDLE] * width for lane in lanes.names}
    at = places(lanes, 0, width, 3)

    def fill(row: list[str], start: Fraction, end: Fraction, letter: str) -> None:
        first = min(round(at(start)), width - 1)
        last = max(first + 1, round(at(end)))
        row[first:last] = [letter] * (last - first)

    for bar in lanes.bars:
        fill(rows[lane_name(bar.lane)], bar.start, bar.end, FILLED if bar.lane == COMPUTE else SENDING)
    for lane, start, end in lanes.waits:
        fill(rows[lane_name(lane)], start, end, EXPOSED)
    for start, end, _ in lanes.cuts:
        for row in rows.values():
            fill(row, start, end, CUT)
    longest = max(map(len, rows))
    return [f"{name:<{longest}}  {''.join(row)}" for name, row in rows.items()]


PLOT, LANE, GAP, MARGIN, CUT_WIDTH = 960, 34, 10, 18, 84
"""The width of the time axis, the height of a lane, the gap between two, the margin, and a cut's width."""
PRODUCT, OTHER, FORTH, BACK, SENT, RED = "#0072b2", "#7fb8da", "#009e73", "#e69f00", "#8a6fb0", "#d55e00"
MEANINGS = {
    PRODUCT: "products",
    OTHER: "other arithmetic, as fast as memory",
    FORTH: "sent to higher indices",
    BACK: "sent to lower indices",
    SENT: "sent to any device",
    RED: "exposed: sent while nothing is computed",
}
INK, FAINT, GRID = "#222222", "#666666", "#e4e4e4"
TICKS = 8
"""The approximate number of ticks of the axis."""

Unit = Callable[[Fraction], str]


def gantt(title: Sequence[str], lanes: Lanes, unit: Unit = in_words) -> Any:
    """A drawing of lanes under the lines of a title."""
    import drawsvg

    names = {lane: lane_name(lane) for lane in lanes.names}
    left = MARGIN + 14 + LETTER * 13 * max(map(len, names.values()))
    at = places(lanes, left, PLOT, CUT_WIDTH)
    used = {*map(_colour, lanes.bars), *([RED] if lanes.exposed else [])}
    legend = [(colour, words) for colour, words in MEANINGS.items() if colour in used]
    keys = sum(40 + 0.56 * 11.5 * len(words) for _, words in legend)
    widest = max(LETTER * (16 if i == 0 else 12) * len(line) for i, line in enumerate(title))
    width = max(left + PLOT + MARGIN + 24, widest + 2 * MARGIN, keys + 2 * MARGIN)
    top = MARGIN + 24 + 18 * (len(title) - 1) + 16
    bottom = top + len(names) * (LANE + GAP)
    height = bottom + 76
    drawing = drawsvg.Drawing(width, height)
    drawing.append(drawsvg.Rectangle(0, 0, width, height, fill="white"))
    describe(drawing, title[0], ". ".join([*title[1:], f"Lanes: {', '.join(names.values())}"]))

    def text(words: str, size: float, x: float, y: float, colour: str = INK, **options: Any) -> None:
        drawing.append(drawsvg.Text(words, size, x, y, fill=colour, font_family="sans-serif", **options))

    def box(x: float, y: float, wide: float, high: float, tooltip: str = "", **options: Any) -> None:
        shape = drawsvg.Rectangle(x, y, max(wide, 0.6), high, **options)
        if tooltip:
            shape.append_title(tooltip)
        drawing.append(shape)

    for i, line in enumerate(title):
        text(line, 16 if i == 0 else 12, MARGIN, MARGIN + 12 + 18 * i + (4 if i else 0), INK if i == 0 else FAINT)
    for start, end in lanes.exposed:
        box(at(start), top - 6, at(end) - at(start), bottom - top + 2, fill=RED, fill_opacity=0.13)
    for time in ticks(lanes):
        x = at(time)
        drawing.append(drawsvg.Line(x, top - 6, x, bottom, stroke=GRID, stroke_width=1))
        text(unit(time), 11, x, bottom + 16, FAINT, text_anchor="middle")
    for row, (lane, name) in enumerate(names.items()):
        y = top + row * (LANE + GAP)
        text(name, 13, left - 12, y + LANE / 2 + 4.5, INK if lane == COMPUTE else _way(lane), text_anchor="end")
        box(left, y, at(lanes.total) - left, LANE, fill="#f4f4f4")
        for bar in [bar for bar in lanes.bars if bar.lane == lane]:
            x, wide = at(bar.start), at(bar.end) - at(bar.start)
            edge = {"stroke": "white", "stroke_width": min(1, wide / 6), "rx": 2}
            box(x, y + 2, wide, LANE - 4, tooltip_of(bar, unit), fill=_colour(bar), **edge)
            what = bar.operation.name
            if LETTER * 11 * len(what) < wide - 6:
                text(what, 11, x + wide / 2, y + LANE / 2 + 4, "white", text_anchor="middle")
        for waiting, start, end in lanes.waits:
            if waiting == lane:
                box(at(start), y + LANE - 6, at(end) - at(start), 5, fill=RED)
    for start, end, left_out in lanes.cuts:
        x, middle = at(start), (at(start) + at(end)) / 2
        box(x, top - 6, at(end) - x, bottom - top + 2, fill="white", stroke=GRID)
        text(f"{left_out:,} more", 11, middle, top + 14, FAINT, text_anchor="middle")
        text("iterations", 11, middle, top + 28, FAINT, text_anchor="middle")
    x = float(MARGIN)
    for colour, words in legend:
        box(x, bottom + 42, 18, 12, fill=colour)
        text(words, 11.5, x + 24, bottom + 52)
        x += 40 + 0.56 * 11.5 * len(words)
    return drawing


def tooltip_of(bar: Bar, unit: Unit) -> str:
    """The operation of a bar, its time, and its amounts."""
    operation = bar.operation
    amounts = [f"{n:,} FLOPs of {dtype}" for dtype, n in operation.flops.items() if n]
    amounts += [f"{operation.bytes:,} bytes of memory"] if operation.bytes else []
    amounts += [f"{float(max(operation.loads.bytes.values())):,.0f} bytes over a link"] if operation.transfers else []
    return "\n".join([f"{operation.name}, {unit(bar.end - bar.start)}", operation.where, *amounts])


def _colour(bar: Bar) -> str:
    if bar.lane == COMPUTE:
        return PRODUCT if any(bar.operation.flops.values()) else OTHER
    return _way(bar.lane)


def _way(lane: Link | str) -> str:
    """The colour of a link."""
    return SENT if lane == SWITCH else FORTH if lane[1] == 1 else BACK
