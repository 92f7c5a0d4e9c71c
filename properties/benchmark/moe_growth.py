"""How dispatches of a mixture of experts grow with the number of devices."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from shardproof.properties.benchmark import moe, moe_clock, tables
from shardproof.properties.benchmark.moe import DISPATCHES, PER_SENDER, Layer, names_of, recorded, sent
from shardproof.properties.engines.simulate.record import Record
from shardproof.properties.performance.operations import peak_of

DEVICES = (8, 64, 256)
MOST_BYTES = 2**30
"""What is interpreted: of all devices together, in bytes at one time."""


@dataclass(frozen=True)
class Growing(Layer):
    """A layer whose experts are as many as participants, and whose tokens do not get wider with them.

    A token is the number of the expert that it chooses, in binary digits of 1 and -1.
    """

    tokens: int = 8
    features: int = 8
    held: int = 1
    top_k: int = 1

    def arrays(self, *, skewed: bool) -> list[np.ndarray]:
        """Tokens, a router and experts: tokens choose all experts in turn, or all of them the first one."""
        numbers = np.arange(self.experts)
        digits = 1.0 - 2.0 * (numbers[:, None] >> np.arange(self.features) & 1)
        tokens = digits[np.arange(self.participants * self.tokens) % self.experts * (not skewed)]
        experts = np.random.default_rng(0).normal(size=(self.experts, self.features, self.features))
        return [x.astype(np.float32) for x in (tokens, digits.T, experts)]

    def record(self, name: str, *, gradient: bool) -> Record | None:
        """What the interpreter saw for even routing; None of what is not interpreted."""
        program = self.program(name, gradient=gradient)
        if peak_of(program, self.mesh) * self.participants > MOST_BYTES:
            return None
        return recorded(program, self.mesh, self.arrays(skewed=False))


Measure = Callable[[Layer, Record], str]

SENT: dict[str, Measure] = {"sent": lambda _, record: f"{float(sent(record)):,.0f}"}
PEAK: dict[str, Measure] = {
    "peak / tokens": lambda layer, record: f"{record.peak_bytes / layer.tokens_bytes:,.1f}",
}
MEASURES: dict[str, Measure] = {
    **SENT,
    "peak bytes": lambda _, record: f"{record.peak_bytes:,}",
    **PEAK,
    "steps": lambda _, record: f"{record.rounds:,}",
    "equations": lambda _, record: f"{record.equations:,}",
}
"""What is measured on every number of devices. The peak is that in bytes, and against those of a device's tokens; steps
are the collectives that wait for one another."""


def cells(
    layers: Sequence[Growing], name: str, measures: dict[str, Measure], *, gradient: bool = False
) -> tuple[str, ...]:
    """A row without its name: every measure of all layers."""
    records = [layer.record(name, gradient=gradient) for layer in layers]
    pairs = list(zip(layers, records, strict=True))
    return tuple("" if r is None else shown(layer, r) for shown in measures.values() for layer, r in pairs)


def columns(layers: Sequence[Growing], measures: Iterable[str], of: str = "") -> tuple[str, ...]:
    """Those of `cells`."""
    return tuple(f"{of}{measure}, {layer.participants}" for measure in measures for layer in layers)


def title(layers: Sequence[Growing]) -> str:
    """The sizes of all layers."""
    one = layers[0]
    room = "dropless" if one.factor is None else f"capacity factor {one.factor}"
    return (
        f"per device, of {', '.join(str(layer.participants) for layer in layers)}; {one.tokens} tokens of "
        f"{one.features} float32 features each, an expert on each, top {one.top_k}, {room}, even"
    )


def ideals(layers: Sequence[Growing]) -> tuple[str, ...]:
    """The least that is sent forward."""
    return tuple(f"{float(layer.ideal(skewed=False)):,.0f}" for layer in layers)


def growth(factor: float | None, devices: Iterable[int] = DEVICES, *, gradient: bool = False) -> Table:
    """What every dispatch sends and holds, and how many steps it takes, on more and more simulated devices.

    With a capacity all participants tell one another the lengths of all queues, which is soon more than tokens are.
    """
    layers = [Growing(p, factor=factor) for p in devices]
    lines = [(name, *cells(layers, name, MEASURES, gradient=gradient)) for name in names_of(layers[0])]
    if not gradient:
        lines.append(("ideal", *ideals(layers), *[""] * (len(MEASURES) - 1) * len(layers)))
    heading = title(layers) + (", gradient alone" if gradient else "")
    return tables.table(heading, ("dispatch", *columns(layers, MEASURES)), lines)


def markdown(devices: Iterable[int] = DEVICES) -> str:
    """The table of what is sent and held, forward and in the gradient, as `impl/README.md` has it.

    All dispatches are dropless but the one that divides a capacity, which needs no agreement on it.
    """
    layers = [Growing(p, factor=None) for p in devices]
    short = SENT | PEAK
    lines = []
    for name in DISPATCHES:
        each = [Growing(p) for p in devices] if name == PER_SENDER else layers
        lines.append((name, *(cell for way in (False, True) for cell in cells(each, name, short, gradient=way))))
    lines.append(("ideal", *ideals(layers), *[""] * 3 * len(layers)))
    heading = ("dispatch", *columns(layers, short), *columns(layers, short, "gradient "))
    above = f"{title(layers).replace('per', 'Per', 1)}, as JAX {jax.__version__} traces them:"
    return f"{above}\n\n{tables.markdown(heading, lines, left=1)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `measure` is asked for."""
    group = parser.add_argument_group("moe", "what takes longer than counting, of the dispatches of experts")
    group.add_argument("--growth", action="store_true", help="what they send and hold on 8, 64 and 256 devices")
    group.add_argument(
        "--clock", action="store_true", help="the time they take on CPU devices, and drawn cases a second"
    )


def measure(options: argparse.Namespace) -> None:
    """Prints the tables of what dispatches send and hold, and those that are asked for."""
    moe.measure()
    console = Console(width=230)
    if options.growth:
        for factor in (Layer.factor, None):
            for gradient in (False, True):
                console.print(growth(factor, gradient=gradient))
    if options.clock:
        console.print(moe_clock.clock(Layer(min(options.devices, 8), tokens=512, features=128)))
        console.print(moe_clock.cases())
