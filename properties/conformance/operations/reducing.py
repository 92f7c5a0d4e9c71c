"""Reductions, scans along a dimension, sorts, and windows."""

import math
from collections.abc import Sequence
from typing import Any

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.parts import array, axis, choice, dims, draws, each_row, flag, whole
from shardproof.properties.conformance.operations.table import Call, operation

for _name, _of in {
    "reduce_max": "ordered",
    "reduce_min": "ordered",
    "reduce_prod": "ring",
    "reduce_and": "bits",
    "reduce_or": "bits",
    "reduce_xor": "integer",
}.items():
    operation(_name, f"lax.{_name}({{0}}, {{dims}})", keeps="dims")(draws(array(of=_of, where=all), dims=dims))


@operation("reduce_sum", "lax.reduce_sum({0}, {dims}, out_sharding={to})", keeps="dims")
def _summed(d: Drawing) -> Call:
    x = d.array(of="ring")
    dims = d.subset(len(d[x].shape))
    return [x], {"dims": dims, "to": d.out([size for i, size in enumerate(d[x].shape) if i not in dims])}


operation(
    "reduce",
    "*lax.reduce(({0}, {1}), (jnp.zeros((), {0}.dtype), jnp.ones((), {1}.dtype)), "
    "lambda x, y: (x[0] + y[0], x[1] * y[1]), {dims})",
)(
    draws(
        array(dtype="float32"),
        lambda d, names: d.array(shape=d[names[0]].shape, dtype=d.one_of(("float32", "int32")), data=(-1, 2)),
        dims=dims,
    )
)
operation(
    "reduce_with_place",
    "*lax.reduce(({0}, lax.broadcasted_iota(jnp.int32, {0}.shape, {axis})), (-jnp.inf, 99), "
    "lambda x, y: (lax.max(x[0], y[0]), lax.select((x[0] > y[0]) | ((x[0] == y[0]) & (x[1] < y[1])), x[1], y[1])), "
    "({axis},))",
    continuous=False,
)(draws(array(dtype="float32"), axis=axis))

for _name in ("argmax", "argmin"):
    operation(_name, f"lax.{_name}({{0}}, {{axis}}, jnp.{{dtype}})", continuous=False, weight=5)(
        draws(array(of="number", where=all), axis=axis, dtype=choice("int32", "uint32", "int8"))
    )
operation("jnp_argmax", "jnp.argmax({0})", continuous=False)(draws(array(of="number", where=all)))

for _name in ("mean", "var", "any", "all", "count_nonzero", "ptp", "median"):
    operation(
        _name,
        f"jnp.{_name}({{0}}, axis={{axis}})",
        exact=_name in ("any", "all", "ptp", "count_nonzero"),
        continuous=_name in ("mean", "var", "ptp", "median"),
        weight=2,
    )(draws(array(where=all, dtype="float32" if _name not in ("any", "all") else "bool"), axis=axis))

for _name, _of in {"cumsum": "ring", "cumprod": "ring", "cummax": "number", "cummin": "number"}.items():
    operation(_name, f"lax.{_name}({{0}}, {{axis}}, reverse={{reverse}})", weight=6)(
        draws(array(of=_of), axis=axis, reverse=flag)
    )
operation("cumlogsumexp", "lax.cumlogsumexp({0}, {axis}, reverse={reverse})", exact=False)(
    draws(array(dtype="float32"), axis=axis, reverse=flag)
)
operation("associative_scan", "lax.associative_scan(jnp.{how}, {0}, axis={axis}, reverse={reverse})", weight=5)(
    draws(array(of="number", where=all), how=choice("add", "maximum", "minimum"), axis=axis, reverse=flag)
)

operation("sort", "lax.sort({0}, {axis})", weight=5)(draws(array(), axis=axis))
operation("sort_down", "-jnp.sort(-{0}, {axis}, stable=False)", weight=2)(draws(array(of="number"), axis=axis))
operation("sort_descending", "jnp.sort({0}, {axis}, descending=True)", weight=2)(draws(array(of="number"), axis=axis))
operation(
    "sort_with_index",
    "*lax.sort_key_val({0}, lax.broadcasted_iota(jnp.int32, {0}.shape, {axis}), {axis})",
    continuous=False,
)(draws(array(of="number"), axis=axis))

OWN = (
    ("0", "lambda x, y: lax.max(abs(x), abs(y))", "float32"),
    ("0", "lambda x, y: x | y", "int32"),
    ("0", "lambda x, y: x ^ y", "uint8"),
    ("0", "lambda x, y: (x + y) % 7", "int32"),
    ("99", "lambda x, y: lax.min(x, y)", "int8"),
)
"""Functions to reduce by, with what they begin with and a dtype."""


@operation("reduce_by_own", "lax.reduce({0}, jnp.array({start}, {0}.dtype), {how}, {dims})", continuous=False)
def _reduced_by_own(d: Drawing) -> Call:
    start, how, dtype = d.one_of(OWN)
    x = d.array(dtype=dtype, data=(-2, 6), where=all)
    return [x], {"start": start, "how": how, "dims": d.subset(len(d[x].shape))}


@operation("sort_together", "*lax.sort(({0}, {1}), dimension={axis}, num_keys={keys})", weight=5, continuous=False)
def _sorted_together(d: Drawing) -> Call:
    x = d.array(of="number")
    y = d.array(shape=d[x].shape, dtype=d.one_of(("int32", "float32", "int8")))
    return [x, y], {"axis": d.axis(x), "keys": d.integer(1, 2)}


