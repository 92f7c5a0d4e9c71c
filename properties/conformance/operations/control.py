"""Loops, branches, and transformations within a program."""

from collections.abc import Sequence

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.parts import (
    array,
    axis,
    choice,
    draws,
    each_row,
    flag,
    like,
    scalar,
    whole,
)
from shardproof.properties.conformance.operations.table import Call, operation

BODIES = (
    "x[::-1]",
    "jnp.roll(x, 1, 0)",
    "jnp.roll(x, -3, 0)",
    "jnp.cumsum(x, 0)",
    "x.at[1:].add(x[:-1])",
    "x.at[::2].set(1)",
    "jnp.concatenate([x[1:], x[:1]])",
    "lax.dynamic_update_slice_in_dim(x, x[:1], 2, 0)",
    "jnp.sort(x, 0)",
    "jnp.maximum(x, x[0])",
    "jnp.pad(x, [(1, 0)] + [(0, 0)] * (x.ndim - 1))[:-1]",
    "x + x.sum(0)",
    "jnp.where(jnp.arange(x.shape[0]).reshape((-1,) + (1,) * (x.ndim - 1)) < 2, x, 0)",
    "x - 1",
)
"""Functions of an array `x` to one of its type."""


BODY = choice(*BODIES)
LINEAR = choice(*(body for body in BODIES if not any(word in body for word in ("sort", "maximum", "set(1)", "x - 1"))))

ROWS = array(of="number", where=lambda shape: shape[0] > 0)
"""An array with a first row."""

NUMBERS, FLOATS = array(of="number", where=all), array(dtype="float32", where=all)
MATRIX, VECTOR = array(2, 3, of="number", where=all), array(1, 1, dtype="float32", where=all)
"""Arrays without empty dimensions."""


def _one_row(d: Drawing, names: Sequence[str]) -> str:
    return d.array(shape=d[names[0]].shape[1:], dtype=d[names[0]].dtype)


operation("fori_loop", "lax.fori_loop(0, {n}, lambda i, x: {body}, {0})", weight=6)(
    draws(ROWS, n=whole(0, 3), body=BODY)
)
operation("fori_index", "lax.fori_loop({start}, {n}, lambda i, x: x.at[i].{how}(i), {0})", weight=6)(
    draws(array(of="number"), how=choice("set", "add", "max"), start=whole(-2, 2), n=whole(0, 9))
)
operation(
    "while_loop",
    "lax.while_loop(lambda c: c[0] < {n}, lambda c: (c[0] + 1, (lambda x: {body})(c[1])), (0, {0}))[1]",
    weight=4,
)(draws(ROWS, n=whole(0, 3), body=BODY))
operation("while_of_value", "lax.while_loop(lambda x: x.sum() < {n}, lambda x: x + 1, {0})", weight=3)(
    draws(array(1, 2, dtypes=("int32", "float32"), data=(0, 3), where=all), n=whole(0, 40))
)


@operation("scan", "*lax.scan(lambda c, x: ({carry}, {each}), {0}, {1}, reverse={reverse})", weight=6)
def _scan(d: Drawing) -> Call:
    x = d.array(1, 3, of="number")
    carry = d.array(shape=d[x].shape[1:], dtype=d[x].dtype)
    rows = ("c + x", "jnp.maximum(c, x)", "c - x", "c[::-1] + x", "jnp.roll(x, 1)")
    carries = rows[: 3 if len(d[x].shape) < 2 else 5]
    return [carry, x], {"carry": d.one_of(carries), "each": d.one_of(carries), "reverse": d.chance(2)}


