"""What the loss of a multilayer perceptron costs in communication, under every parallelisation.

Sizes are B examples and D_0 to D_n; X are the axes of `data`, Y those of `model`, of x and y devices. `bits` are those
of an element of the parameters, which are gathered as they are; `sum_bits` those of what they are added up in, in which
sums travel. Bytes are those of one device's operands (see `oracles.communication`).

Each formula is that of the loss, or (`backward`) of its gradients alone: that of every parameter and, if wanted, of the
inputs. What the gradients are computed from is sent again, all of it but the sum of the loss itself. Then come the
transposes: an all-gather's is a reduce-scatter of as much, a reduce-scatter's an all-gather; and what is the same on
several devices has the sum of all their gradients, in an all-reduce. Weights that are rematerialised are gathered once
more, wherever the gradient of what they are multiplied by is wanted. (Rajbhandari et al. 2020, section 7: 2 Psi of data
parallelism is one all-reduce of a gradient of Psi numbers; 3 Psi of stage 3 are two all-gathers and a reduce-scatter.)
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shardproof.oracles.communication import NOTHING, Cost, built_in, summed_replicas
from shardproof.oracles.mesh import MeshCase

Axes = tuple[str, ...]

Parts = Callable[[int, int], Cost]
"""What the weights of a layer cost, or their gradient, by D_in and D_out."""


@dataclass(frozen=True)
class Setting:
    """What the formulas are in.

    Arguments:
        mesh: the mesh.
        data: the axes of X, which may be none.
        model: the axes of Y, likewise.
        examples: B.
        sizes: D_0 to D_n.
        bits: of an element of the parameters.
        sum_bits: of an element of the accumulator.
        of_inputs: whether the gradient of the inputs is wanted as well.
    """

    mesh: MeshCase
    data: Axes
    model: Axes
    examples: int
    sizes: Sequence[int]
    bits: int = 32
    sum_bits: int = 32
    of_inputs: bool = True

    @property
    def layers(self) -> Iterator[tuple[int, int, bool]]:
        """Of every layer D_in and D_out, and whether a gradient of what goes into it is wanted."""
        for at, (d_in, d_out) in enumerate(itertools.pairwise(self.sizes)):
            yield d_in, d_out, at > 0 or self.of_inputs

    def over(self, axes: Axes) -> int:
        """How many devices these axes connect."""
        return self.mesh.axis_size(axes)

    def gather(self, n: int, axes: Axes) -> Cost:
        """An all-gather of n elements of a parameter on a device."""
        return built_in("all_gather", n, bits=self.bits) if axes else NOTHING

    def gather_sums(self, n: int, axes: Axes) -> Cost:
        """An all-gather of n elements of the accumulator on a device."""
        return built_in("all_gather", n, bits=self.sum_bits) if axes else NOTHING

    def scatter(self, n: int, axes: Axes) -> Cost:
        """A reduce-scatter of n elements on a device."""
        return built_in("reduce_scatter", n, bits=self.sum_bits) if axes else NOTHING

    def reduce(self, n: int, axes: Axes) -> Cost:
        """An all-reduce of n elements."""
        return summed_replicas(n, bits=self.sum_bits) if axes else NOTHING

    @property
    def loss(self) -> Cost:
        """The sum of all devices' parts of the loss."""
        return self.reduce(1, (*self.data, *self.model))


def one_device(at: Setting, *, backward: bool = False) -> Cost:
    """Nothing: every device has all."""
    return NOTHING


def data_parallel(at: Setting, *, backward: bool = False) -> Cost:
    """The sum of the loss; backward an all-reduce of the gradient of every array: of as many bytes as all have."""
    every = (*at.data, *at.model)
    if not backward:
        return at.loss
    return _total(at.reduce(d_in * d_out, every) + at.reduce(d_out, every) for d_in, d_out, _ in at.layers)


