"""Windows of a block, at computed positions or sliding: slices, gathers, scatters, reductions, convolutions."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.lax import GatherDimensionNumbers, GatherScatterMode
from numpy.lib.stride_tricks import as_strided

from shardproof.oracles.dtypes import is_float, is_signed
from shardproof.properties.engines.simulate.blocks import as_comparable, extreme, fold, pad_block
from shardproof.properties.engines.simulate.env import (
    Dimensions,
    Env,
    Rule,
    block_rank,
    broadcast_lead,
    broadcast_leads,
    common_lead,
    lead_index,
    result_dtype,
    rule,
)
from shardproof.properties.engines.simulate.interpreter import evaluate


def windows(env: Env, x: np.ndarray, sizes: Dimensions, writeable: bool = False) -> np.ndarray:
    """Every window of the given sizes: a view `[*lead, *position, *sizes]`."""
    lead, block = x.shape[: env.lead], x.shape[env.lead :]
    positions = [n - int(size) + 1 for n, size in zip(block, sizes, strict=True)]
    strides = x.strides + x.strides[env.lead :]
    plain = x if x.dtype.isbuiltin == 1 else x.view(f"V{x.dtype.itemsize}")  # NumPy looks a dtype up by its letter
    return as_strided(plain, (*lead, *positions, *map(int, sizes)), strides, writeable=writeable).view(x.dtype)


def clamp_starts(starts: Sequence[np.ndarray], block: Sequence[int], sizes: Dimensions) -> list[np.ndarray]:
    """Window positions, moved inside the block."""
    return [
        np.asarray(np.maximum(np.minimum(start.astype(np.int64), n - size), 0))
        for start, n, size in zip(starts, block, sizes, strict=True)
    ]


@rule("dynamic_slice")
def dynamic_slice(env: Env, equation: Any, x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    """The window at a computed position, moved inside the block."""
    sizes = equation.params["slice_sizes"]
    at = clamp_starts(starts, x.shape[env.lead :], sizes)
    own = lead_index(env, common_lead(env, x, *at), x, 0)
    return np.asarray(windows(env, x, sizes)[(*own, *at)])


@rule("dynamic_update_slice")
def dynamic_update_slice(env: Env, equation: Any, x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    """`x` with the window at a computed position, moved inside the block, replaced."""
    sizes = update.shape[env.lead :]
    at = clamp_starts(starts, x.shape[env.lead :], sizes)
    lead = common_lead(env, x, update, *at)
    result = broadcast_lead(env, lead, x).copy()
    own = lead_index(env, lead, result, 0)
    windows(env, result, sizes, writeable=True)[(*own, *at)] = update
    return result


def window_starts(env: Env, equation: Any, indices: np.ndarray, block: Sequence[int]) -> list[np.ndarray]:
    """For every dimension of the operand, where the windows start: each `[*lead, *batch]`, broadcast.

    `indices` is `[*lead, *batch, component]`; a batching dimension of the operand goes along with one of the indices'.
    With the choice `sorting` they are sorted as `indices_are_sorted` promised: the batch in row-major order, by the
    block's first dimension first. All that lie outside of the block on one side are equal.
    """
    numbers, batch, ones = equation.params["dimension_numbers"], indices.shape[env.lead : -1], (1,) * env.lead
    if isinstance(numbers, GatherDimensionNumbers):
        index_map, indices_batch = numbers.start_index_map, numbers.start_indices_batching_dims
    else:
        index_map, indices_batch = numbers.scatter_dims_to_operand_dims, numbers.scatter_indices_batching_dims
    starts = [np.zeros(ones + (1,) * len(batch), np.int64) for _ in block]
    for component, dimension in enumerate(index_map):
        part = indices[..., component]
        part = np.minimum(part, np.uint64(2**62)) if part.dtype == np.uint64 else part
        starts[dimension] = part.astype(np.int64)
    for dimension, along in zip(numbers.operand_batching_dims, indices_batch, strict=True):
        shape = [batch[along] if d == along else 1 for d in range(len(batch))]
        starts[dimension] = np.arange(batch[along]).reshape(ones + tuple(shape))
    checks = env.found is not None or env.other == "sorting"
    if not (checks and starts and equation.params["indices_are_sorted"]):
        return starts
    whole = np.broadcast_arrays(*starts)
    flat = [start.reshape(*start.shape[: env.lead], -1) for start in whole]
    place = np.zeros(flat[0].shape[-1:], np.int64)
    for start, n in zip(flat, block, strict=True):
        place = place * (n + 2) + np.clip(start, -1, n) + 1
    if not (np.diff(place, axis=-1) < 0).any():
        return starts
    if env.found is not None:
        env.found["sorting", id(equation)] = equation
    if env.other != "sorting":
        return starts
    order = np.argsort(place, axis=-1, kind="stable")
    return [np.take_along_axis(start, order, axis=-1).reshape(whole[0].shape) for start in flat]


def lies_inside(starts: Sequence[np.ndarray], block: Sequence[int], sizes: Dimensions) -> np.ndarray:
    """A mask of the windows that lie inside the block: bool `[*lead, *batch]`."""
    result = np.array(True)
    for start, n, size in zip(starts, block, sizes, strict=True):
        result = np.asarray(result & (start >= 0) & (start <= n - size))
    return result


def filler(dtype: np.dtype, fill_value: Any) -> np.ndarray:
    """The value that a gather reads outside the operand: NaN, the smallest signed, the largest unsigned, or True."""
    if fill_value is not None:
        return np.asarray(fill_value).astype(dtype)
    if is_float(dtype):
        return np.array(np.nan).astype(dtype)
    return extreme(dtype, largest=not is_signed(dtype))


@rule("gather")
def gather(env: Env, equation: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """A window for every index vector: the indices' batch dimensions, and the window's at `offset_dims`."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    block, batch = x.shape[env.lead :], indices.shape[env.lead : -1]
    shape = tuple(equation.outvars[0].aval.shape)
    lead = common_lead(env, x, indices)
    if any(n < size for n, size in zip(block, sizes, strict=True)) or 0 in shape:
        return np.broadcast_to(filler(x.dtype, equation.params["fill_value"]), lead + shape)
    starts = window_starts(env, equation, indices, block)
    own = lead_index(env, lead, x, len(batch))
    found = np.asarray(windows(env, x, sizes)[(*own, *clamp_starts(starts, block, sizes))])
    found = np.broadcast_to(found, (*lead, *batch, *sizes))
    if equation.params["mode"] == GatherScatterMode.FILL_OR_DROP:
        valid = lies_inside(starts, block, sizes)
        valid = valid.reshape(valid.shape + (1,) * len(sizes))
        found = np.where(valid, found, filler(x.dtype, equation.params["fill_value"]))
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    found = found.squeeze(tuple(env.lead + len(batch) + d for d in gone))
    offsets = list(numbers.offset_dims)
    batches = [d for d in range(len(shape)) if d not in offsets]
    return np.moveaxis(found, range(env.lead, found.ndim), [env.lead + d for d in (*batches, *offsets)])


