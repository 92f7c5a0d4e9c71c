"""Dispatches of a mixture of experts: what each sends, holds and hides, for even routing, and for skewed routing.

`python -m shardproof.properties.benchmark moe`. These figures are the interpreter's, and the same on every run. With
`--growth` follow those of 8, 64 and 256 devices, and with `--clock` the time that compiled ones take on CPU devices,
and how many drawn cases are checked in a second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from shardproof.impl import moe
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import dispatch
from shardproof.oracles.moe.routing import route
from shardproof.properties.benchmark import tables
from shardproof.properties.communication.bounds import moved
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.simulate.record import Record
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.performance.machines import Balanced
from shardproof.properties.performance.operations import operations_of
from shardproof.properties.performance.timeline import timeline
from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.programs.program import Argument, Program

PER_SENDER = "all_to_all, per sender"
DISPATCHES: dict[str, Callable[..., Any]] = {
    **{one.name: one.function for one in OPERATIONS if one.form == "routed"},
    PER_SENDER: moe.all_to_all_moe,
}
"""Every form, by its name; "per sender" divides the capacity among senders, so that buffers are smaller."""

COLUMNS = (
    "dispatch",
    "collectives",
    "sent, even",
    "sent, skewed",
    "sent / ideal",
    "peak bytes",
    "peak / tokens",
    "exposed",
    "gradient sent",
    "gradient peak bytes",
    "gradient peak / tokens",
    "gradient exposed",
)
"""Ideal is each kept token once there and back, for even routing; tokens are the bytes of a device's tokens."""

IN_SHORT = (0, 2, 3, 4, 6, 7, 8, 10, 11)
"""The columns that `impl/README.md` has."""


