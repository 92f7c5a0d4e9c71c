"""The law of training: some steps on a mesh are those of a single device, by the definitions of loss and optimiser."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.mlp import loss as reference
from shardproof.properties.engines.simulate import Record, prepare
from shardproof.properties.engines.xla import abstract_mesh, device_mesh
from shardproof.properties.programs.training import Form

TOLERANCE = 1e-9
OPTIMISERS: Mapping[str, tuple[Callable[[], Any], oracle.Optimiser]] = {
    "sgd": (lambda: optimisers.sgd(0.02), oracle.GradientDescent(0.02)),
    "momentum": (lambda: optimisers.sgd(0.02, momentum=0.9), oracle.GradientDescent(0.02, 0.9)),
    "adam": (lambda: optimisers.adam(0.01), oracle.Adam(0.01)),
}
"""By name: the optimiser, and what it means."""


@dataclass(frozen=True)
class Trial:
    """Some steps of a model on a mesh: everything needed to take them again."""

    mesh: MeshCase
    data: tuple[str, ...]
    model: tuple[str, ...]
    sizes: tuple[int, ...]
    examples: int
    microbatches: int = 1
    steps: int = 1
    seed: int = 0

    def arrays(self, form: Form) -> tuple[Any, Any]:
        """Parameters and batch, in float64; of a mask at least one is true, and devices count differently."""
        rng = np.random.default_rng(self.seed)
        layers = [
            (rng.normal(size=(a, b)) / a**0.5, rng.normal(size=b))
            for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True)
        ]
        batch = tuple(rng.normal(size=(self.examples, self.sizes[i])) for i in (0, -1))
        mask = rng.random(self.examples) < 0.6
        mask[self.seed % self.examples] = True
        return layers, (*batch, mask) if form.masked else batch


def expected(trial: Trial, form: Form, of: oracle.Optimiser) -> tuple[list[float], list[list[np.ndarray]]]:
    """The losses before every step, and the parameters after it, on a single device."""
    params, (inputs, targets, *mask) = trial.arrays(form)
    counts = mask[0] if mask else np.ones(trial.examples, bool)
    leaves = [x for layer in params for x in layer]
    kept = of.start(leaves)
    losses, after = [], []
    for _ in range(trial.steps):
        arrays = [*leaves, inputs[counts], targets[counts]]
        dtypes = [a.dtype for a in arrays]
        losses.append(float(reference.value(arrays, dtypes, {})[0]))
        gradients = reference.pullback(arrays, [np.ones(())], range(len(leaves)), dtypes, {})
        leaves, kept = of.step(leaves, gradients, kept)
        after.append(leaves)
    return losses, after


def check_steps(trial: Trial, form: Form, optimiser: tuple[Callable[[], Any], oracle.Optimiser], engine: str) -> Any:
    """Losses and parameters are those of a single device, after every step; gives the record, or the compiled text.

    Raises:
        AssertionError: if not; for a replica that differs, a layout that changed, or a buffer that was not donated.
    """
    make, of = optimiser
    with jax.enable_x64(True):
        losses, after = expected(trial, form, of)
        run = simulated if engine == "simulate" else compiled
        evidence, found = run(trial, form, make())
        for step, (loss, leaves) in enumerate(found):
            context = f"{form} on {trial}, {engine}, step {step + 1}"
            close(loss, losses[step], f"{context}: loss")
            for i, (leaf, right) in enumerate(zip(leaves, after[step], strict=True)):
                close(leaf, right, f"{context}: parameter {i}")
        return evidence


def close(found: Any, right: Any, what: str) -> None:
    """Equal to nine digits of the largest.

    Raises:
        AssertionError: if not.
    """
    difference = float(np.max(np.abs(np.asarray(found) - right), initial=0))
    most = TOLERANCE * max(1.0, float(np.max(np.abs(right), initial=0)))
    assert difference <= most, f"{what} is off by {difference:.3g}, more than {most:.3g}"


def simulated(trial: Trial, form: Form, optimiser: Any) -> tuple[Record, list[tuple[Any, list[Any]]]]:
    """The steps, interpreted."""
    mesh = abstract_mesh(trial.mesh)
    step = form.step(optimiser, mesh, trial.data, trial.model, trial.microbatches)
    arrays = trial.arrays(form)
    of_params, of_batch = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, s)),
        arrays,
        form.specs(len(trial.sizes) - 1, trial.data, trial.model),
    )
    of_state = jax.eval_shape(step.initial, of_params)
    params, batch = arrays
    state = prepare(step.initial, of_params).run(params)
    traced = prepare(step.function, of_params, of_state, of_batch).live()
    found: list[tuple[Any, list[Any]]] = []
    record = None
    for _ in range(trial.steps):
        (params, state, loss), seen = traced.run_recorded(params, state, batch)
        record = record or seen
        found.append((loss, jax.tree.leaves(params)))
    assert record is not None
    return record, found


def compiled(trial: Trial, form: Form, optimiser: Any) -> tuple[str, list[tuple[Any, list[Any]]]]:
    """The steps, compiled and donating."""
    mesh = device_mesh(trial.mesh)
    step = form.step(optimiser, mesh, trial.data, trial.model, trial.microbatches)
    params, batch = placed(trial, form, mesh)
    state = step.init(params)
    text = step.compiled(params, state, batch)
    found: list[tuple[Any, list[Any]]] = []
    for _ in range(trial.steps):
        old = (params, state)
        layouts = jax.tree.map(lambda x: x.sharding, old)
        params, state, loss = step(params, state, batch)
        if not found:  # later ones were read on the host, which keeps the memory of a CPU's array for the reader
            assert all(x.is_deleted() for x in jax.tree.leaves(old)), f"{form} on {trial}: a buffer was not donated"
        assert jax.tree.map(lambda x: x.sharding, (params, state)) == layouts, f"{form} on {trial}: a layout changed"
        check_replicas((params, state))
        found.append((np.asarray(loss), [np.asarray(x) for x in jax.tree.leaves(params)]))
    return text, found


def placed(trial: Trial, form: Form, mesh: Any) -> tuple[Any, Any]:
    """Parameters and batch on devices, in copies of their own."""
    specs = form.specs(len(trial.sizes) - 1, trial.data, trial.model)

    def put(x: np.ndarray, s: P) -> Any:
        return jax.device_put(np.copy(x), NamedSharding(mesh, s))

    result: tuple[Any, Any] = jax.tree.map(put, trial.arrays(form), specs)
    return result


def check_replicas(tree: Any) -> None:
    """Devices that hold the same part of an array hold the same bits.

    Raises:
        AssertionError: if not.
    """
    for leaf in jax.tree.leaves(tree):
        first: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            bits = np.asarray(shard.data).tobytes()
            assert first.setdefault(str(shard.index), bits) == bits, f"replicas of {leaf.sharding} differ"
