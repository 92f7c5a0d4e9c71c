"""Loops, branches, islands of `shard_map`, and transformations within a program."""

from shardproof.properties.conformance.drawing import Drawing, Unsuited
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


ISLANDS = {
    "each": ("x * 2", False),
    "reversed": ("x[::-1]", False),
    "rolled": ("jnp.roll(x, 1, 0)", False),
    "shifted": ("lax.ppermute(x, '{axis}', [(i, (i + 1) % {count}) for i in range({count})])", False),
    "summed": ("lax.psum(x, '{axis}')", True),
    "greatest": ("lax.pmax(x, '{axis}')", True),
    "indexed": ("x + lax.axis_index('{axis}').astype(x.dtype)", False),
    "gathered": ("lax.all_gather(x, '{axis}', tiled=True)[: x.shape[0]]", False),
    "sorted": ("jnp.sort(x, 0)", False),
    "summed_up": ("x.sum(0, keepdims=True)", False),
}
"""Functions of each device's block `x`, with True if the result is the same on all devices."""


@operation(
    "shard_map",
    "jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=P('{axis}'), out_specs={spec}, axis_names={{'{axis}'}})({0})",
    weight=8,
)
def _island(d: Drawing) -> Call:
    axis = d.one_of([*d.mesh])
    count = d.mesh[axis]
    x = d.array(of="number", where=lambda shape: shape[0] > 0 and shape[0] % count == 0)
    body, replicated = ISLANDS[d.one_of([*ISLANDS])]
    if d[x].shape[0] == 0:
        raise Unsuited
    text = body.replace("{axis}", axis).replace("{count}", str(count))
    return [x], {"body": text, "axis": axis, "spec": [] if replicated else [[axis]]}
