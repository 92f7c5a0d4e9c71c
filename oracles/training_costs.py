"""What a training step costs in communication that takes a device's examples in microbatches, or shares its optimiser.

The setting is that of `mlp_costs`: B examples, D_0 to D_n, X the axes of `data`, Y those of `model`; M is the number of
microbatches. What the gradient needs of *weights*, or sends of *their gradients*, happens once, whatever M is. What is
sent of *examples* (hidden values, under tensor parallelism) is sent for every microbatch: M times as many collectives,
of as many bytes in all.
"""

from collections.abc import Callable

from shardproof.oracles.communication import NOTHING, Cost, summed_replicas
from shardproof.oracles.mlp_costs import Setting

Formula = Callable[[Setting, int], Cost]
"""Of a setting and the number of microbatches, what a step costs."""


def accumulated(at: Setting, microbatches: int) -> Cost:
    """Parameters on every device: every array's gradient is added up over X, in one all-reduce."""
    return _of_parameters(at, lambda n: at.reduce(n, at.data), 1) + _mean(at)


def accumulated_fsdp(at: Setting, microbatches: int) -> Cost:
    """Weights `[D_in_X, D_out]` are gathered once and their gradients scattered once; biases are on every device."""
    cost = _mean(at)
    for d_in, d_out, _ in at.layers:
        cost += at.gather(d_in // at.over(at.data) * d_out, at.data) + at.scatter(d_in * d_out, at.data)
        cost += at.reduce(d_out, at.data)
    return cost


def accumulated_tensor_parallel(at: Setting, microbatches: int) -> Cost:
    """Weights `[D_in_Y, D_out]`, biases `[D_out_Y]`: a device adds up the gradient of its own part over X, once."""
    of_parts = _of_parameters(at, lambda n: at.reduce(n, at.data), at.over(at.model))
    return of_parts + _of_features(at, microbatches) + _mean(at)


def zero(at: Setting, microbatches: int) -> Cost:
    """Every gradient is scattered over X, and every new parameter gathered (Rajbhandari et al. 2020, section 7.2.1)."""
    return _of_parameters(at, lambda n: _shared(at, n), 1) + _mean(at)


def zero_tensor_parallel(at: Setting, microbatches: int) -> Cost:
    """The same of a device's part of the weights `[D_in_Y, D_out]` and biases `[D_out_Y]`."""
    of_parts = _of_parameters(at, lambda n: _shared(at, n), at.over(at.model))
    return of_parts + _of_features(at, microbatches) + _mean(at)


def _of_parameters(at: Setting, each: Callable[[int], Cost], parts: int) -> Cost:
    """What is sent of every parameter, of whose elements a device has one of so many parts."""
    of_layers = [each(d_in * d_out // parts) + each(d_out // parts) for d_in, d_out, _ in at.layers]
    return sum(of_layers, NOTHING)


def _shared(at: Setting, n: int) -> Cost:
    """A reduce-scatter of n elements and an all-gather of the shards, with zeros that make these equally long."""
    shard = -(-n // at.over(at.data))
    return at.scatter(shard * at.over(at.data), at.data) + at.gather(shard, at.data)


def _of_features(at: Setting, microbatches: int) -> Cost:
    """Of every microbatch: the loss is added up over Y, sums are scattered, and their cotangents gathered."""
    rows = at.examples // at.over(at.data) // microbatches
    cost = at.reduce(1, at.model)
    for _, d_out, _ in at.layers:
        cost += at.scatter(rows * d_out, at.model) + at.gather_sums(rows * d_out // at.over(at.model), at.model)
    return cost * microbatches


def _mean(at: Setting) -> Cost:
    """The sum of the loss, and the number of examples that count, an int32, are added up over X."""
    return at.reduce(1, at.data) + summed_replicas(1, bits=32) if at.data else NOTHING
