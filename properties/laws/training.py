"""The law of training: some steps on a mesh are those of a single device, by the definitions of loss and optimiser."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.communication import KINDS
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.oracles.layout import sharded_axes
from shardproof.oracles.mlp import loss as reference
from shardproof.properties.cases.training import NARROW, Trial
from shardproof.properties.communication.counted import of_compiled, of_record
from shardproof.properties.communication.wording import worded
from shardproof.properties.contracts.mlp_claims import Setting
from shardproof.properties.engines.simulate import Record, prepare
from shardproof.properties.engines.xla import abstract_mesh, device_mesh
from shardproof.properties.laws.communication import WIDER
from shardproof.properties.programs.training import Form
from shardproof.properties.programs.violation import Broken

TOLERANCE = 1e-9
"""Of doubles: how far a number may be off, as a part of the largest, after any steps."""

OPTIMISERS: Mapping[str, tuple[Callable[[], Any], oracle.Optimiser]] = {
    "sgd": (lambda: optimisers.sgd(0.02), oracle.GradientDescent(0.02)),
    "momentum": (lambda: optimisers.sgd(0.02, momentum=0.9), oracle.GradientDescent(0.02, 0.9)),
    "adam": (lambda: optimisers.adam(0.01), oracle.Adam(0.01)),
}
"""By name: the optimiser, and what it means."""


def expected(trial: Trial, form: Form, of: oracle.Optimiser) -> tuple[list[float], list[list[np.ndarray]]]:
    """The losses before every step, and the parameters after it, on a single device: rounded to their dtype."""
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
        leaves = [x.astype(trial.numpy_dtype) for x in leaves]
        after.append(leaves)
    return losses, after


def check_steps(trial: Trial, form: Form, optimiser: tuple[Callable[[], Any], oracle.Optimiser], engine: str) -> None:
    """Losses and parameters are those of a single device, after every step, and what is sent is what the form costs.

    Raises:
        Broken: if not; for a replica that differs, a layout that changed, a buffer that was not donated, or more of a
            shared state on a device than its part.
    """
    make, of = optimiser
    within = 2 * unit_roundoff(trial.numpy_dtype) if trial.dtype in NARROW else TOLERANCE
    with jax.enable_x64(True):
        losses, after = expected(trial, form, of)
        run = simulated if engine == "simulate" else compiled
        evidence, found = run(trial, form, make())
        for step, (loss, leaves) in enumerate(found):
            context = f"{form} on {trial}, {engine}, step {step + 1}"
            close(loss, losses[step], f"{context}: loss", within)
            for i, (leaf, right) in enumerate(zip(leaves, after[step], strict=True)):
                close(leaf, right, f"{context}: parameter {i}", within)
        check_cost(trial, form, evidence)


def check_cost(trial: Trial, form: Form, evidence: Record | str) -> None:
    """A step sends what its form costs: nothing of parameters or their gradients in every microbatch.

    A compiler combines collectives, leaves out those of one device, and may send 16-bit floats as wider ones: of what
    it sends, bytes alone are looked at. Of what it lays out anew it is only seen to send enough.

    Raises:
        Broken: if it sends anything else.
    """
    if form.cost is None:
        return
    counted = of_record(evidence) if isinstance(evidence, Record) else of_compiled(evidence)
    most, cost = form.cost(setting_of(trial, trial.data, trial.model), trial.microbatches), counted.cost
    if cost is None:
        raise Broken("communication", f"{form} on {trial}: what is sent is not known: {counted.unknown}")
    if isinstance(evidence, Record):
        right = cost.counts == most.counts and cost.operand_bytes == most.operand_bytes
    else:
        data, model = (tuple(trial.mesh.longer(axes)) for axes in (trial.data, trial.model))
        least = form.cost(setting_of(trial, data, model), trial.microbatches)
        wider = WIDER.get(trial.dtype, 1)
        enough = all(least.bytes_in(kind) <= cost.bytes_in(kind) for kind in KINDS)
        no_more = all(cost.bytes_in(kind) <= wider * most.bytes_in(kind) for kind in KINDS)
        right = enough and (no_more or laid_out_anew(trial, form))
    if not right:
        raise Broken("communication", f"{form} on {trial}: {worded(cost)}: expected {worded(most)} (formula)")


def laid_out_anew(trial: Trial, form: Form) -> bool:
    """Whether a compiler may lay something out anew: an array that is sharded over explicit and automatic axes.

    See `shardproof.properties.laws.communication.laid_out_by_jax`.
    """
    specs = jax.tree.leaves(form.specs(len(trial.sizes) - 1, trial.data, trial.model))
    return any(len({trial.mesh.types[name] for name in sharded_axes(spec)}) > 1 for spec in specs)


def setting_of(trial: Trial, data: tuple[str, ...], model: tuple[str, ...]) -> Setting:
    """What a form's formula is in, with gradients of parameters alone."""
    bits = 8 * trial.numpy_dtype.itemsize
    return Setting(trial.mesh, data, model, trial.examples, trial.sizes, bits, max(bits, 32), of_inputs=False)


def close(found: Any, right: Any, what: str, within: float = TOLERANCE) -> None:
    """Equal to such a part of the largest, by default to nine digits.

    Raises:
        Broken: if not.
    """
    found, right = (np.asarray(x).astype(np.float64) for x in (found, right))
    off = np.abs(found - right)
    most = within * max(1.0, float(np.max(np.abs(right), initial=0)))
    wrong = np.argwhere(~(off <= most))  # NaN is
    if len(wrong):
        where = f", in {len(wrong)} of {off.size} numbers, the first at {wrong[0].tolist()}" if off.ndim else ""
        raise Broken("values", f"{what} is off by {off.max():.3g}, more than {most:.3g}{where}")


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
    of_state = jax.eval_shape(step.init_traceable, of_params)
    params, batch = arrays
    state = prepare(step.init_traceable, of_params).run(params)
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
    text = str(step.lower(params, state, batch).compile().as_text())
    found: list[tuple[Any, list[Any]]] = []
    for _ in range(trial.steps):
        old = (params, state)
        layouts = jax.tree.map(lambda x: x.sharding, old)
        params, state, loss = step(params, state, batch)
        # later ones were read on the host, which keeps the memory of a CPU's array for the reader
        if not found and not all(x.is_deleted() for x in jax.tree.leaves(old)):
            raise Broken("memory", f"{form} on {trial}: a buffer was not donated")
        if jax.tree.map(lambda x: x.sharding, (params, state)) != layouts:
            raise Broken("type", f"{form} on {trial}: a layout changed")
        check_replicas((params, state))
        check_shared(trial, form, state)
        found.append((np.asarray(loss), [np.asarray(x) for x in jax.tree.leaves(params)]))
    return text, found


def check_shared(trial: Trial, form: Form, state: Any) -> None:
    """Where the optimiser's state is shared, each participant holds its part of every array, and no more.

    Raises:
        Broken: if not.
    """
    if not form.shared:
        return
    p = trial.mesh.axis_size(trial.data)
    for leaf in jax.tree.leaves(state):
        held = math.prod(leaf.sharding.shard_shape(leaf.shape))
        if leaf.ndim and held * p > leaf.size:
            raise Broken(
                "memory", f"{form} on {trial}: of {leaf.size} numbers of the optimiser's a device holds {held}"
            )


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
        Broken: if not.
    """
    for leaf in jax.tree.leaves(tree):
        first: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            bits = np.asarray(shard.data).tobytes()
            if first.setdefault(str(shard.index), bits) != bits:
                raise Broken("replicas", f"replicas of {leaf.sharding} differ", of="replica")
