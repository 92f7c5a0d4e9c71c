"""The law of training reports wrong steps: each is planted beside a right one, and passes where nothing is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl.accumulation import accumulated, accumulating, mean_of
from shardproof.impl.collectives import cast_varying
from shardproof.impl.losses import data_parallel
from shardproof.impl.optimisers import Adapting, updated
from shardproof.impl.training import TrainingStep
from shardproof.impl.zero import ZeroStep
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.training import Trial
from shardproof.properties.laws.training import OPTIMISERS, check_steps
from shardproof.properties.programs.training import FORMS, Axes, Form, of_examples, said_of, sum_and_count

LOSS = sum_and_count(data_parallel)
ONE = Trial(MeshCase(("x",), (1,)), ("x",), (), (3, 2), examples=4)
TWO = replace(ONE, mesh=MeshCase(("x",), (2,)))
FOUR = Trial(MeshCase(("x", "y"), (2, 2)), ("x", "y"), (), (3, 2), examples=8)


def masked(name: str, step: Callable[..., Any]) -> Form:
    """A form of data parallelism with a mask; `step` makes a step of `(optimiser, mesh, data, microbatches)`."""

    def made(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> Any:
        return step(optimiser, mesh, data, microbatches)

    return Form(name, of_examples, made, masked=True)


def accumulating_step(
    kind: type[TrainingStep], loss: Callable[..., Any], optimiser: Any, mesh: Any, data: Axes, microbatches: int
) -> TrainingStep:
    """A step that accumulates a loss of sums and counts."""
    return kind(accumulating(loss, microbatches=microbatches), optimiser, mesh=mesh, data=data)


class ReducedInEveryMicrobatch(TrainingStep):
    """Weights are typed the same on all devices, so that JAX adds up their gradient inside of the scan."""

    parts = 1

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """A step whose values are right."""

        def local(params: Any, batch: Any) -> Any:
            loss = partial(LOSS, data=self.data, model=())
            total, count, gradients = accumulated(loss, params, batch, microbatches=self.parts)
            total, count = lax.psum((total, count), self.data)
            return mean_of(total, count), jax.tree.map(lambda g: mean_of(g, count), gradients)

        mapped: Any = jax.shard_map(local, mesh=self.mesh, in_specs=(P(), P(self.data)), out_specs=P())
        value, gradients = mapped(params, batch)
        updates, state = self.optimiser.update(gradients, state, params)
        return updated(params, updates), state, value


def reduced_in_every_microbatch(optimiser: Any, mesh: Any, data: Axes, microbatches: int) -> TrainingStep:
    """A step of that kind."""
    step = ReducedInEveryMicrobatch(LOSS, optimiser, mesh=mesh, data=data)
    step.parts = microbatches
    return step


class StaleWeights(TrainingStep):
    """Its gradient is that at the weights before the last step, its loss that at the new ones."""

    def init_traceable(self, params: Any) -> Any:
        """The optimiser's state, and the weights before the last step."""
        return self.optimiser.init(params), params

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """The gradient of the old weights moves the new ones."""
        (kept, old), where = state, {"mesh": self.mesh, "data": self.data, "model": ()}
        updates, kept = self.optimiser.update(jax.grad(self.loss)(old, batch, **where), kept, params)
        return updated(params, updates), (kept, params), self.loss(params, batch, **where)


class UpdatedBetween(TrainingStep):
    """It updates the weights after every half of the examples, not after all of them."""

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """A step for each half."""
        halves = [jax.tree.map(lambda x, i=i: x.reshape(-1, 2, *x.shape[1:])[:, i], batch) for i in (0, 1)]
        value = self.loss(params, batch, mesh=self.mesh, data=self.data, model=())
        for half in halves:
            params, state, _ = super().function(params, state, half)
        return params, state, value


def mean_of_means(weights: Any, part: Any, **axes: Any) -> tuple[Any, Any]:
    """Every microbatch's mean counts as one, however many examples it has."""
    total, count = LOSS(weights, part, **axes)
    return mean_of(total, count), lax.pcast(jnp.ones((), jnp.int32), axes["data"], to="varying")


def without_the_last(optimiser: Any, mesh: Any, data: Axes, microbatches: int) -> TrainingStep:
    """The last microbatch of every device is left out, of the sum and of the count."""
    right = accumulating(LOSS, microbatches=microbatches)

    def loss(params: Any, batch: Any, *, mesh: Any, data: Axes, model: Axes) -> Any:
        inputs, targets, mask = batch
        devices = MeshCase(mesh.axis_names, tuple(mesh.shape.values())).axis_size(data)
        parts = mask.reshape(devices, microbatches, -1).at[:, -1].set(False)
        return right(params, (inputs, targets, parts.reshape(mask.shape)), mesh=mesh, data=data, model=model)

    return TrainingStep(loss, optimiser, mesh=mesh, data=data)


