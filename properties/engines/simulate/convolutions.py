"""Convolutions and sums, maxima and folds over windows that move along a block, and derivatives of the maxima."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr

from shardproof.properties.engines.simulate.env import Env, common_lead, lead_index, spread
from shardproof.properties.engines.simulate.indexing import windows
from shardproof.properties.engines.simulate.reductions import comparable, extreme, fold
from shardproof.properties.engines.simulate.rules import Rule, block_rank, result_dtype, rule
from shardproof.properties.engines.simulate.shaping import padded


class Window(NamedTuple):
    """A window, and how it moves; one number, or pair, for each dimension of the block."""

    sizes: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    base_dilation: Sequence[int]
    dilation: Sequence[int]

    @classmethod
    def of(cls, params: Any) -> "Window":
        """The window of a reduction."""
        sizes, ones = params["window_dimensions"], (1,) * len(params["window_dimensions"])
        dilations = params.get("base_dilation", ones), params.get("window_dilation", ones)
        return cls(sizes, params["window_strides"], params["padding"], *dilations)

    @property
    def config(self) -> list[tuple[int, int, int]]:
        """The padding around and between the elements."""
        return [(low, high, d - 1) for (low, high), d in zip(self.padding, self.base_dilation, strict=True)]

    def over(self, env: Env, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
        """What the window sees at each of its positions: `[*lead, *positions, *sizes]`; `fill` is `[*lead]`."""
        x = padded(env, x, fill.reshape(fill.shape + (1,) * (env.lead - fill.ndim)), self.config)
        reach = [(n - 1) * d + 1 for n, d in zip(self.sizes, self.dilation, strict=True)]
        if any(n < size for n, size in zip(x.shape[env.lead :], reach, strict=True)):
            positions = [
                max(0, n - r + s) // s for n, r, s in zip(x.shape[env.lead :], reach, self.strides, strict=True)
            ]
            return np.zeros((*x.shape[: env.lead], *positions, *self.sizes), x.dtype)
        steps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in (*self.strides, *self.dilation)))
        return windows(env, x, reach)[steps]

    def flat(self, env: Env, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
        """The same, the window's dimensions made one."""
        seen = self.over(env, x, fill)
        return seen.reshape(*seen.shape[: env.lead + len(self.sizes)], math.prod(self.sizes))


def reduction(function: Callable[..., Any], fill: Callable[[np.dtype], Any]) -> Rule:
    """The rule that reduces what each window sees; `fill` is what lies beside the block, of a dtype."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        seen = Window.of(equation.params).flat(env, x, np.asarray(fill(x.dtype)))
        exact = seen.astype(env.exact(x.dtype)) if function is np.sum and x.dtype != bool else comparable(seen)
        return np.asarray(function(exact, axis=-1)).astype(result_dtype(equation))

    return run


rule("reduce_window_sum")(reduction(np.sum, lambda dtype: np.zeros((), dtype)))
rule("reduce_window_max")(reduction(np.max, lambda dtype: extreme(dtype, largest=False)))
rule("reduce_window_min")(reduction(np.min, lambda dtype: extreme(dtype, largest=True)))


@rule("reduce_window")
def reduce_window(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Folds what each window sees, in row-major order, with a function of the program's."""
    count = len(operands) // 2
    window, starts = Window.of(equation.params), operands[count:]
    seen = [window.flat(env, x, start) for x, start in zip(operands[:count], starts, strict=True)]
    return fold(env, ClosedJaxpr(equation.params["jaxpr"], equation.params["consts"]), seen, starts)


def selection(env: Env, equation: Any, x: np.ndarray) -> tuple[Window, np.ndarray, np.ndarray]:
    """The window, the element that each one selects, as its number in the window, and whether there is one.

    That is the first of the largest, or smallest: each is kept for as long as it compares with the next ones.
    """
    largest = equation.params["select_prim"].name == "ge"
    window, keeps = Window.of(equation.params), np.greater_equal if largest else np.less_equal
    seen = window.flat(env, x, extreme(x.dtype, largest=not largest))
    best, place = seen[..., 0], np.zeros(seen.shape[:-1], np.int64)
    for i in range(1, seen.shape[-1]):
        kept = keeps(best, seen[..., i])
        best, place = np.where(kept, best, seen[..., i]), np.where(kept, place, i)
    return window, place, np.asarray(best != extreme(x.dtype, largest=not largest))


