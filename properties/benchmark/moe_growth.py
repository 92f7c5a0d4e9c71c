"""How dispatches of a mixture of experts grow with the number of devices, and how long they take on CPU devices."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from rich.console import Console
from rich.table import Table

from shardproof.properties.benchmark import moe
from shardproof.properties.benchmark.measured.medians import medians
from shardproof.properties.benchmark.moe import DISPATCHES, PER_SENDER, Layer, recorded, sent
from shardproof.properties.benchmark.tables import table
from shardproof.properties.engines.simulate.record import Record

DEVICES = (8, 64, 256)
MEASURES: dict[str, Callable[[Record], str]] = {
    "sent": lambda record: f"{float(sent(record)):,.0f}",
    "peak bytes": lambda record: f"{record.peak_bytes:,}",
    "steps": lambda record: f"{record.rounds:,}",
    "equations": lambda record: f"{record.equations:,}",
}
"""What is measured on every number of devices. Steps are the collectives that wait for one another."""

AGAINST = "all_to_all"
NOT_COMPILED = ("ragged",)
"""What XLA compiles for no CPU."""


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


def growth(factor: float | None, devices: Iterable[int] = DEVICES) -> Table:
    """What every dispatch sends and holds, and how many steps it takes, on more and more simulated devices.

    With a capacity all participants tell one another the lengths of all queues, which is soon more than tokens are.
    """
    layers = [Growing(p, factor=factor) for p in devices]
    lines = []
    for name in DISPATCHES:
        if name == PER_SENDER and factor is None:
            continue
        records = [recorded(layer.program(name), layer.mesh, layer.arrays(skewed=False)) for layer in layers]
        lines.append((name, *(shown(record) for shown in MEASURES.values() for record in records)))
    ideal = (f"{float(layer.ideal(skewed=False)):,.0f}" for layer in layers)
    lines.append(("ideal", *ideal, *[""] * (len(MEASURES) - 1) * len(layers)))
    columns = ("dispatch", *(f"{measure}, {layer.participants}" for measure in MEASURES for layer in layers))
    one, room = layers[0], "dropless" if factor is None else f"capacity factor {factor}"
    title = (
        f"per device, of {', '.join(str(layer.participants) for layer in layers)}; {one.tokens} tokens of "
        f"{one.features} float32 features each, an expert on each, top {one.top_k}, {room}, even"
    )
    return table(title, columns, lines)


def clock(layer: Layer) -> Table:
    """The time of every dispatch that is compiled, as a multiple of that of `all_to_all`, measured in turns."""
    mesh = jax.make_mesh((layer.participants,), ("ep",), (AxisType.Auto,), devices=jax.devices()[: layer.participants])
    names = [name for name in DISPATCHES if name not in NOT_COMPILED and (name != PER_SENDER or layer.capacity)]
    ways = {
        "forward, even": (False, False),
        "forward, skewed": (False, True),
        "gradient, even": (True, False),
        "gradient, skewed": (True, True),
    }
    taken = {}
    for way, (gradient, skewed) in ways.items():
        taken[way] = medians({name: _run(layer, name, mesh, gradient=gradient, skewed=skewed) for name in names})
    against = tuple(f"{taken[way][AGAINST] * 1e3:.2f} ms" for way in ways)
    lines = [(name, *(f"{taken[way][name] / taken[way][AGAINST]:.2f}" for way in ways)) for name in names]
    title = (
        f"time on {layer.participants} CPU devices against {AGAINST} ({', '.join(against)}); {layer.tokens} tokens of "
        f"{layer.features} float32 features each, {layer.experts} experts, top {layer.top_k}"
    )
    return table(title, ("dispatch", *ways), lines)


def _run(layer: Layer, name: str, mesh: jax.sharding.Mesh, *, gradient: bool, skewed: bool) -> Callable[[], Any]:
    program = layer.program(name, gradient=gradient)
    function = jax.jit(program.build(mesh))
    arrays = [
        jax.device_put(array, NamedSharding(mesh, argument.partition_spec))
        for array, argument in zip(layer.arrays(skewed=skewed), program.arguments, strict=True)
    ]
    return lambda: function(*arrays)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `measure` is asked for."""
    group = parser.add_argument_group("moe", "what takes longer than counting, of the dispatches of experts")
    group.add_argument("--growth", action="store_true", help="what they send and hold on 8, 64 and 256 devices")
    group.add_argument("--clock", action="store_true", help="the time they take on CPU devices, beside one another")


def measure(options: argparse.Namespace) -> None:
    """Prints the tables of what dispatches send and hold, and those that are asked for."""
    moe.measure()
    console = Console(width=190)
    if options.growth:
        for factor in (Layer.factor, None):
            console.print(growth(factor))
    if options.clock:
        console.print(clock(Layer(min(options.devices, 8), tokens=512, features=128)))