operation("scan_collect", "lax.scan(lambda c, _: ((lambda x: {body})(c), c), {0}, None, length={n})[1]", weight=4)(
    draws(ROWS, n=whole(1, 4), body=BODY)
)
operation(
    "scan_tuple", "*lax.scan(lambda c, x: ((c[1] + x[0], c[0] - x[1]), c[0]), ({1}, {1}), ({0}, {2}))[0]", weight=4
)(draws(array(of="ring"), _one_row, like()))
operation("map", "lax.map(lambda x: {body}, {0})", weight=5)(draws(MATRIX, body=BODY))
operation("map_batched", "lax.map(lambda x: x - 1, {0}, batch_size={n})", weight=4)(draws(NUMBERS, n=whole(1, 5)))
operation("cond", "lax.cond({1} > {n}, lambda x: {body}, lambda x: {other}, {0})", weight=5)(
    draws(ROWS, scalar(-2, 2), n=whole(-2, 2), body=BODY, other=BODY)
)
operation(
    "cond_of_value", "lax.cond({0}.sum() > {n}, lambda x: {body}, lambda x: {other}, {0})", weight=4, continuous=False
)(draws(NUMBERS, n=whole(0, 4), body=BODY, other=BODY))
operation("switch", "lax.switch({1}, [lambda x: {one}, lambda x: {two}, lambda x: {three}], {0})", weight=4)(
    draws(ROWS, scalar(-1, 3), one=BODY, two=BODY, three=BODY)
)

operation("vmap", "jax.vmap(lambda x: {body}, in_axes={inner}, out_axes={outer})({0})", weight=6)(
    draws(MATRIX, inner=axis, outer=axis, body=BODY)
)
operation("vmap_cond", "jax.vmap(lambda x, p: lax.cond(p, lambda x: {body}, lambda x: x * 2, x))({0}, {1})", weight=4)(
    draws(MATRIX, each_row("bool"), body=BODY)
)
operation(
    "vmap_cond_of_index",
    "jax.vmap(lambda x, i: lax.switch(i, [lambda x: {one}, lambda x: {two}], x))({0}, {1})",
    weight=4,
)(draws(MATRIX, each_row("int32", (-1, 2)), one=BODY, two=BODY))
operation(
    "vmap_while",
    "jax.vmap(lambda x, n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + c[0]), (0, x))[1])({0}, {1})",
    weight=4,
)(draws(array(1, 2, dtype="int32"), each_row("int32", (0, 4))))
operation(
    "vmap_scan", "jax.vmap(lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x)[1], in_axes={inner})({0})", weight=4
)(draws(MATRIX, inner=axis))
operation("vectorize", "jnp.vectorize(lambda x: {body}, signature='(n)->(n)')({0})", weight=2)(
    draws(NUMBERS, body=BODY)
)

operation("linear_transpose", "*jax.linear_transpose(lambda x: {body}, {0})({0})", weight=5)(draws(FLOATS, body=LINEAR))
operation("linearize", "jax.linearize(lambda x: {body}, {0})[1]({0})", exact=False, weight=3)(draws(FLOATS, body=BODY))
operation("grad", "jax.grad(lambda x: ({body} * {0}).sum())({0})", exact=False, weight=5)(draws(FLOATS, body=BODY))
operation("jacobian", "jax.{mode}(lambda x: {body})({0})", exact=False, weight=4)(
    draws(VECTOR, mode=choice("jacfwd", "jacrev"), body=BODY)
)
operation("hessian", "jax.hessian(lambda x: ({body} ** 2).sum())({0})", exact=False, weight=2)(draws(VECTOR, body=BODY))
operation("checkpoint", "jax.checkpoint(lambda x: {body})({0})", weight=1)(draws(ROWS, body=BODY))
operation(
    "checkpoint_policy",
    "jax.grad(lambda x: (jax.checkpoint(lambda x: {body}, policy=jax.checkpoint_policies.{policy})(x)"
    " * {0}).sum())({0})",
    exact=False,
    weight=2,
)(draws(FLOATS, body=BODY, policy=choice("nothing_saveable", "everything_saveable", "dots_saveable")))
operation("jit", "jax.jit(lambda x: {body})({0})", weight=1)(draws(ROWS, body=BODY))
operation("custom_jvp", "jax.nn.relu({0})", weight=2)(draws(array(of="float")))
operation(
    "custom_vjp",
    "(lambda f: (f.defvjp(lambda x: (f(x), x), lambda x, g: (g[::-1] + x,)), f)[1])"
    "(jax.custom_vjp(lambda x: {body}))({0})",
    weight=2,
)(draws(array(of="float", where=all), body=BODY))
operation(
    "custom_linear_solve",
    "lax.custom_linear_solve(lambda x: 2 * x, {0}, solve=lambda f, b: b / 2, transpose_solve=lambda f, b: b / 2)",
    weight=1,
)(draws(array(dtype="float32")))


