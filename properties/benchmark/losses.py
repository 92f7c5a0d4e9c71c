"""What one step of training sends and holds under every parallelisation: counted, beside the formulas."""

import numpy as np
from rich.console import Console
from rich.table import Table

from shardproof.impl.losses import PARALLELISATIONS
from shardproof.oracles.communication import Cost
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.counted import count
from shardproof.properties.contracts.mlp_claims import Setting
from shardproof.properties.engines import Engine, SimulateEngine, XlaEngine
from shardproof.properties.performance.operations import peak_of
from shardproof.properties.programs.losses import loss_and_gradients, step_cost
from shardproof.properties.programs.program import Program

SIZES, EXAMPLES = (32, 128, 256, 128, 4), 16
MESH, DATA, MODEL = MeshCase(("dp", "tp"), (4, 2)), "dp", "tp"

LAYERS, WIDTH = (6, 24, 96), 128
"""Of the models whose peaks are compared: the more layers, the smaller a part of it is the one that is gathered."""

AGAINST = "data_parallel"


def measure() -> None:
    """Prints what a step sends, and the most that a device holds."""
    console = Console(width=150)
    console.print(sent())
    console.print(held())


def sent() -> Table:
    """The collectives of the loss and of the gradients of all parameters, counted in two ways, and by formula."""
    sizes, names = ", ".join(map(str, SIZES)), _setting(SIZES).names
    parameters = f"parameters of {4 * (names['weights'] + names['biases']):,} bytes"
    table = Table(title=f"one step, layers of {sizes}, {EXAMPLES} examples, float32, mesh {MESH}: {parameters}")
    for column in ("parallelisation", "collectives of a step", "bytes", "formula", "XLA:CPU", "peak bytes"):
        table.add_column(column, justify="right" if "bytes" in column else "left", overflow="fold")
    for name, loss in PARALLELISATIONS.items():
        program = loss_and_gradients(loss, MESH, SIZES, EXAMPLES, data=DATA, model=MODEL)
        formula = step_cost(name, _setting(SIZES))
        traced, compiled = (_counted(engine, program) for engine in (SimulateEngine(), XlaEngine()))
        same = "the same" if str(traced) == str(formula) else str(formula)
        table.add_row(
            name, counts(traced), f"{traced.total_bytes:,}", same, counts(compiled), f"{peak_of(program, MESH):,}"
        )
    return table


def held() -> Table:
    """The peak of a step as a part of that of data parallelism, for models of more and more layers."""
    table = Table(title=f"peak bytes of a step against {AGAINST}, layers of {WIDTH}, {EXAMPLES} examples, mesh {MESH}")
    table.add_column("parallelisation")
    for layers in LAYERS:
        table.add_column(f"{layers} layers", justify="right")
    peaks = {name: [_peak(name, layers) for layers in LAYERS] for name in PARALLELISATIONS}
    for name, own in peaks.items():
        table.add_row(name, *(f"{one / other:.3f}" for one, other in zip(own, peaks[AGAINST], strict=True)))
    table.add_row("1/p", *[f"{1 / MESH.size:.3f}"] * len(LAYERS))
    return table


def counts(cost: Cost) -> str:
    """How many collectives of which kind."""
    return ", ".join(f"{kind} {number}" for kind, number in cost.counts) or "none"


def _setting(sizes: tuple[int, ...]) -> Setting:
    return Setting(MESH, (DATA,), (MODEL,), EXAMPLES, sizes, of_inputs=False)


def _counted(engine: Engine, program: Program) -> Cost:
    arrays = [np.ones(a.shape, a.dtype) for a in program.arguments]
    cost = count(engine, program, MESH, arrays).cost
    assert cost is not None
    return cost


def _peak(name: str, layers: int) -> int:
    sizes = (WIDTH,) * (layers + 1)
    return peak_of(loss_and_gradients(PARALLELISATIONS[name], MESH, sizes, EXAMPLES, data=DATA, model=MODEL), MESH)