def scatter_windows(
    env: Env, equation: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, noting: bool
) -> tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray]:
    """Views of all windows of `x`, and those that a scatter writes: index arrays `[n]`, and contents `[n, *sizes]`.

    Windows outside of the operand are moved inside in mode clip, and left out otherwise. With `noting`, two windows at
    one place are noted in `env.found`.
    """
    numbers = equation.params["dimension_numbers"]
    block = x.shape[env.lead :]
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window_dimensions = [env.lead + d for d in numbers.update_window_dims]
    others = iter([updates.shape[d] for d in window_dimensions])
    sizes = [1 if d in gone else next(others) for d in range(len(block))]
    lead = x.shape[: env.lead]
    updates = broadcast_lead(env, lead, updates)
    batch_dimensions = [d for d in range(env.lead, updates.ndim) if d not in window_dimensions]
    batch = tuple(updates.shape[d] for d in batch_dimensions)
    contents = updates.transpose(*range(env.lead), *batch_dimensions, *window_dimensions)
    starts = window_starts(env, equation, indices, block)
    valid = lies_inside(starts, block, sizes)
    if equation.params["mode"] == GatherScatterMode.CLIP:
        starts = clamp_starts(starts, block, sizes)
        valid = lies_inside(starts, block, sizes)
    at = [np.broadcast_to(i, lead + batch) for i in (*lead_index(env, lead, x, len(batch)), *starts)]
    valid = np.broadcast_to(valid, lead + batch)
    places, view = tuple(i[valid] for i in at), windows(env, x, sizes, writeable=True)
    if env.found is not None and noting:
        numbers = np.ravel_multi_index(places, view.shape[: len(places)])
        if len(np.unique(numbers)) < len(numbers):
            env.found["order", id(equation)] = equation
    return view, places, contents.reshape(*lead, *batch, *sizes)[valid]


@rule("scatter")
def scatter(env: Env, equation: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *_: Any) -> np.ndarray:
    """`x` with windows replaced, or combined by a function, in the order of the indices."""
    result = broadcast_lead(env, common_lead(env, x, indices, updates), x).copy()
    if 0 in updates.shape:
        return result
    view, at, contents = scatter_windows(env, equation, result, indices, updates, noting=True)
    if env.other == "order":
        at, contents = tuple(i[::-1].copy() for i in at), contents[::-1].copy()  # NumPy reorders views
    jaxpr = equation.params["update_jaxpr"]
    if jaxpr is None or not jaxpr.eqns:
        view[at] = contents
        return result
    update = ClosedJaxpr(jaxpr, equation.params["update_consts"])
    for i in range(len(contents)):  # one window after the other: each application sees the ones before it
        where = tuple(part[i] for part in at)
        (view[where],) = evaluate(Env().mapped(contents.ndim - 1), update, [np.asarray(view[where]), contents[i]])
    return result