@operation("sort_of_three", "*lax.sort(({0}, {1}, {2}), dimension={axis}, num_keys={keys})", continuous=False)
def _sorted_three(d: Drawing) -> Call:
    x = d.array(of="number")
    others = [d.array(shape=d[x].shape, dtype=d.one_of(("int32", "float32"))) for _ in range(2)]
    return [x, *others], {"axis": d.axis(x), "keys": d.integer(1, 3)}


operation("argsort", "jnp.argsort({0}, axis={axis}, descending={down})", weight=5, continuous=False)(
    draws(array(of="number"), axis=axis, down=flag)
)


@operation("top_k", "*lax.top_k({0}, {k})", weight=5, continuous=False)
def _largest(d: Drawing) -> Call:
    x = d.array(of="number")
    return [x], {"k": d.integer(0, d[x].shape[-1])}


@operation("top_k_along", "*lax.top_k({0}, {k}, axis={axis})", weight=4, continuous=False)
def _largest_along(d: Drawing) -> Call:
    x = d.array(of="number")
    axis = d.axis(x)
    return [x], {"k": d.integer(0, d[x].shape[axis]), "axis": axis}


operation("searchsorted", "jnp.searchsorted(jnp.sort({0}), {1}, side='{side}', method='{method}')", continuous=False)(
    draws(
        array(1, 1, dtype="float32"),
        array(1, 2, dtype="float32"),
        method=choice("scan", "scan_unrolled", "sort", "compare_all"),
        side=choice("left", "right"),
    )
)
operation("bincount", "jnp.bincount({0}, length={length})", continuous=False)(
    draws(array(1, 1, dtype="int32", data=(0, 7)), length=whole(1, 9))
)


def _size(d: Drawing, names: Sequence[str]) -> int:
    return d.integer(1, math.prod(d[names[0]].shape))


operation("unique", "jnp.unique({0}, size={size}, fill_value=9)", continuous=False, weight=2)(
    draws(array(1, 2, dtype="int32", where=all), size=_size)
)
operation("nonzero", "*jnp.nonzero({0}, size={size}, fill_value=0)", continuous=False, weight=2)(
    draws(array(1, 2, of="bits", where=all), size=_size)
)
operation("segment_sum", "jax.ops.segment_{how}({0}, {1}, num_segments={count})", continuous=False, weight=4)(
    draws(
        array(1, 2, of="ordered"),
        each_row("int32", (-1, 8)),
        how=choice("sum", "max", "min", "prod"),
        count=whole(1, 8),
    )
)


def window(d: Drawing, shape: tuple[int, ...], *, dilations: bool = True) -> dict[str, Any]:
    """The dimensions, strides, padding and dilations of a window."""
    drawn: dict[str, Any] = {key: [] for key in ("size", "strides", "padding", "base", "within")}
    for size in shape:
        still = d.chance(3)
        within = 1 if still or not dilations or d.chance(2) else d.integer(1, 3)
        base = 1 if still or not dilations or d.chance(2) else d.integer(1, 3)
        extent = 1 if still else d.integer(1, 4)
        padding = [0, 0] if still or d.chance(3) else [d.integer(0, 3), d.integer(0, 3)]
        extended = (max(size - 1, 0) * base + 1 if size else 0) + sum(padding)
        if (extent - 1) * within + 1 > extended:
            extent = 1
        drawn["size"].append(extent)
        drawn["strides"].append(1 if still or d.chance(2) else d.integer(1, 4))
        drawn["padding"].append(padding)
        drawn["base"].append(base)
        drawn["within"].append(within)
    return drawn


for _name, _start, _how, _of in (
    ("reduce_window_sum", "0", "lax.add", "number"),
    ("reduce_window_max", "-jnp.inf", "lax.max", "float"),
    ("reduce_window_min", "jnp.inf", "lax.min", "float"),
    ("reduce_window_mul", "1", "lax.mul", "number"),
):

    @operation(
        _name,
        f"lax.reduce_window({{0}}, jnp.array({_start}, {{0}}.dtype), {_how}, "
        "{size}, {strides}, {padding}, {base}, {within})",
        weight=6,
    )
    def _windows(d: Drawing, of: str = _of) -> Call:
        x = d.array(of=of)
        return [x], window(d, d[x].shape)


@operation(
    "reduce_window_of_two",
    "*lax.reduce_window(({0}, {1}), (jnp.array(0, {0}.dtype), jnp.array(-9, {1}.dtype)), "
    "lambda x, y: (x[0] + y[0], lax.max(x[1], y[1])), {size}, {strides}, {padding}, {base}, {within})",
    weight=4,
)
def _windows_of_two(d: Drawing) -> Call:
    x = d.array(dtype=d.one_of(("float32", "int32")))
    return [x, d.array(shape=d[x].shape, dtype="int32")], window(d, d[x].shape)


@operation(
    "pool_gradient_of_min",
    "jax.grad(lambda x: lax.reduce_window(x, jnp.inf, lax.min, {size}, {strides}, {padding}).sum())({0})",
    weight=3,
)
@operation(
    "window_sum_gradient",
    "jax.grad(lambda x: (lax.reduce_window(x, 0.0, lax.add, {size}, {strides}, {padding}) ** 2).sum())({0})",
    weight=4,
)
@operation(
    "select_and_scatter_add",
    "jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, {size}, {strides}, {padding}).sum())({0})",
    weight=6,
)
@operation(
    "max_pool_jvp",
    "jax.jvp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, {size}, {strides}, {padding}), ({0},), ({0},))[1]",
    weight=3,
)
def _pool(d: Drawing) -> Call:
    x = d.array(dtype="float32", where=all)
    drawn = window(d, d[x].shape, dilations=False)
    return [x], {key: drawn[key] for key in ("size", "strides", "padding")}
