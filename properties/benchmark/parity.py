"""All parallelisations take the steps of one device: loss, gradients and ten steps of Adam, on both engines.

`python -m shardproof.properties.benchmark parity`. Loss and gradients are those of small integers in float64, of which
all sums are exact: they are the same bits, or they are not. The gradients are what a step of gradient descent at the
rate 1 takes from the parameters, so that those of ZeRO, which no device ever holds, are among them. The steps of Adam
are of real numbers in float64. What is sent and held is that of a step of Adam in float32. Forms that take microbatches
take two.
"""

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass, replace
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from shardproof.impl import optimisers
from shardproof.impl.losses import PARALLELISATIONS
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.communication import Cost
from shardproof.oracles.layout import block_shape
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.benchmark import tables
from shardproof.properties.benchmark.losses import counts
from shardproof.properties.cases.training import Masked, Trial
from shardproof.properties.communication.counted import of_compiled, of_record
from shardproof.properties.laws.training import TOLERANCE, compiled, expected, setting_of, simulated
from shardproof.properties.programs.losses import shapes
from shardproof.properties.programs.training import FORMS, Form, of_loss

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
    "accumulated",
    "accumulated_fsdp",
    "accumulated_tensor_parallel",
    "zero",
    "zero_tensor_parallel",
)
OF_EXAMPLES_ALONE = ("accumulated", "accumulated_fsdp", "zero")
"""Those that share nothing over the axes of model, and so take them for data, as data parallelism does."""


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
        same: by engine, whether the loss, and the parameters after a step of gradient descent, are the same bits.
        adam: by engine, the most that a loss or parameter is off by in each step of Adam, as a part of the largest
            number of its array, or of 1.
        sent: by engine, what a step sends.
        formula: the same by the oracle.
    """

    name: str
    same: dict[str, bool]
    adam: dict[str, list[float]]
    sent: dict[str, Cost]
    formula: Cost

    def most(self, engine: str, steps: int) -> float:
        """The most that anything is off by in so many steps of Adam."""
        return max(self.adam[engine][:steps])


def placed(one: Form, trial: Steps) -> Steps:
    """The trial with the roles of axes that the form has, in two microbatches if it takes any."""
    if one.name in OF_EXAMPLES_ALONE:
        trial = replace(trial, data=(*trial.data, *trial.model), model=())
    return replace(trial, microbatches=2 if one.masked else 1)


def parity(one: Form, trial: Steps, engines: Collection[str] = tuple(ENGINES)) -> Parity:
    """One row: the engines take the steps of the trial.

    Arguments:
        one: the step, of one of `NAMES`.
        trial: steps of real numbers; `data` and `model` as most forms have them.
        engines: the names of the engines.
    """
    trial = placed(one, trial)
    exact = replace(trial, exact=True, steps=1)
    counted = replace(trial, dtype="float32", steps=1)
    same: dict[str, bool] = {}
    adam: dict[str, list[float]] = {}
    sent: dict[str, Cost] = {}
    with jax.enable_x64(True):
        for engine in engines:
            run = ENGINES[engine]
            _, found = run(exact, one, optimisers.sgd(1.0))
            descended = _pairs(found, exact, one, oracle.GradientDescent(1.0))
            same[engine] = all(itertools.starmap(np.array_equal, *descended))
            _, found = run(trial, one, optimisers.adam(0.01))
            adam[engine] = [
                max(itertools.starmap(_off_by, step)) for step in _pairs(found, trial, one, oracle.Adam(0.01))
            ]
            evidence, _ = run(counted, one, optimisers.adam(0.01))
            cost = (of_record(evidence) if engine == "simulate" else of_compiled(evidence)).cost
            assert cost is not None
            sent[engine] = cost
    assert one.cost is not None
    at = setting_of(counted, trial.data, trial.model)
    return Parity(one.name, same, adam, sent, one.cost(at, trial.microbatches))


def _pairs(found: Any, trial: Steps, one: Form, of: oracle.Optimiser) -> list[list[tuple[Any, Any]]]:
    """What was found after each step beside what is right: the loss, and all parameters."""
    losses, after = expected(trial, one, of)
    return [
        [(loss, right_loss), *zip(leaves, right, strict=True)]
        for (loss, leaves), right_loss, right in zip(found, losses, after, strict=True)
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
    trial = replace(placed(one, trial), dtype="float32", steps=1)
    depth = len(trial.sizes) - 1
    record, _ = simulated(trial, one, optimisers.adam(0.01))
    wholes, specs = shapes(trial.sizes, trial.examples)[0], one.specs(depth, trial.data, trial.model)[0]
    blocks = [
        math.prod(block_shape(shape, trial.mesh, spec))
        for layer, layouts in zip(wholes, specs, strict=True)
        for shape, spec in zip(layer, layouts, strict=True)
    ]
    if name.startswith("zero"):  # its state is among the arguments of its `shard_map`
        shards = (-(-n // trial.mesh.axis_size(trial.data)) for n in blocks)
        return Held(4 * sum(blocks), 8 * sum(shards), record.peak_bytes)
    return Held(4 * sum(blocks), 8 * sum(blocks), record.peak_bytes + 8 * sum(blocks))


TRIAL, TRIAL_OF_DEEP = (Steps(MESH, DATA, MODEL, sizes, EXAMPLES, steps=STEPS) for sizes in (SIZES, DEEP))


def measure() -> None:
    """Prints both tables."""
    console = Console(width=180)
    sizes = ", ".join(map(str, SIZES))
    title = f"layers of {sizes}, {EXAMPLES} examples, mesh {MESH}, against one device; bytes of a step in float32"
    console.print(tables.table(title, COLUMNS, [row(parity(form(name), TRIAL)) for name in NAMES]))
    console.print(memory(TRIAL_OF_DEEP))


COLUMNS = (
    "parallelisation",
    "loss and gradients",
    f"{STEPS} steps of Adam: simulate",
    "XLA:CPU",
    "collectives of a step",
    "formula",
    "bytes",
    "XLA:CPU sends",
)


def row(of: Parity) -> tuple[str, ...]:
    """A row as it is printed."""
    return (
        of.name,
        bits(of),
        *(f"{of.most(engine, STEPS):.0e}" for engine in ENGINES),
        *sent(of),
        counts(of.sent["xla"]),
    )


def bits(of: Parity) -> str:
    """Whether all engines find the same bits, or which do."""
    return "the same bits" if all(of.same.values()) else ", ".join(f"{k}: {v}" for k, v in of.same.items())


def sent(of: Parity) -> tuple[str, str, str]:
    """What is sent as it is traced: collectives, whether the formula says so, and bytes."""
    traced = of.sent["simulate"]
    same = "the same" if str(traced) == str(of.formula) else str(of.formula)
    return counts(traced), same, f"{traced.total_bytes:,}"


IN_MARKDOWN = (
    "parallelisation",
    "loss and gradients",
    "one step of Adam",
    "ten",
    "collectives of a step",
    "formula",
    "bytes",
    "peak bytes",
    "times p, of data parallelism's",
)


def markdown() -> str:
    """What the interpreter says of every parallelisation, as `impl/README.md` has it."""
    every = {name: held(name, TRIAL_OF_DEEP) for name in NAMES}
    lines = []
    for name in NAMES:
        found, peak = parity(form(name), TRIAL, ("simulate",)), every[name].peak
        adam = (within(found.most("simulate", steps)) for steps in (1, STEPS))
        of_the_least = peak * MESH.size / every[AGAINST].peak
        lines.append((name, bits(found), *adam, *sent(found), f"{peak:,}", f"{of_the_least:.2f}"))
    return tables.markdown(IN_MARKDOWN, lines, left=6)


def within(off: float) -> str:
    """Whether what is off by so much is one device's."""
    return f"{-math.log10(TOLERANCE):.0f} digits" if off < TOLERANCE else f"off by {off:.0e}"


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
    return tables.table(f"{title}; 1/p = {1 / trial.mesh.size}", columns, lines)