def scatter_combination(ufunc: np.ufunc, exact: bool) -> Any:
    """The rule of a scatter that combines every update with the operand, in wide numbers if `exact`."""

    def run(env: Env, equation: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        dtype = env.exact(x.dtype) if exact or x.dtype.kind not in "biufc" else x.dtype
        result = broadcast_lead(env, common_lead(env, x, indices, updates), x).astype(dtype, order="C")
        if 0 not in updates.shape:
            promised, updates = equation.params["unique_indices"], updates.astype(dtype)
            view, at, contents = scatter_windows(env, equation, result, indices, updates, noting=promised)
            if promised and env.other == "order":
                view[at] = ufunc(view[at], contents)  # one of several updates of one place is lost
            else:
                ufunc.at(view, at, contents)
        return result.astype(x.dtype)

    return run


rule("scatter-add")(scatter_combination(np.add, exact=True))
rule("scatter-sub")(scatter_combination(np.subtract, exact=True))
rule("scatter-mul")(scatter_combination(np.multiply, exact=True))
rule("scatter-min")(scatter_combination(np.minimum, exact=False))
rule("scatter-max")(scatter_combination(np.maximum, exact=False))


class Window(NamedTuple):
    """A sliding window; one number, or pair, for each dimension of the block."""

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

    def flat(self, env: Env, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
        """The elements in the window at each of its positions: `[*lead, *positions, size]`; `fill` is `[*lead]`."""
        x = pad_block(env, x, fill.reshape(fill.shape + (1,) * (env.lead - fill.ndim)), self.config)
        reach = [(n - 1) * d + 1 for n, d in zip(self.sizes, self.dilation, strict=True)]
        if any(n < size for n, size in zip(x.shape[env.lead :], reach, strict=True)):
            positions = [
                max(0, n - r + s) // s for n, r, s in zip(x.shape[env.lead :], reach, self.strides, strict=True)
            ]
            return np.zeros((*x.shape[: env.lead], *positions, math.prod(self.sizes)), x.dtype)
        steps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in (*self.strides, *self.dilation)))
        seen = windows(env, x, reach)[steps]
        return seen.reshape(*seen.shape[: env.lead + len(self.sizes)], math.prod(self.sizes))


def reduction(function: Callable[..., Any], fill: Callable[[np.dtype], Any]) -> Rule:
    """The rule that reduces the elements of each window; `fill` is the padding of a dtype."""

    def run(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
        seen = Window.of(equation.params).flat(env, x, np.asarray(fill(x.dtype)))
        exact = seen.astype(env.exact(x.dtype)) if function is np.sum and x.dtype != bool else as_comparable(seen)
        return np.asarray(function(exact, axis=-1)).astype(result_dtype(equation))

    return run


rule("reduce_window_sum")(reduction(np.sum, lambda dtype: np.zeros((), dtype)))
rule("reduce_window_max")(reduction(np.max, lambda dtype: extreme(dtype, largest=False)))
rule("reduce_window_min")(reduction(np.min, lambda dtype: extreme(dtype, largest=True)))


@rule("reduce_window")
def reduce_window(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Folds the elements of each window, in row-major order, with a function of the program's."""
    count = len(operands) // 2
    window, starts = Window.of(equation.params), operands[count:]
    seen = [window.flat(env, x, start) for x, start in zip(operands[:count], starts, strict=True)]
    return fold(env, ClosedJaxpr(equation.params["jaxpr"], equation.params["consts"]), seen, starts)


def selection(env: Env, equation: Any, x: np.ndarray) -> tuple[Window, np.ndarray, np.ndarray]:
    """The window, the number of the element that each position selects, and whether it lies inside the block.

    That is the first of the largest, or smallest: each stays selected while it compares with the next ones.
    """
    largest = equation.params["select_prim"].name == "ge"
    window, compares = Window.of(equation.params), np.greater_equal if largest else np.less_equal
    seen = window.flat(env, x, extreme(x.dtype, largest=not largest))
    best, place = seen[..., 0], np.zeros(seen.shape[:-1], np.int64)
    for i in range(1, seen.shape[-1]):
        stays = compares(best, seen[..., i])
        best, place = np.where(stays, best, seen[..., i]), np.where(stays, place, i)
    return window, place, np.asarray(best != extreme(x.dtype, largest=not largest))


@rule("select_and_gather_add")
def select_and_gather_add(env: Env, equation: Any, tangents: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The tangent of the element that each window selects; 0 where that is padding."""
    window, place, there = selection(env, equation, x)
    seen = window.flat(env, tangents, np.zeros((), tangents.dtype))
    seen, place = broadcast_leads(env, [seen, place[..., None]])
    return np.where(there, np.take_along_axis(seen, place, -1)[..., 0], 0).astype(result_dtype(equation))


@rule("select_and_scatter_add")
def select_and_scatter_add(env: Env, equation: Any, source: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The numbers of `source`, each added to the element that its window selects."""
    window, place, _ = selection(env, equation, x)
    whole = pad_block(env, x, np.zeros((1,) * env.lead, x.dtype), window.config).shape[env.lead :]
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
    return pad_block(env, total, np.zeros((1,) * env.lead, exact), back).astype(result_dtype(equation))


@rule("conv_general_dilated")
def conv_general_dilated(env: Env, equation: Any, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Sums of products of a kernel with windows of every image, in groups of features, or of images."""
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
