"""Loops, branches, and transformations within a program."""

from shardproof.properties.conformance.drawing import Drawing
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


def _carried(d: Drawing) -> str:
    return d.array(of="number", where=lambda shape: shape[0] > 0)


@operation("fori_loop", "lax.fori_loop(0, {n}, lambda i, x: {body}, {0})", weight=6)
def _loop(d: Drawing) -> Call:
    return [_carried(d)], {"n": d.integer(0, 3), "body": d.one_of(BODIES)}


@operation("fori_index", "lax.fori_loop({start}, {n}, lambda i, x: x.at[i].{how}(i), {0})", weight=6)
def _loop_index(d: Drawing) -> Call:
    how = d.one_of(("set", "add", "max"))
    return [d.array(of="number")], {"start": d.integer(-2, 2), "n": d.integer(0, 9), "how": how}


@operation(
    "while_loop",
    "lax.while_loop(lambda c: c[0] < {n}, lambda c: (c[0] + 1, (lambda x: {body})(c[1])), (0, {0}))[1]",
    weight=4,
)
def _while(d: Drawing) -> Call:
    return [_carried(d)], {"n": d.integer(0, 3), "body": d.one_of(BODIES)}


@operation("while_of_value", "lax.while_loop(lambda x: x.sum() < {n}, lambda x: x + 1, {0})", weight=3)
def _while_of_value(d: Drawing) -> Call:
    x = d.array(1, 2, dtype=d.one_of(("int32", "float32")), data=(0, 3), where=lambda shape: all(shape))
    return [x], {"n": d.integer(0, 40)}


@operation("scan", "*lax.scan(lambda c, x: ({carry}, {each}), {0}, {1}, reverse={reverse})", weight=6)
def _scan(d: Drawing) -> Call:
    x = d.array(1, 3, of="number")
    carry = d.array(shape=d[x].shape[1:], dtype=d[x].dtype)
    rows = ("c + x", "jnp.maximum(c, x)", "c - x", "c[::-1] + x", "jnp.roll(x, 1)")
    carries = rows[: 3 if len(d[x].shape) < 2 else 5]
    return [carry, x], {"carry": d.one_of(carries), "each": d.one_of(carries), "reverse": d.chance(2)}


@operation("scan_collect", "lax.scan(lambda c, _: ((lambda x: {body})(c), c), {0}, None, length={n})[1]", weight=4)
def _scan_collect(d: Drawing) -> Call:
    return [_carried(d)], {"n": d.integer(1, 4), "body": d.one_of(BODIES)}


@operation("map", "lax.map(lambda x: {body}, {0})", weight=5)
def _map(d: Drawing) -> Call:
    return [d.array(2, 3, of="number", where=all)], {"body": d.one_of(BODIES)}


@operation("map_batched", "lax.map(lambda x: x - 1, {0}, batch_size={n})", weight=4)
def _map_batched(d: Drawing) -> Call:
    return [d.array(1, 3, of="number", where=all)], {"n": d.integer(1, 5)}


@operation("vmap", "jax.vmap(lambda x: {body}, in_axes={inner}, out_axes={outer})({0})", weight=6)
def _vmap(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=all)
    return [x], {"inner": d.axis(x), "outer": d.axis(x), "body": d.one_of(BODIES)}


@operation("cond", "lax.cond({1} > {n}, lambda x: {body}, lambda x: {other}, {0})", weight=5)
def _cond(d: Drawing) -> Call:
    which = d.array(shape=(), dtype="int32", data=(-2, 2))
    return [_carried(d), which], {"n": d.integer(-2, 2), "body": d.one_of(BODIES), "other": d.one_of(BODIES)}


@operation(
    "cond_of_value", "lax.cond({0}.sum() > {n}, lambda x: {body}, lambda x: {other}, {0})", weight=4, continuous=False
)
def _cond_of_value(d: Drawing) -> Call:
    x = d.array(of="number", where=all)
    return [x], {"n": d.integer(0, 4), "body": d.one_of(BODIES), "other": d.one_of(BODIES)}


@operation("switch", "lax.switch({1}, [lambda x: {one}, lambda x: {two}, lambda x: {three}], {0})", weight=4)
def _switch(d: Drawing) -> Call:
    which = d.array(shape=(), dtype="int32", data=(-1, 3))
    return [_carried(d), which], {name: d.one_of(BODIES) for name in ("one", "two", "three")}


@operation("vmap_cond", "jax.vmap(lambda x, p: lax.cond(p, lambda x: {body}, lambda x: x * 2, x))({0}, {1})", weight=4)
def _vmap_cond(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=all)
    return [x, d.array(shape=d[x].shape[:1], dtype="bool")], {"body": d.one_of(BODIES)}


@operation(
    "vmap_while",
    "jax.vmap(lambda x, n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + c[0]), (0, x))[1])({0}, {1})",
    weight=4,
)
def _vmap_while(d: Drawing) -> Call:
    x = d.array(1, 2, dtype="int32")
    return [x, d.array(shape=d[x].shape[:1], dtype="int32", data=(0, 4))], {}