class ByHand(TrainingStep):
    """Data parallelism with collectives of its own; it is right with the axes and the moments that it has by default.

    Arguments:
        reduced: the axes over which gradients are added up, of those over which examples are shared.
        moments: `(unreduced gradient, reduced gradient, data)` to what Adam's second moment is taken of, squared.
    """

    def __init__(
        self,
        optimiser: Any,
        mesh: Any,
        data: Axes,
        microbatches: int,
        *,
        reduced: Callable[[Axes], Axes] = lambda data: data,
        moments: Callable[[Any, Any, Axes], Any] = lambda own, whole, data: whole**2,
    ) -> None:
        super().__init__(LOSS, optimiser, mesh=mesh, data=data)
        self.axes, self.reduced, self.moments = data, reduced(data), moments

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """The step, traceable."""
        mapped: Any = jax.shard_map(
            self.local,
            mesh=self.mesh,
            in_specs=(P(), P(), P(self.axes)),
            out_specs=P(),
            check_vma=self.reduced == self.axes,  # else JAX refuses it by the types alone
        )
        return mapped(params, state, batch)

    def local(self, params: Any, state: Any, batch: Any) -> Any:
        """The step as a device computes it."""
        weights = cast_varying(params, self.axes) if self.reduced == self.axes else params
        loss = partial(LOSS, data=self.axes, model=())
        (total, count), gradients = jax.value_and_grad(loss, has_aux=True)(weights, batch)
        total, count = lax.psum((total, count), self.axes)
        whole = jax.tree.map(lambda g: mean_of(lax.psum(g, self.reduced), count), gradients)
        updates, new = self.optimiser.update(whole, state, params)
        if isinstance(new, Adapting):
            own = jax.tree.map(lambda g: mean_of(g, count), gradients)
            squares = jax.tree.map(lambda a, b: self.moments(a, b, self.axes), own, whole)
            second = jax.tree.map(lambda v, s: 0.999 * v + 0.001 * s, state.second, squares)
            t = new.steps.astype(total.dtype)
            updates = jax.tree.map(
                lambda m, v: -0.01 * m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), new.first, second
            )
            new = new._replace(second=second)
        return updated(params, updates), new, mean_of(total, count)


def of_unreduced(own: Any, whole: Any, data: Axes) -> Any:
    """The squares of the devices' own gradients, added up: not that of their sum."""
    return lax.psum(own**2, data)