operation(
    "associative_scan_of_pairs",
    "*lax.associative_scan(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), ({0}, {1}), axis={axis}, reverse={reverse})",
    weight=4,
)(draws(array(1, 3, dtype="int32", data=(-1, 2), where=all), like(data=(-3, 4)), axis=axis, reverse=flag))


@operation(
    "scan_slice",
    "lax.fori_loop(0, {n}, lambda i, c: c + lax.dynamic_index_in_dim({1}, i, {axis}, False), {0})",
    weight=4,
)
@operation(
    "scan_update",
    "lax.fori_loop(0, {n}, lambda i, c: lax.dynamic_update_index_in_dim(c, {0} + i.astype(c.dtype), i, {axis}), {1})",
    weight=4,
)
def _loop_over_slices(d: Drawing) -> Call:
    x = d.array(1, 3, of="number", where=all)
    axis, shape = d.axis(x), d[x].shape
    part = d.array(shape=[n for i, n in enumerate(shape) if i != axis], dtype=d[x].dtype)
    return [part, x], {"n": d.integer(0, shape[axis]), "axis": axis}


for _name, _template in (
    ("fori_loop", "lax.fori_loop(0, 2, lambda i, x: put({body}, {spec}), {0})"),
    ("scan", "lax.scan(lambda x, _: (put({body}, {spec}), x), {0}, None, length=2)[1]"),
    (
        "while_loop",
        "lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, (lambda x: put({body}, {spec}))(c[1])), (0, {0}))[1]",
    ),
    ("checkpoint", "jax.checkpoint(lambda x: put({body}, {spec}))({0})"),
    ("jit", "jax.jit(lambda x: put({body}, {spec}))({0})"),
):

    @operation(f"{_name}_constrained", _template, weight=4)
    def _constrained_body(d: Drawing) -> Call:
        x = d.array(of="number", where=lambda shape: shape[0] > 0)
        return [x], {"body": d.one_of(BODIES), "spec": d.layout(d[x].shape, uneven=d.axes == "auto" and d.chance(2))}


@operation(
    "cond_constrained",
    "lax.cond({0}.sum() > 2, lambda x: put({body}, {spec}), lambda x: put(x, {second}), {0})",
    continuous=False,
    weight=4,
)
def _constrained_branches(d: Drawing) -> Call:
    x = d.array(of="number", where=lambda shape: shape[0] > 0)
    specs = d.layout(d[x].shape), d.layout(d[x].shape)
    return [x], {"body": d.one_of(BODIES), "spec": specs[0], "second": specs[d.chance(2)]}


@operation("vmap_spmd", "jax.vmap(lambda x: put({body}, {spec}), spmd_axis_name='{axis}')({0})", weight=4)
def _vmap_spmd(d: Drawing) -> Call:
    axis = d.one_of([*d.mesh])
    x = d.array(2, 3, of="number", where=lambda shape: 0 not in shape and shape[0] % d.mesh[axis] == 0)
    left = [None if entry and axis in entry else entry for entry in d.layout(d[x].shape[1:])]
    return [x], {"body": d.one_of(BODIES), "axis": axis, "spec": left}
