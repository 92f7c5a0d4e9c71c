"""Training steps of a model under every parallelisation, with the layout that each keeps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from shardproof.impl.accumulation import accumulating
from shardproof.impl.collectives import cast_varying
from shardproof.impl.losses import PARALLELISATIONS, Parallelisation, data_parallel, tensor_parallel
from shardproof.impl.model import squared_errors
from shardproof.impl.training import Step, TrainingStep
from shardproof.impl.zero import ZeroStep
from shardproof.oracles.communication import Cost
from shardproof.properties.contracts.mlp_claims import SIZES, STEPS, Setting
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.losses import step_cost

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """A training step under one parallelisation.

    Arguments:
        name: what it is called.
        specs: depth, data and model to the PartitionSpecs of parameters and batch.
        step: `(optimiser, mesh, data, model, microbatches)` to the step.
        cost: what a step sends, if that is known.
        masked: whether a batch has a mask of its examples beside inputs and targets.
        sharded: whether sizes must be multiples of the participants.
        shared: whether the participants share the optimiser's state.
    """

    name: str
    specs: Callable[[int, Axes, Axes], Any]
    step: Callable[[Any, Any, Axes, Axes, int], Step]
    cost: Callable[[Setting, int], Cost] | None = None
    masked: bool = False
    sharded: bool = False
    shared: bool = False

    def __str__(self) -> str:
        return self.name


def sum_and_count(parallelisation: Parallelisation) -> Callable[..., Any]:
    """The loss as a device computes it, of examples that are not masked: a sum, and how many count."""

    def loss(weights: Any, part: Any, *, data: Axes, model: Axes) -> tuple[jax.Array, jax.Array]:
        inputs, targets, mask = part
        features = any("model" in roles for roles in parallelisation.layout.targets[1:])
        over = model if features else ()
        outputs = parallelisation.outputs(weights, inputs, (), over)
        total = jnp.sum(jnp.where(mask, squared_errors(outputs, targets), 0))
        total = lax.psum(total, over) if over else total
        return total, jnp.sum(mask, dtype=jnp.int32)

    return loss


def of_examples(depth: int, data: Axes, model: Axes) -> Any:
    """Parameters everywhere, examples over data."""
    return [(P(), P())] * depth, (P(data), P(data), P(data))


def of_rows(depth: int, data: Axes, model: Axes) -> Any:
    """Rows of weights over data, and examples."""
    return [(P(data), P())] * depth, (P(data), P(data), P(data))


def of_features(depth: int, data: Axes, model: Axes) -> Any:
    """Rows of weights, biases and features over model, examples over data."""
    over = model or None
    return [(P(over), P(over))] * depth, (P(data, over), P(data, over), P(data))


def gathered_rows(params: Any, *, data: Axes, model: Axes) -> Any:
    """The whole weights, of their rows."""
    return [(lax.all_gather(w, data, axis=0, tiled=True), cast_varying(b, data)) for w, b in params]


def said_of(name: str) -> Callable[[Setting, int], Cost]:
    """What a step is said to send, of a setting and the number of microbatches."""
    claim = Expectation.parse(STEPS[name], (*SIZES, "microbatches")).forward
    assert claim is not None
    return lambda at, microbatches: claim.stated({**at.names, "microbatches": microbatches}).cost


def accumulated(name: str, of: Parallelisation, specs: Any, gather: Any = None, **more: Any) -> Form:
    """A form that takes a device's examples in microbatches."""

    def step(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> Step:
        loss = accumulating(
            sum_and_count(of),
            microbatches=microbatches,
            layouts=lambda params, data, model: specs(len(params), data, model),
            gather=gather,
        )
        return TrainingStep(loss, optimiser, mesh=mesh, data=data, model=model)

    return Form(name, specs, step, said_of(name), masked=True, **more)


def zero(name: str, of: Parallelisation, specs: Any, **more: Any) -> Form:
    """A form whose optimiser is shared."""

    def step(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> Step:
        return ZeroStep(
            sum_and_count(of),
            optimiser,
            mesh=mesh,
            data=data,
            model=model,
            layouts=lambda params, data, model: specs(len(params), data, model),
            microbatches=microbatches,
        )

    return Form(name, specs, step, said_of(name), masked=True, shared=True, **more)


def of_loss(loss: Parallelisation) -> Form:
    """The step of a loss of global arrays."""

    def step(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> Step:
        return TrainingStep(loss, optimiser, mesh=mesh, data=data, model=model)

    return Form(
        loss.name,
        lambda depth, data, model: loss.layout.specs(depth, data=data, model=model),
        step,
        lambda at, microbatches: step_cost(loss.name, at),
        sharded=loss.name not in ("one_device", "data_parallel"),
    )


LOSSES = ("one_device", "data_parallel", "fsdp_rows", "fsdp_2d", "tensor_parallel", "fsdp_tensor_parallel")
FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        *(of_loss(PARALLELISATIONS[name]) for name in LOSSES),
        accumulated("accumulated", data_parallel, of_examples),
        accumulated(
            "accumulated_fsdp",
            data_parallel,
            of_rows,
            gathered_rows,
            sharded=True,
        ),
        accumulated(
            "accumulated_tensor_parallel",
            tensor_parallel,
            of_features,
            sharded=True,
        ),
        zero("zero", data_parallel, of_examples),
        zero(
            "zero_tensor_parallel",
            tensor_parallel,
            of_features,
            sharded=True,
        ),
    )
}
"""All of them by their names."""
