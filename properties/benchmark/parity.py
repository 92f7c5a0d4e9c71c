"""All parallelisations take the steps of one device: loss, gradients and ten steps of Adam, on both engines.

`python -m shardproof.properties.benchmark parity`. Loss and gradients are those of small integers in float64, of which
all sums are exact: they are the same bits, or they are not. The gradients are what a step of gradient descent at the
rate 1 takes from the parameters, so that those of ZeRO, which no device ever holds, are among them. The steps of Adam
are of real numbers in float64. What is sent and held is that of a step of Adam in float32.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from shardproof.impl import optimisers
from shardproof.impl.losses import PARALLELISATIONS
from shardproof.oracles import mlp_costs, training_costs
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.communication import Cost
from shardproof.oracles.layout import block_shape
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.benchmark.losses import counts
from shardproof.properties.benchmark.tables import table
from shardproof.properties.cases.training import Masked, Trial
from shardproof.properties.counting.counted import of_compiled, of_record
from shardproof.properties.laws.training import compiled, expected, simulated
from shardproof.properties.programs.losses import shapes
from shardproof.properties.programs.training import FORMS, Axes, Form, of_loss

ENGINES: dict[str, Callable[..., Any]] = {"simulate": simulated, "xla": compiled}
MESH, DATA, MODEL = MeshCase(("dp", "tp"), (4, 2)), ("dp",), ("tp",)
SIZES, EXAMPLES, STEPS = (32, 128, 256, 128, 4), 16, 10
DEEP = (128,) * 25
"""The sizes of the model whose peaks are compared: a gathered layer is a small part of it."""

AGAINST = "data_parallel"


def form(name: str) -> Form:
    """A step by the name of its parallelisation."""
    return FORMS[name] if name in FORMS else of_loss(PARALLELISATIONS[name])


NAMES = (
    "one_device",
    AGAINST,
    "fsdp_rows",
    "fsdp_rows_remat",
    "fsdp_2d",
    "fsdp_2d_remat",
    "tensor_parallel",
    "fsdp_tensor_parallel",
    "fsdp_tensor_parallel_remat",
    "zero",
)


@dataclass(frozen=True)
class Steps(Trial):
    """Steps of which all examples count.

    Arguments:
        exact: whether all numbers are -1, 0 and 1.
    """

    exact: bool = False

    def arrays(self, form: Masked) -> tuple[Any, Any]:
        """Parameters and batch."""
        params, (inputs, targets, *masks) = super().arrays(form)
        numbers = np.random.default_rng(self.seed)

        def drawn(x: np.ndarray) -> np.ndarray:
            return (numbers.integers(-1, 2, x.shape) if self.exact else x).astype(self.dtype)

        params, (inputs, targets) = jax.tree.map(drawn, (params, (inputs, targets)))
        return params, (inputs, targets, *(np.ones_like(mask) for mask in masks))


@dataclass(frozen=True)
class Parity:
    """How one parallelisation compares with one device.

    Arguments:
        name: of the parallelisation.
        same: by engine, whether the loss and all gradients are the same bits.
        adam: by engine, the most that a loss or parameter is off by in any of the steps of Adam, as a part of the
            largest number of its array, or of 1.
        traced: what a step sends, as it is traced.
        compiled: as it is compiled.
        formula: by the oracle.
    """

    name: str
    same: dict[str, bool]
    adam: dict[str, float]
    traced: Cost
    compiled: Cost
    formula: Cost


def roles(name: str, data: Axes, model: Axes) -> tuple[Axes, Axes]:
    """The axes of data and of model: ZeRO shares over all of them what data parallelism has everywhere."""
    return ((*data, *model), ()) if name == "zero" else (data, model)


def parity(one: Form, trial: Steps) -> Parity:
    """One row: both engines take the steps of the trial.

    Arguments:
        one: the step, of one of `NAMES`.
        trial: steps of real numbers; `data` and `model` as all but ZeRO have them.
    """
    data, model = roles(one.name, trial.data, trial.model)
    trial = replace(trial, data=data, model=model)
    exact = replace(trial, exact=True, steps=1)
    same: dict[str, bool] = {}
    adam: dict[str, float] = {}
    costs: dict[str, Cost | None] = {}
    with jax.enable_x64(True):
        for engine, run in ENGINES.items():
            _, found = run(exact, one, optimisers.sgd(1.0))
            same[engine] = all(
                itertools.starmap(np.array_equal, _pairs(found, exact, one, oracle.GradientDescent(1.0)))
            )
            _, found = run(trial, one, optimisers.adam(0.01))
            adam[engine] = max(itertools.starmap(_off_by, _pairs(found, trial, one, oracle.Adam(0.01))))
            evidence, _ = run(replace(trial, dtype="float32", steps=1), one, optimisers.adam(0.01))
            costs[engine] = (of_record(evidence) if engine == "simulate" else of_compiled(evidence)).cost
    traced, sent = costs["simulate"], costs["xla"]
    assert traced is not None
    assert sent is not None
    at = mlp_costs.Setting(trial.mesh, data, model, trial.examples, trial.sizes, of_inputs=False)
    of_zero = one.name == "zero"
    formula = training_costs.zero(at, 1) if of_zero else mlp_costs.of_step(mlp_costs.formula_of(one.name), at)
    return Parity(one.name, same, adam, traced, sent, formula)


def _pairs(found: Any, trial: Steps, one: Form, of: oracle.Optimiser) -> list[tuple[Any, Any]]:
    """What was found after every step beside what is right: the loss, and all parameters."""
    losses, after = expected(trial, one, of)
    return [
        pair
        for (loss, leaves), right_loss, right in zip(found, losses, after, strict=True)
        for pair in [(loss, right_loss), *zip(leaves, right, strict=True)]
    ]


def _off_by(found: Any, right: Any) -> float:
    return float(np.max(np.abs(found - right), initial=0) / max(1.0, np.max(np.abs(right), initial=0)))


@dataclass(frozen=True)
class Held:
    """What a device holds, in bytes.

    Arguments:
        parameters: of them.
        state: of what Adam keeps.
        peak: the most at one time in a step.
    """

    parameters: int
    state: int
    peak: int


def held(name: str, trial: Steps) -> Held:
    """What a device holds in a step of Adam in float32, counted in the interpreter.

    The loss is differentiated in `shard_map`s, beside which the state stays; the update, element by element and
    donated, takes the place of what it updates.
    """
    one = form(name)
    data, model = roles(name, trial.data, trial.model)
    trial = replace(trial, data=data, model=model, dtype="float32", steps=1)
    depth = len(trial.sizes) - 1
    record, _ = simulated(trial, one, optimisers.adam(0.01))
    wholes, specs = shapes(trial.sizes, trial.examples)[0], one.specs(depth, data, model)[0]
    blocks = [
        math.prod(block_shape(shape, trial.mesh, spec))
        for layer, layouts in zip(wholes, specs, strict=True)
        for shape, spec in zip(layer, layouts, strict=True)
    ]
    if name == "zero":  # its state is among the arguments of its `shard_map`
        return Held(4 * sum(blocks), 8 * sum(-(-n // trial.mesh.axis_size(data)) for n in blocks), record.peak_bytes)
    return Held(4 * sum(blocks), 8 * sum(blocks), record.peak_bytes + 8 * sum(blocks))


def measure() -> None:
    """Prints both tables."""
    console = Console(width=180)
    sizes = ", ".join(map(str, SIZES))
    title = f"layers of {sizes}, {EXAMPLES} examples, mesh {MESH}, against one device; bytes of a step in float32"
    trial = Steps(MESH, DATA, MODEL, SIZES, EXAMPLES, steps=STEPS)
    console.print(table(title, COLUMNS, [row(parity(form(name), trial)) for name in NAMES]))
    console.print(memory(Steps(MESH, DATA, MODEL, DEEP, EXAMPLES)))


COLUMNS = (
    "parallelisation",
    "loss and gradients",
    f"{STEPS} steps of Adam: simulate",
    "XLA:CPU",
    "collectives of a step",
    "bytes",
    "formula",
    "XLA:CPU sends",
)


def row(of: Parity) -> tuple[str, ...]:
    """A row as it is printed."""
    return (
        of.name,
        "the same bits" if all(of.same.values()) else ", ".join(f"{k}: {v}" for k, v in of.same.items()),
        f"{of.adam['simulate']:.0e}",
        f"{of.adam['xla']:.0e}",
        counts(of.traced),
        f"{of.traced.total_bytes:,}",
        "the same" if str(of.traced) == str(of.formula) else str(of.formula),
        counts(of.compiled),
    )


def memory(trial: Steps) -> Table:
    """What a device holds, as a part of what it holds under data parallelism."""
    title = f"held by a device in a step of Adam, against {AGAINST}: {len(trial.sizes) - 1} layers of {trial.sizes[0]}"
    every = {name: held(name, trial) for name in NAMES}
    against = every[AGAINST]
    lines = [
        (name, f"{of.peak:,}", *(f"{one / other:.3f}" for one, other in zip(*map(astuple, (of, against)), strict=True)))
        for name, of in every.items()
    ]
    columns = ("parallelisation", "peak bytes", "parameters", "state", "peak")
    return table(f"{title}; 1/p = {1 / trial.mesh.size}", columns, lines)