class OfTheNextShard(ZeroStep):
    """Every device updates its shard with the state of the one before."""

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """The step of a state that is one shard off."""
        parts = self.mesh.shape[self.data[0]]
        state = jax.tree.map(lambda s: jnp.roll(s, s.size // parts) if s.ndim else s, state)
        return super().function(params, state, batch)


class StateWhereverItComes(ZeroStep):
    """It lays its state out as a compiler returns it: where axes are explicit and automatic, whole on every device."""

    def init(self, params: Any) -> Any:
        """A state of the right values."""
        return jax.jit(self.init_traceable)(params)


class NotDonating(TrainingStep):
    """It steps from copies, so that both the old and the new arrays stay."""

    def __call__(self, params: Any, state: Any, batch: Any) -> Any:
        """A step that leaves its arguments."""
        params, state = jax.tree.map(jnp.copy, (params, state))
        return super().__call__(params, state, batch)


class GathersParameters(TrainingStep):
    """What comes sharded is returned on every device."""

    def __call__(self, params: Any, state: Any, batch: Any) -> Any:
        """A step whose parameters come back whole."""
        params, state, loss = super().__call__(params, state, batch)
        return jax.device_put(params, NamedSharding(self.mesh, P())), state, loss


class UsesItsArraysAgain(TrainingStep):
    """It takes a step to warm up, and then one from the arrays that the first was given."""

    def __call__(self, params: Any, state: Any, batch: Any) -> Any:
        """Two steps from the same arrays."""
        super().__call__(params, state, batch)
        return super().__call__(params, state, batch)


def of_kind(kind: type[TrainingStep], name: str) -> Form:
    """A form of FORMS whose step is of another kind."""
    right = FORMS[name]

    def step(*arguments: Any) -> TrainingStep:
        made = right.step(*arguments)
        assert isinstance(made, TrainingStep)
        return kind(made.loss, made.optimiser, mesh=made.mesh, data=made.data, model=made.model)

    return replace(right, name=f"{kind.__name__}_{name}", step=step)


@dataclass(frozen=True)
class Planted:
    """A wrong form, the right one beside it, a trial that shows it, and one in which both are the same.

    Arguments:
        match: what is said of it.
        harmless: the trial in which the wrong form gives the right values, interpreted, where nothing is donated.
        engine: on which the trial is run.
        raises: what reports it.
    """

    wrong: Form
    right: Form
    trial: Trial
    optimiser: str
    match: str
    harmless: Trial
    engine: str = "simulate"
    raises: type[Exception] = AssertionError


ONCE = said_of("accumulated")
STEP = partial(accumulating_step, TrainingStep)
PLANTED = (
    *(
        Planted(
            replace(masked("reduced_in_every_microbatch", reduced_in_every_microbatch), cost=ONCE),
            FORMS["accumulated"],
            replace(TWO, examples=8, microbatches=2),
            "sgd",
            r"^reduced_in_every_microbatch on .*: expected 4 all_reduces of 76 bytes in all \(formula\)",
            TWO,
            engine,
        )
        for engine in ("simulate", "xla")
    ),
    Planted(
        masked("stale_weights", partial(accumulating_step, StaleWeights, LOSS)),
        FORMS["accumulated"],
        replace(TWO, microbatches=2, steps=2),
        "sgd",
        r"^stale_weights on .*step 2: parameter 0 is off by",
        replace(TWO, microbatches=2),
    ),
    Planted(
        masked("updated_between", partial(accumulating_step, UpdatedBetween, LOSS)),
        FORMS["accumulated"],
        ONE,
        "sgd",
        r"^updated_between on .*step 1: parameter 0 is off by",
        replace(ONE, examples=2, seed=3),  # the mask leaves one of the two
    ),
    Planted(
        masked("last_microbatch_dropped", without_the_last),
        FORMS["accumulated"],
        replace(TWO, examples=8, microbatches=2),
        "momentum",
        r"^last_microbatch_dropped on .*step 1: loss is off by",
        replace(ONE, examples=2, microbatches=2, seed=4),  # the mask leaves the first of the two
    ),
    Planted(
        masked("mean_of_means", partial(STEP, mean_of_means)),
        FORMS["accumulated"],
        replace(ONE, examples=6, microbatches=2, seed=2),
        "sgd",
        r"^mean_of_means on .*step 1: loss is off by",
        replace(ONE, examples=6, microbatches=2, seed=4),  # both count two
    ),
    Planted(
        masked("one_of_two_axes", partial(ByHand, reduced=lambda data: data[:1])),
        masked("both_axes", ByHand),
        FOUR,
        "sgd",
        r"^one_of_two_axes on .*, simulate, step 1: parameter 0 is off by",
        TWO,
    ),
    Planted(
        masked("one_of_two_axes", partial(ByHand, reduced=lambda data: data[:1])),
        masked("both_axes", ByHand),
        FOUR,
        "sgd",
        r"^replicas of .* differ",
        TWO,
        "xla",
    ),
    Planted(
        masked("second_moment_of_unreduced", partial(ByHand, moments=of_unreduced)),
        masked("second_moment", ByHand),
        replace(TWO, steps=2),
        "adam",
        r"^second_moment_of_unreduced on .*step 1: parameter 0 is off by",
        replace(ONE, steps=2),
    ),
    Planted(
        masked("state_of_next_shard", lambda o, m, d, n: OfTheNextShard(LOSS, o, mesh=m, data=d, microbatches=n)),
        FORMS["zero"],
        replace(TWO, steps=2),
        "momentum",
        r"^state_of_next_shard on .*step 2: parameter 0 is off by",
        TWO,
    ),
    Planted(
        replace(
            masked(
                "state_wherever_it_comes",
                lambda o, m, d, n: StateWhereverItComes(LOSS, o, mesh=m, data=d, microbatches=n),
            ),
            shared=True,
        ),
        FORMS["zero"],
        replace(TWO, mesh=MeshCase(("x", "y"), (2, 1), axis_types=("auto", "explicit")), data=("x", "y")),
        "adam",
        r"^state_wherever_it_comes on .*: of 6 numbers of the optimiser's a device holds 6",
        TWO,
        "xla",
    ),
    Planted(
        of_kind(NotDonating, "data_parallel"),
        FORMS["data_parallel"],
        TWO,
        "adam",
        r"^NotDonating_data_parallel on .*: a buffer was not donated",
        TWO,
        "xla",
    ),
    Planted(
        of_kind(GathersParameters, "fsdp_rows"),
        FORMS["fsdp_rows"],
        replace(TWO, sizes=(2, 4)),
        "sgd",
        r"^GathersParameters_fsdp_rows on .*: a layout changed",
        replace(ONE, sizes=(2, 4)),
        "xla",
    ),
    Planted(
        of_kind(UsesItsArraysAgain, "data_parallel"),
        FORMS["data_parallel"],
        TWO,
        "sgd",
        r"^UsesItsArraysAgain: params\[0\]\[0\]=.*, deleted: .* it was donated to an earlier step",
        TWO,
        "xla",
        ValueError,
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.wrong.name}-{planted.engine}")
def test_planted(planted: Planted) -> None:
    """A wrong step is reported for what is wrong with it; the right one passes, and the wrong one where it is right."""
    optimiser = OPTIMISERS[planted.optimiser]
    check_steps(planted.trial, planted.right, optimiser, planted.engine)
    with pytest.raises(planted.raises, match=planted.match):
        check_steps(planted.trial, planted.wrong, optimiser, planted.engine)
    check_steps(planted.harmless, planted.wrong, optimiser, "simulate")