@rule("select_and_gather_add")
def select_and_gather_add(env: Env, equation: Any, tangents: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The tangent of the element that each window selects; 0 where that is beside the block."""
    window, place, there = selection(env, equation, x)
    seen = window.flat(env, tangents, np.zeros((), tangents.dtype))
    lead = common_lead(env, tangents, x)
    seen, place = (spread(env, lead, a) for a in (seen, place[..., None]))
    return np.where(there, np.take_along_axis(seen, place, -1)[..., 0], 0).astype(result_dtype(equation))


@rule("select_and_scatter_add")
def select_and_scatter_add(env: Env, equation: Any, source: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The numbers of `source`, each added to the element that its window selects."""
    window, place, _ = selection(env, equation, x)
    whole = padded(env, x, np.zeros((1,) * env.lead, x.dtype), window.config).shape[env.lead :]
    numbers = np.arange(math.prod(whole)).reshape((1,) * env.lead + whole)
    seen = window._replace(padding=[(0, 0)] * len(whole)).flat(env, numbers, np.zeros((), np.int64))
    seen = np.broadcast_to(seen, (*place.shape, seen.shape[-1]))
    places = np.take_along_axis(seen, place[..., None], -1).reshape(*place.shape[: env.lead], -1)
    lead = common_lead(env, source, x)
    exact = env.exact(source.dtype)
    total = np.zeros((*lead, math.prod(whole)), exact)
    added = np.broadcast_to(source.reshape(*source.shape[: env.lead], -1), (*lead, places.shape[-1])).astype(exact)
    np.add.at(total, (*lead_index(env, lead, total, 1), places), added)
    total = total.reshape(*lead, *whole)
    back = [(-low, -high, 0) for low, high in window.padding]
    return padded(env, total, np.zeros((1,) * env.lead, exact), back).astype(result_dtype(equation))


@rule("conv_general_dilated")
def conv_general_dilated(env: Env, equation: Any, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Sums of products of a kernel with what it sees of every image, in groups of features, or of images."""
    params, spatial = equation.params, block_rank(env, lhs) - 2
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    lhs = lhs.transpose(*range(env.lead), *(env.lead + d for d in lhs_spec))  # [*lead, image, feature, *space]
    rhs = rhs.transpose(*range(env.lead), *(env.lead + d for d in rhs_spec))  # [*lead, out, feature, *space]
    out, features, *sizes = rhs.shape[env.lead :]
    window = Window(
        (1, 1, *sizes), (1, 1, *params["window_strides"]), ((0, 0), (0, 0), *params["padding"]),
        (1, 1, *params["lhs_dilation"]), (1, 1, *params["rhs_dilation"]),
    )  # fmt: skip
    seen = window.flat(env, lhs, np.zeros((), lhs.dtype))  # [*lead, image, feature, *positions, place]
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    lead, positions, images = seen.shape[: env.lead], seen.shape[env.lead + 2 : -1], lhs.shape[env.lead] // batches
    dtype = np.result_type(env.exact(lhs.dtype), env.exact(rhs.dtype))
    seen = seen.reshape(*lead, batches, images, groups, features, math.prod(positions), seen.shape[-1])
    order = (0, 2, 1, 4, 3, 5)  # [*lead, batches, groups, images, position, feature, place]
    seen = seen.transpose(*range(env.lead), *(env.lead + d for d in order)).astype(dtype)
    terms = features * math.prod(sizes)
    seen = seen.reshape(*lead, batches * groups, images * math.prod(positions), terms)
    kernel = rhs.reshape(*rhs.shape[: env.lead], batches * groups, out // (batches * groups), terms).astype(dtype)
    result = np.matmul(seen, np.swapaxes(kernel, -1, -2))  # [*lead, group, images x positions, out]
    lead = result.shape[: env.lead]
    result = result.reshape(*lead, batches * groups, images, *positions, out // (batches * groups))
    result = np.moveaxis(np.moveaxis(result, -1, env.lead + 1), env.lead + 2, env.lead)
    result = result.reshape(*lead, images, out, *positions)
    places = [env.lead + out_spec.index(d) for d in range(spatial + 2)]
    return result.transpose(*range(env.lead), *places).astype(result_dtype(equation))