def fsdp_rows(at: Setting, *, backward: bool = False, remat: bool = False) -> Cost:
    """Weights `[D_in_XY, D_out]` are gathered over X and Y, and gradients scattered; biases are `[D_out_Y]`."""
    every = (*at.data, *at.model)

    def weights(d_in: int, d_out: int) -> Cost:
        return at.gather(d_in * d_out // at.over(every), every)

    def gradients(d_in: int, d_out: int) -> Cost:
        return at.scatter(d_in * d_out, every)

    return _fully_sharded(at, weights, gradients, backward=backward, remat=remat)


def fsdp_2d(at: Setting, *, backward: bool = False, remat: bool = False) -> Cost:
    """Weights `[D_in_X, D_out_Y]` are gathered over Y, then over X, and gradients scattered the other way round."""

    def weights(d_in: int, d_out: int) -> Cost:
        of_rows = d_in // at.over(at.data) * d_out
        return at.gather(of_rows // at.over(at.model), at.model) + at.gather(of_rows, at.data)

    def gradients(d_in: int, d_out: int) -> Cost:
        return at.scatter(d_in * d_out, at.data) + at.scatter(d_in // at.over(at.data) * d_out, at.model)

    return _fully_sharded(at, weights, gradients, backward=backward, remat=remat)


def tensor_parallel(at: Setting, *, backward: bool = False) -> Cost:
    """Products `[B_X, D_out]` are scattered over Y, as sums; backward their cotangents are gathered, `[B_X, D_out_Y]`.

    Parameters, `[D_in_Y, D_out]` and `[D_out_Y]`, are the same along X: their gradients are added up there.
    """
    cost = NOTHING if backward else at.loss
    for d_in, d_out, _ in at.layers:
        cost += _products(at, d_out, backward)
        if backward:
            cost += at.reduce(d_in // at.over(at.model) * d_out, at.data)
            cost += at.reduce(d_out // at.over(at.model), at.data)
    return cost


def fsdp_tensor_parallel(at: Setting, *, backward: bool = False, remat: bool = False) -> Cost:
    """As tensor parallelism, with weights `[D_in_YX, D_out]`, gathered over X, and their gradients scattered there."""
    cost = NOTHING if backward else at.loss
    for d_in, d_out, of_inputs in at.layers:
        rows = d_in // at.over(at.model)
        gathered = at.gather(rows // at.over(at.data) * d_out, at.data)
        cost += gathered + _products(at, d_out, backward)
        if backward:
            cost += gathered * int(remat and of_inputs)
            cost += at.scatter(rows * d_out, at.data) + at.reduce(d_out // at.over(at.model), at.data)
    return cost


def _fully_sharded(at: Setting, weights: Parts, gradients: Parts, *, backward: bool, remat: bool) -> Cost:
    cost = NOTHING if backward else at.loss
    for d_in, d_out, of_inputs in at.layers:
        part = d_out // at.over(at.model)
        cost += weights(d_in, d_out) + at.gather(part, at.model)
        if backward:
            cost += weights(d_in, d_out) * int(remat and of_inputs)
            cost += gradients(d_in, d_out) + at.scatter(d_out, at.model) + at.reduce(part, at.data)
    return cost


def _products(at: Setting, d_out: int, backward: bool) -> Cost:
    """The reduce-scatter of a row-parallel product, and the all-gather of its cotangent."""
    rows = at.examples // at.over(at.data)
    cost = at.scatter(rows * d_out, at.model)
    return cost + at.gather_sums(rows * d_out // at.over(at.model), at.model) if backward else cost


def _total(costs: Iterator[Cost]) -> Cost:
    return sum(costs, NOTHING)


def of_step(formula: Callable[..., Cost], at: Setting) -> Cost:
    """The loss and its gradients together: what the gradients are computed from is sent once, for both.

    Arguments:
        formula: that of the parallelisation.
        at: what it is in.
    """
    gradients = formula(at, backward=True)
    return gradients if formula(at) == NOTHING else at.loss + gradients


REMATERIALISED = "_remat"
"""How the name of what rematerialises ends."""


def formula_of(name: str) -> Callable[..., Cost]:
    """The formula of a parallelisation by its name, of a `Setting` and whether it is `backward`."""
    formulas = (one_device, data_parallel, fsdp_rows, fsdp_2d, tensor_parallel, fsdp_tensor_parallel)
    by_name: dict[str, Callable[..., Cost]] = {formula.__name__: formula for formula in formulas}
    formula = by_name[name.removesuffix(REMATERIALISED)]
    return partial(formula, remat=True) if name.endswith(REMATERIALISED) else formula


def parameters(sizes: Sequence[int]) -> int:
    """How many numbers the parameters are."""
    return sum(d_in * d_out + d_out for d_in, d_out in itertools.pairwise(sizes))


def parameter_bytes(sizes: Sequence[int], bits: int = 32) -> int:
    """The bytes of all parameters, on one device that has all."""
    return math.ceil(parameters(sizes) * bits / 8)
