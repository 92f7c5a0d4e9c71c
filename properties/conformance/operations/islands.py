"""Islands: parts of a program that `shard_map` runs on each device's blocks, manual along one axis or along all."""

from shardproof.properties.conformance.drawing import Drawing, Unsuited
from shardproof.properties.conformance.operations.table import Call, operation

BODIES = {
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
    "scattered": ("lax.psum_scatter(lax.all_gather(x, '{axis}', tiled=True), '{axis}', tiled=True)", False),
    "exchanged": ("lax.all_to_all(lax.all_gather(x, '{axis}', tiled=True), '{axis}', 0, 0, tiled=True)", False),
    "scanned": ("lax.scan(lambda c, x: (c + x, c), x[0], x)[1]", False),
    "looped": ("lax.fori_loop(0, 2, lambda i, x: jnp.roll(x, i + 1, 0), x)", False),
    "branched": ("lax.cond(lax.axis_index('{axis}') > 0, lambda x: x[::-1], lambda x: x * 2, x)", False),
    "taken": ("jnp.take(x, jnp.arange(x.shape[0])[::-1] - 1, 0, mode='wrap')", False),
    "added_at": ("x.at[jnp.arange(x.shape[0]) // 2].add(x)", False),
    "updated": ("lax.dynamic_update_slice_in_dim(x, x[:1], lax.axis_index('{axis}'), 0)", False),
    "padded": ("jnp.pad(x, [(1, 1)] + [(0, 0)] * (x.ndim - 1), mode='wrap')", False),
    "running": ("jnp.cumsum(x, 0)", False),
    "merged": ("x.reshape(-1)", False),
}
"""Functions of each device's block `x`, with True if the result is the same on all devices."""


def _body(d: Drawing, axis: str) -> tuple[str, bool]:
    text, replicated = BODIES[d.one_of([*BODIES])]
    return text.replace("{axis}", axis).replace("{count}", str(d.mesh[axis])), replicated


@operation(
    "shard_map",
    "jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=P('{axis}'), out_specs={spec}, axis_names={{'{axis}'}})({0})",
    weight=8,
)
@operation(
    "shard_map_manual",
    "jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=P('{axis}'), out_specs={spec})({0})",
    weight=3,
)
@operation(
    "shard_map_replicated",
    "jax.shard_map(lambda x: lax.pcast(x, '{axis}', to='varying') + 0, mesh=mesh, in_specs=P(), out_specs=P('{axis}'), "
    "axis_names={{'{axis}'}})({0})",
    weight=2,
)
@operation(
    "shard_map_unchecked",
    "jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=P('{axis}'), out_specs={spec}, axis_names={{'{axis}'}}, "
    "check_vma=False)({0})",
    weight=4,
)
@operation(
    "shard_map_in_scan",
    "lax.scan(lambda c, _: (c, jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=P('{axis}'), out_specs={spec}, "
    "axis_names={{'{axis}'}})(c)), {0}, None, length=2)[1]",
    weight=3,
)
def _island(d: Drawing) -> Call:
    axis = d.one_of([*d.mesh])
    count = d.mesh[axis]
    x = d.array(of="number", where=lambda shape: shape[0] > 0 and shape[0] % count == 0)
    text, replicated = _body(d, axis)
    return [x], {"body": text, "axis": axis, "spec": [] if replicated else [[axis]]}


@operation(
    "shard_map_columns",
    "jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=P(None, '{axis}'), out_specs=P(None, '{axis}'), "
    "axis_names={{'{axis}'}})({0})",
    weight=5,
)
def _island_of_columns(d: Drawing) -> Call:
    axis = d.one_of([*d.mesh])
    x = d.array(2, 3, of="number", where=lambda shape: 0 not in shape and shape[1] % d.mesh[axis] == 0)
    text, replicated = _body(d, axis)
    if replicated or "reshape" in text:
        raise Unsuited
    return [x], {"body": text, "axis": axis}


@operation(
    "shard_map_product",
    "jax.shard_map(lambda x, y: {body}, mesh=mesh, in_specs=(P({left}), P({right})), out_specs={spec}, "
    "axis_names={{'{axis}'}})({0}, {1})",
    weight=5,
)
def _island_of_two(d: Drawing) -> Call:
    axis = d.one_of([*d.mesh])
    count = d.mesh[axis]
    rows, inner, columns = d.size() * count, d.integer(1, 2) * count, d.size()
    dtype = d.one_of(("float32", "int32", "bfloat16"))
    x, y = d.array(shape=(rows, inner), dtype=dtype), d.array(shape=(inner, columns), dtype=dtype)
    both = f"None, '{axis}'", f"'{axis}'"
    left, right, body, spec = d.one_of((
        (*both, f"lax.psum(x @ y, '{axis}')", []),
        (*both, f"lax.psum_scatter(x @ y, '{axis}', tiled=True)", [[axis]]),
        (both[1], "", "x @ y", [[axis]]),
        (both[1], both[1], f"x @ lax.all_gather(y, '{axis}', tiled=True)", [[axis]]),
        (both[1], "", "jnp.concatenate([x, x[:1]]) @ y", [[axis]]),
    ))  # fmt: skip
    return [x, y], {"left": left, "right": right, "body": body, "axis": axis, "spec": spec}