@operation("linear_transpose", "*jax.linear_transpose(lambda x: {body}, {0})({0})", weight=5)
def _transposed(d: Drawing) -> Call:
    linear = [body for body in BODIES if not any(w in body for w in ("sort", "maximum", "set(1)", "x - 1"))]
    return [d.array(dtype="float32", where=all)], {"body": d.one_of(linear)}


@operation("linearize", "jax.linearize(lambda x: {body}, {0})[1]({0})", exact=False, weight=3)
def _linearized(d: Drawing) -> Call:
    return [d.array(dtype="float32", where=all)], {"body": d.one_of(BODIES)}


@operation("grad", "jax.grad(lambda x: ({body} * {0}).sum())({0})", exact=False, weight=5)
def _grad(d: Drawing) -> Call:
    return [d.array(dtype="float32", where=all)], {"body": d.one_of(BODIES)}


@operation("jacobian", "jax.{mode}(lambda x: {body})({0})", exact=False, weight=4)
def _jacobian(d: Drawing) -> Call:
    x = d.array(1, 1, dtype="float32", where=all)
    return [x], {"mode": d.one_of(("jacfwd", "jacrev")), "body": d.one_of(BODIES)}


@operation("checkpoint", "jax.checkpoint(lambda x: {body})({0})", weight=1)
def _checkpoint(d: Drawing) -> Call:
    return [_carried(d)], {"body": d.one_of(BODIES)}


@operation("jit", "jax.jit(lambda x: {body})({0})", weight=1)
def _jit(d: Drawing) -> Call:
    return [_carried(d)], {"body": d.one_of(BODIES)}


@operation("custom_jvp", "jax.nn.relu({0})", weight=2)
def _custom(d: Drawing) -> Call:
    return [d.array(of="float")], {}


@operation("vectorize", "jnp.vectorize(lambda x: {body}, signature='(n)->(n)')({0})", weight=2)
def _vectorized(d: Drawing) -> Call:
    return [d.array(1, 3, of="number", where=all)], {"body": d.one_of(BODIES)}


@operation(
    "custom_vjp",
    "(lambda f: (f.defvjp(lambda x: (f(x), x), lambda x, g: (g[::-1] + x,)), f)[1])"
    "(jax.custom_vjp(lambda x: {body}))({0})",
    weight=2,
)
def _custom_vjp(d: Drawing) -> Call:
    return [d.array(of="float", where=all)], {"body": d.one_of(BODIES)}


@operation(
    "checkpoint_policy",
    "jax.grad(lambda x: (jax.checkpoint(lambda x: {body}, policy=jax.checkpoint_policies.{policy})(x)"
    " * {0}).sum())({0})",
    exact=False,
    weight=2,
)
def _checkpoint_policy(d: Drawing) -> Call:
    policies = ("nothing_saveable", "everything_saveable", "dots_saveable")
    return [d.array(dtype="float32", where=all)], {"body": d.one_of(BODIES), "policy": d.one_of(policies)}


@operation("hessian", "jax.hessian(lambda x: ({body} ** 2).sum())({0})", exact=False, weight=2)
def _hessian(d: Drawing) -> Call:
    return [d.array(1, 1, dtype="float32", where=all)], {"body": d.one_of(BODIES)}


@operation(
    "scan_tuple", "*lax.scan(lambda c, x: ((c[1] + x[0], c[0] - x[1]), c[0]), ({0}, {0}), ({1}, {2}))[0]", weight=4
)
def _scan_tuple(d: Drawing) -> Call:
    x = d.array(1, 3, of="ring")
    carry = d.array(shape=d[x].shape[1:], dtype=d[x].dtype)
    return [carry, x, d.array(shape=d[x].shape, dtype=d[x].dtype)], {}


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


@operation(
    "vmap_cond_of_index",
    "jax.vmap(lambda x, i: lax.switch(i, [lambda x: {one}, lambda x: {two}], x))({0}, {1})",
    weight=4,
)
def _vmap_switch(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=all)
    which = d.array(shape=d[x].shape[:1], dtype="int32", data=(-1, 2))
    return [x, which], {name: d.one_of(BODIES) for name in ("one", "two")}


@operation(
    "vmap_scan", "jax.vmap(lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x)[1], in_axes={inner})({0})", weight=4
)
def _vmap_scan(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=all)
    return [x], {"inner": d.axis(x)}


@operation(
    "associative_scan_of_pairs",
    "*lax.associative_scan(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), ({0}, {1}), axis={axis}, reverse={reverse})",
    weight=4,
)
def _recurrence(d: Drawing) -> Call:
    x = d.array(1, 3, dtype="int32", data=(-1, 2), where=all)
    y = d.array(shape=d[x].shape, dtype="int32", data=(-3, 4))
    return [x, y], {"axis": d.axis(x), "reverse": d.chance(2)}


@operation(
    "custom_linear_solve",
    "lax.custom_linear_solve(lambda x: 2 * x, {0}, solve=lambda f, b: b / 2, transpose_solve=lambda f, b: b / 2)",
    weight=1,
)
def _solved_by_own(d: Drawing) -> Call:
    return [d.array(dtype="float32")], {}
