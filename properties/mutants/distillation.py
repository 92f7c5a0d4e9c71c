"""Planted bugs of distillation on two meshes, each with a lesson that shows it, and one in which it does no harm."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl.distillation import Distillation, transfer
from shardproof.impl.losses import data_parallel
from shardproof.impl.training import Step, TrainingStep
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.distilling import Lesson
from shardproof.properties.laws.distillation import Axes, Method
from shardproof.properties.programs.training import of_loss


class UpdatesTheTeacher(Distillation):
    """The teacher's parameters decay with every step, in the list that they came in."""

    def __call__(self, teacher_params: Any, params: Any, state: Any, inputs: Any) -> Any:
        """A step of the student, and of the teacher."""
        stepped = super().__call__(teacher_params, params, state, inputs)
        teacher_params[:] = jax.tree.map(lambda x: 0.999 * x, teacher_params)
        return stepped


class DonatesTheTeacher(Distillation):
    """The teacher's parameters are gone after the first step that takes them."""

    def __call__(self, teacher_params: Any, params: Any, state: Any, inputs: Any) -> Any:
        """A step of the student, after which the teacher can teach no more."""
        stepped = super().__call__(teacher_params, params, state, inputs)
        jax.tree.map(lambda x: x.delete(), teacher_params)
        return stepped


class GathersTheTeacher(Distillation):
    """The teacher's parameters are on all of its devices from the first step on."""

    def __call__(self, teacher_params: Any, params: Any, state: Any, inputs: Any) -> Any:
        """A step with the same values."""
        stepped = super().__call__(teacher_params, params, state, inputs)
        everywhere = NamedSharding(self.teacher_inputs.mesh, P())
        teacher_params[:] = jax.tree.map(lambda x: jax.device_put(x, everywhere), teacher_params)
        return stepped


class SplitByDeviceNumber(Distillation):
    """The first part of the logits goes to the device with the lowest number, whatever the order of the mesh."""

    def logits(self, teacher_params: Any, inputs: Any) -> Any:
        """Parts of the right sizes, of which some are on each other's devices."""
        whole = super().logits(teacher_params, inputs)
        held: dict[Any, Any] = dict(whole.sharding.devices_indices_map(whole.shape))
        wanted = sorted(held, key=lambda device: device.id)
        owner = {str(part.index): part.data for part in whole.addressable_shards}
        parts = [owner[str(index)] for index in held.values()]
        moved = [jax.device_put(part, device) for part, device in zip(parts, wanted, strict=True)]
        return jax.make_array_from_single_device_arrays(whole.shape, whole.sharding, moved)


class WholeLogits(Distillation):
    """Every device of the student has all logits: the step, which would send the rest, cuts out its own."""

    def logits(self, teacher_params: Any, inputs: Any) -> Any:
        """The right values."""
        return transfer(super().logits(teacher_params, inputs), NamedSharding(self.of_logits.mesh, P()))


class LogitsOfTheBatchBefore(Distillation):
    """From the second step on, the student learns what the teacher says of the inputs before."""

    before: Any = None

    def logits(self, teacher_params: Any, inputs: Any) -> Any:
        """Those of the first batch twice."""
        asked, self.before = inputs if self.before is None else self.before, inputs
        return super().logits(teacher_params, asked)


class ByWayOfTheHost(Distillation):
    """The logits are NumPy's in between."""

    def logits(self, teacher_params: Any, inputs: Any) -> Any:
        """The right values, laid out as they should be."""
        return jax.device_put(np.asarray(super().logits(teacher_params, inputs)), self.of_logits)


class ReadsTheLoss(Distillation):
    """Every step looks at its loss, as for a log."""

    def __call__(self, teacher_params: Any, params: Any, state: Any, inputs: Any) -> Any:
        """The right step, done when it returns."""
        params, state, loss = super().__call__(teacher_params, params, state, inputs)
        assert float(loss) >= 0
        return params, state, loss


class Copies(Distillation):
    """The student's parameters are copied before a step that would donate them."""

    def __call__(self, teacher_params: Any, params: Any, state: Any, inputs: Any) -> Any:
        """The right values, from memory of their own."""
        params, state = jax.tree.map(jnp.copy, (params, state))
        return super().__call__(teacher_params, params, state, inputs)