@dataclass(frozen=True)
class Layer:
    """A layer's sizes.

    Arguments:
        participants: p.
        tokens: of each participant.
        features: of a token, as many as there are of a result; at least as many as experts.
        held: the experts of each participant.
        top_k: the choices of a token.
        factor: of the capacity; None: nothing is dropped.
    """

    participants: int = 8
    tokens: int = 64
    features: int = 32
    held: int = 2
    top_k: int = 2
    factor: float | None = 1.25

    @property
    def experts(self) -> int:
        """Those of all participants."""
        return self.participants * self.held

    @property
    def capacity(self) -> int | None:
        """The most pairs that an expert keeps."""
        if self.factor is None:
            return None
        return moe.capacity_of(self.participants * self.tokens, self.experts, self.top_k, self.factor)

    @property
    def tokens_bytes(self) -> int:
        """Of the tokens of one participant: T D float32."""
        return 4 * self.tokens * self.features

    @property
    def mesh(self) -> MeshCase:
        """One axis."""
        return MeshCase(("ep",), (self.participants,))

    def room(self, name: str) -> dict[str, Any]:
        """The settings of a dispatch by its name."""
        settings: dict[str, Any] = {"top_k": self.top_k, "capacity": self.capacity, "policy": "position"}
        if name == PER_SENDER and self.capacity is not None:
            settings |= {"capacity": None, "capacity_per_sender": -(-self.capacity // self.participants)}
        return settings

    def program(self, name: str, *, gradient: bool = False) -> Program:
        """The layer over one axis by one of `DISPATCHES`, or its gradient alone."""
        dispatch, room = DISPATCHES[name], self.room(name)

        def build(mesh: jax.sharding.Mesh) -> Callable[..., object]:
            specs = (jax.P("ep"), jax.P(), jax.P("ep"))
            layer = jax.shard_map(
                lambda *xs: dispatch(*xs, "ep", **room), mesh=mesh, in_specs=specs, out_specs=specs[0]
            )

            def derived(*xs: jax.Array) -> object:
                result, pull = jax.vjp(layer, *xs)
                return pull(jnp.ones_like(result))

            return derived if gradient else layer

        rows, sides = self.participants * self.tokens, (self.features, self.features)
        shapes = ((rows, self.features), (self.features, self.experts), (self.experts, *sides))
        placed = ((("ep",), ()), ((), ()), (("ep",), (), ()))
        return Program(build, tuple(Argument(s, np.float32, at) for s, at in zip(shapes, placed, strict=True)))

    def arrays(self, *, skewed: bool) -> list[np.ndarray]:
        """Tokens whose first features are their logits: choices spread over all experts in turn, or on the first ones.

        In turn means that a participant's pairs are spread as evenly as they can be, its own experts' among them.
        """
        rng, rows = np.random.default_rng(0), self.participants * self.tokens
        tokens = rng.normal(size=(rows, self.features)).astype(np.float32)
        tokens[:, : self.experts] = 0
        first = np.zeros(rows, np.int64) if skewed else self.top_k * np.arange(rows)
        for choice in range(self.top_k):
            tokens[np.arange(rows), (first + choice) % self.experts] = self.top_k - choice
        router = np.eye(self.features, self.experts, dtype=np.float32)
        return [tokens, router, rng.normal(size=(self.experts, self.features, self.features)).astype(np.float32)]

    def ideal(self, *, skewed: bool) -> Fraction:
        """The bytes that a device must send in the mean: each kept token to its expert, and what comes of it back.

        Those whose expert is on their own participant stay there.
        """
        tokens, router, _ = self.arrays(skewed=skewed)
        routing = route((tokens @ router).astype(np.float64), self.top_k)
        kept = dispatch(routing, self.participants, self.experts, capacity=self.capacity, policy="position").kept
        leaving = sum(pair.sender != pair.receiver for pair in kept)
        return Fraction(leaving * 2 * self.features * 4, self.participants)


def recorded(program: Program, mesh: MeshCase, arrays: list[np.ndarray]) -> Record:
    """What the interpreter saw of a program without what nobody reads."""
    abstract = abstract_mesh(mesh)
    prepared = prepare(program.build(abstract), *program.abstract_arguments(abstract)).live()
    record: Record = prepared.run_recorded(*arrays)[1]
    return record


def sent(record: Record) -> Fraction:
    """The bytes that a device sends in the mean; a ragged exchange by the rows that leave their participant."""
    total = Fraction(0)
    for c in record.collectives:
        if c.kind == "ragged_all_to_all":
            own = sum(size for source, target, size in c.traffic if source != target)
            total += c.count * Fraction(own, c.mesh.size)
        else:
            size = moved([(c.kind, c.participants, c.operand_bytes)])
            assert size is not None
            total += c.count * size
    return total


def exposed(layer: Layer, program: Program) -> str:
    """The part of its communication behind which nothing is computed, on the machine that is balanced for it.

    A loop whose iterations depend on data runs once, as it does for even routing.
    """
    operations = operations_of(program, layer.mesh, trips=1)
    share = timeline(operations, Balanced.of(operations, layer.mesh, layer.mesh.axis_names)).share
    return f"{float(share):.0%}"


@dataclass(frozen=True)
class Figures:
    """What a device does for the forward pass or the gradient alone, with even routing.

    Arguments:
        sent: bytes.
        peak: the most bytes at one time.
        exposed: the part of its communication behind which nothing is computed.
        collectives: how many of each kind.
    """

    sent: Fraction
    peak: int
    exposed: str
    collectives: str

    @classmethod
    def of(cls, layer: Layer, name: str, *, gradient: bool) -> "Figures":
        """Those of one of `DISPATCHES`."""
        program = layer.program(name, gradient=gradient)
        record = recorded(program, layer.mesh, layer.arrays(skewed=False))
        kinds = sorted({c.kind for c in record.collectives})
        counts = ", ".join(f"{record.count(kind)} {kind}" for kind in kinds)
        return cls(sent(record), record.peak_bytes, exposed(layer, program), counts)


def names_of(layer: Layer) -> list[str]:
    """The dispatches that a layer has: without a capacity there is none to divide among senders."""
    return [name for name in DISPATCHES if name != PER_SENDER or layer.capacity is not None]


def rows(layer: Layer) -> list[tuple[str, ...]]:
    """Every dispatch's figures per device, of `COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for name in names_of(layer):
        forward, gradient = (Figures.of(layer, name, gradient=each) for each in (False, True))
        skewed = recorded(layer.program(name), layer.mesh, layer.arrays(skewed=True))
        found.append(
            (
                name,
                forward.collectives,
                f"{float(forward.sent):,.0f}",
                f"{float(sent(skewed)):,.0f}",
                f"{float(forward.sent / layer.ideal(skewed=False)):.2f}",
                f"{forward.peak:,}",
                f"{forward.peak / layer.tokens_bytes:.1f}",
                forward.exposed,
                f"{float(gradient.sent):,.0f}",
                f"{gradient.peak:,}",
                f"{gradient.peak / layer.tokens_bytes:.1f}",
                gradient.exposed,
            )
        )
    return found


LAYERS = (Layer(), Layer(factor=None))
"""With a capacity of 1.25 times the even share, and without one."""


def title(layer: Layer) -> str:
    """The sizes of a layer."""
    room = "dropless" if layer.factor is None else f"capacity factor {layer.factor}"
    even, skewed = (float(layer.ideal(skewed=skewed)) for skewed in (False, True))
    return (
        f"per device, of {layer.participants}; {layer.tokens} tokens of {layer.features} float32 features each, "
        f"{layer.experts} experts, top {layer.top_k}, {room}: ideal {even:,.0f} bytes, skewed {skewed:,.0f}"
    )


def markdown() -> str:
    """The tables of both layers, as `impl/README.md` has them."""
    parts = [f"As JAX {jax.__version__} traces them."]
    for layer in LAYERS:
        columns, *lines = [tuple(line[i] for i in IN_SHORT) for line in (COLUMNS, *rows(layer))]
        parts.append(f"{title(layer).replace('per', 'Per', 1)}:\n\n{tables.markdown(columns, lines, left=1)}")
    return "\n\n".join(parts)


def measure() -> None:
    """Prints the tables of both layers."""
    console = Console(width=190)
    for layer in LAYERS:
        console.print(tables.table(title(layer), COLUMNS, rows(layer)))
