"""Distillation on two meshes by matching logits: a teacher computes them, a student elsewhere learns to give them.

The example's loss is the squared error of logits (Ba and Caruana 2014; the high-temperature limit of Hinton et al.
2015, section 2.1); a softened cross-entropy is a loss for `student`.

The meshes have no device in common. Nothing waits on the host: while the student still learns from one batch, the
teacher is given the next. That takes more than `jax.device_put` for the logits: where the student's devices are to hold
other parts of them than the teacher's do, JAX up to 0.12 copies them by way of the host, and waits there until the
teacher is done. `transfer` cuts them on the teacher's devices into the parts that the student's are to have.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Shaped

from shardproof.impl.arguments import AxisName, as_axes
from shardproof.impl.losses import Parallelisation
from shardproof.impl.model import Params
from shardproof.impl.optimisers import Tree
from shardproof.impl.placing import place
from shardproof.impl.training import Step, Stepped, check_placed, numbers, shown

Indices: TypeAlias = tuple[tuple[int, int], ...]
"""Where a part begins and ends in every dimension."""


def predictions(
    parallelisation: Parallelisation,
    params: Params,
    inputs: Float[Array, "b d_first"],
    *,
    mesh: Mesh | AbstractMesh,
    data: AxisName,
    model: AxisName,
) -> Float[Array, "b d_last"]:
    """The outputs of a model, global arrays: laid out as the parallelisation has its targets, in the inputs' dtype.

    Arguments and errors are those of the parallelisation's loss, without targets.
    """
    over = as_axes(data), as_axes(model)
    parallelisation.check("predictions", params, inputs, mesh=mesh, data=over[0], model=over[1])
    layers, (of_inputs, of_outputs) = parallelisation.layout.specs(len(params), data=over[0], model=over[1])

    def local(params: Any, x: Array) -> Array:
        return parallelisation.outputs(params, x, *over).astype(x.dtype)

    specs = (layers, of_inputs)
    mapped: Any = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=of_outputs)
    outputs: Array = mapped(*place((params, inputs), specs, mesh))
    return outputs


class Distillation:
    """A step `(teacher_params, params, state, inputs) -> (params, state, loss)`, of which nothing waits on the host.

    Parameters and state are the student's, and donated; the teacher's parameters stay as they are. The student's step
    gets `(inputs, logits)` for a batch.

    Arguments:
        teacher: `(params, inputs)` to logits `[B, C]`, arrays on the teacher's devices.
        student: the student's step, as of `shardproof.impl.training`.
        teacher_inputs: where the teacher takes its inputs; on no device of the student.
        student_inputs: where the student takes its inputs, on its mesh.
        logits: where the student takes the teacher's logits, on its mesh.

    Example:
        teacher = partial(predictions, tensor_parallel, mesh=inference, data=(), model="tp")
        student = TrainingStep(data_parallel, adam(1e-3), mesh=train, data="dp")
        distil = Distillation(
            teacher, student, teacher_inputs=NamedSharding(inference, P(None, "tp")),
            student_inputs=NamedSharding(train, P("dp")), logits=NamedSharding(train, P("dp")),
        )
        for inputs in batches:
            params, state, loss = distil(teacher_params, params, state, inputs)
    """

    def __init__(
        self,
        teacher: Callable[[Tree, Array], Array],
        student: Step,
        *,
        teacher_inputs: NamedSharding,
        student_inputs: NamedSharding,
        logits: NamedSharding,
    ) -> None:
        self.student = student
        self.teacher_inputs, self.student_inputs, self.of_logits = teacher_inputs, student_inputs, logits
        self._teacher = jax.jit(teacher)
        for argument, sharding in (("student_inputs", student_inputs), ("logits", logits)):
            if sharding.mesh != student.mesh:
                raise ValueError(
                    f"Distillation: {argument}={sharding}: expected it on the student's mesh {shown(student.mesh)}"
                )
        common = teacher_inputs.device_set & logits.device_set
        if common:
            raise ValueError(
                f"Distillation: teacher_inputs={teacher_inputs}: expected none of the devices {numbers(common)} of the "
                f"student's mesh {shown(student.mesh)}"
            )

    def logits(self, teacher_params: Tree, inputs: Shaped[Array | np.ndarray, "b d"]) -> Shaped[Array, "b c"]:
        """The teacher's logits, on the student's devices."""
        check_placed("Distillation", "teacher_params", teacher_params, self.teacher_inputs.mesh)
        return transfer(self._teacher(teacher_params, transfer(inputs, self.teacher_inputs)), self.of_logits)

    def __call__(
        self, teacher_params: Tree, params: Tree, state: Tree, inputs: Shaped[Array | np.ndarray, "b d"]
    ) -> Stepped:
        """New parameters and state of the student, and its loss before the step; all arrays are on their meshes."""
        logits = self.logits(teacher_params, inputs)
        return self.student(params, state, (transfer(inputs, self.student_inputs), logits))


def transfer(x: Shaped[Array | np.ndarray, "..."], sharding: NamedSharding) -> Shaped[Array, "..."]:
    """`x`, laid out by `sharding` on any devices, without waiting for it on the host.

    If a part that is wanted is nowhere, `x` is replicated on its own devices, sliced there, and the slices are sent.
    All devices must be this process's. `x` is laid out by a NamedSharding, on one device alone, or the host's own.
    """
    if not isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    here = x.sharding.devices_indices_map(x.shape)
    there = {d: _bounds(i, x.shape) for d, i in sharding.devices_indices_map(x.shape).items()}
    parts = tuple(dict.fromkeys(there.values()))
    if set(parts) <= {_bounds(i, x.shape) for i in here.values()}:
        return jax.device_put(x, sharding)
    cut: Sequence[Array] = _cutter(x.sharding)(x, parts)
    held: Mapping[Indices, list[Array]] = {
        part: [shard.data for shard in piece.addressable_shards] for part, piece in zip(parts, cut, strict=True)
    }
    arrays = [jax.device_put(held[part][i % len(here)], device) for i, (device, part) in enumerate(there.items())]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, arrays)


def _bounds(index: Any, shape: tuple[int, ...]) -> Indices:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


@functools.cache
def _cutter(sharding: Any) -> Any:
    """A jitted function of an array and of parts to these parts, on every device of the array."""
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None

    @functools.partial(jax.jit, static_argnums=1)
    def cut(x: Array, parts: tuple[Indices, ...]) -> list[Array]:
        whole = x if mesh is None else _everywhere(x, mesh)
        pieces = [whole[tuple(slice(*bounds) for bounds in part)] for part in parts]
        return pieces if mesh is None else [_everywhere(piece, mesh) for piece in pieces]

    return cut


def _everywhere(x: Array, mesh: Mesh | AbstractMesh) -> Array:
    replicated = NamedSharding(mesh, P())
    if AxisType.Explicit in mesh.axis_types:
        x = jax.reshard(x, replicated)
    return jax.lax.with_sharding_constraint(x, replicated)