class OwnExamplesAlone(TrainingStep):
    """Every device steps along the gradient of its own examples; the loss is that of all."""

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """A step in which replicas part."""
        axes = self.data
        value = self.loss(params, batch, mesh=self.mesh, data=axes, model=())

        def local(params: Any, batch: Any) -> Any:
            def loss(weights: Any) -> Any:
                x, targets = batch
                for w, b in weights[:-1]:
                    x = jax.nn.relu(x @ w + b)
                w, b = weights[-1]
                return jnp.sum(jnp.square(x @ w + b - targets)) / len(targets)

            return jax.grad(loss)(jax.tree.map(lambda x: lax.pcast(x, axes, to="varying"), params))

        mapped: Any = jax.shard_map(local, mesh=self.mesh, in_specs=(P(), P(axes)), out_specs=P(), check_vma=False)
        updates, state = self.optimiser.update(mapped(params, batch), state, params)
        return jax.tree.map(jnp.add, params, updates), state, value


def on_its_own(optimiser: Any, mesh: Any, data: Axes) -> Step:
    """A student whose devices do not add up their gradients."""
    return OwnExamplesAlone(data_parallel, optimiser, mesh=mesh, data=data)


def over_the_first_axis(optimiser: Any, mesh: Any, data: Axes) -> Step:
    """A right step of another layout: what is sharded over the first of the axes, others compute again."""
    return of_loss(data_parallel).step(optimiser, mesh, data[:1], (), 1)


HALVES = Lesson(
    MeshCase(("tp",), (2,)), ("tp",), MeshCase(("dp",), (2,), (3, 2)), ("dp",), (4, 2, 2), (4, 2), examples=4
)
UNEVEN = Lesson(
    MeshCase(("dp",), (2,), (1, 3)),
    ("dp",),
    MeshCase(("dp", "tp"), (3, 2), (7, 2, 6, 0, 5, 4)),
    ("tp", "dp"),
    (2, 4),
    (2, 3, 4),
    examples=6,
)
ALONE = Lesson(MeshCase(("tp",), (1,)), ("tp",), MeshCase(("dp",), (1,), (1,)), ("dp",), (2, 2), (2, 2), examples=2)
"""One device teaches, one learns."""

IN_ORDER = Lesson(
    MeshCase(("tp",), (2,)), ("tp",), MeshCase(("dp",), (2,), (2, 3)), ("dp",), (4, 2, 2), (4, 2), examples=4
)


@dataclass(frozen=True)
class Planted:
    """A wrong way to learn.

    Arguments:
        method: what is wrong.
        match: what is said of it.
        harmless: a lesson in which it does what it should, if there is one.
        waits: whether the host waits for the teacher.
    """

    method: Method
    match: str
    harmless: Lesson | None = None
    waits: bool = False


WAITED = "the host waited for the teacher: taught"
WRONG = {
    "updates_the_teacher": Planted(Method(distillation=UpdatesTheTeacher), r"parameter \d of the teacher changed"),
    "donates_the_teacher": Planted(Method(distillation=DonatesTheTeacher), r"^Distillation: teacher_params.*, deleted"),
    "gathers_the_teacher": Planted(
        Method(distillation=GathersTheTeacher), "of the teacher is laid out in another way", ALONE
    ),
    "split_by_device_number": Planted(
        Method(distillation=SplitByDeviceNumber), r"step 1: logits on device \d is off by", IN_ORDER
    ),
    "whole_logits": Planted(
        Method(distillation=WholeLogits), r"step 1: logits on device \d is \(\d, \d\): expected \(\d, \d\)", ALONE
    ),
    "logits_of_the_batch_before": Planted(
        Method(distillation=LogitsOfTheBatchBefore), r"step 2: logits on device \d is off by"
    ),
    "by_way_of_the_host": Planted(
        Method(distillation=ByWayOfTheHost), "the host waited for the teacher: taught", waits=True
    ),
    "reads_the_loss": Planted(Method(distillation=ReadsTheLoss), "the host waited for the teacher: taught", waits=True),
    "copies": Planted(Method(distillation=Copies), "a buffer of the student was not donated"),
    "own_examples_alone": Planted(Method(on_its_own), r"^replicas of .* differ|step 2: loss is off by", ALONE),
}
"""By name, what is wrong."""

ODD = {"over_the_first_axis": Method(over_the_first_axis)}
"""Right, although a student's devices learn from the same examples where they need not."""
