"""Operations at places that are values: gathers, scatters, and dynamic slices."""

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.table import Call, operation

OFTEN = 8


def _extent(d: Drawing, shape: tuple[int, ...]) -> list[int]:
    return [size if d.chance(3) else d.integer(0 if d.chance(9) else min(1, size), size) for size in shape]


@operation("dynamic_slice", "lax.dynamic_slice({0}, ({1},), {sizes})", weight=OFTEN)
def _dynamic(d: Drawing) -> Call:
    x = d.array(1, 1)
    start = d.array(shape=(), dtype=d.one_of(("int32", "uint8", "int8")), data=(-2, d[x].shape[0] + 1))
    return [x, start], {"sizes": _extent(d, d[x].shape)}


@operation("dynamic_slice_2d", "lax.dynamic_slice({0}, ({1}, {2}), {sizes})", weight=OFTEN)
def _dynamic_2d(d: Drawing) -> Call:
    x = d.array(2, 2)
    starts = [d.array(shape=(), dtype="int32", data=(-2, size + 1)) for size in d[x].shape]
    return [x, *starts], {"sizes": _extent(d, d[x].shape)}


@operation("dynamic_slice_constant", "lax.dynamic_slice({0}, {start}, {sizes})", weight=OFTEN)
def _dynamic_constant(d: Drawing) -> Call:
    x = d.array()
    start = [0 if d.chance(2) else d.integer(-size - 1, size + 2) for size in d[x].shape]
    return [x], {"start": start, "sizes": _extent(d, d[x].shape)}


@operation("dynamic_update_slice", "lax.dynamic_update_slice({0}, {1}, ({2},))", weight=OFTEN)
def _updated(d: Drawing) -> Call:
    x = d.array(1, 1)
    update = d.array(shape=_extent(d, d[x].shape), dtype=d[x].dtype)
    return [x, update, d.array(shape=(), dtype="int32", data=(-2, d[x].shape[0] + 1))], {}


@operation("dynamic_update_slice_2d", "lax.dynamic_update_slice({0}, {1}, ({2}, {3}))", weight=OFTEN)
def _updated_2d(d: Drawing) -> Call:
    x = d.array(2, 2)
    update = d.array(shape=_extent(d, d[x].shape), dtype=d[x].dtype)
    return [x, update, *(d.array(shape=(), dtype="int32", data=(-2, size + 1)) for size in d[x].shape)], {}


@operation("dynamic_update_slice_constant", "lax.dynamic_update_slice({0}, {1}, {start})", weight=OFTEN)
def _updated_constant(d: Drawing) -> Call:
    x = d.array()
    update = d.array(shape=_extent(d, d[x].shape), dtype=d[x].dtype)
    start = [0 if d.chance(2) else d.integer(-size - 1, size + 2) for size in d[x].shape]
    return [x, update], {"start": start}


@operation("dynamic_index_in_dim", "lax.dynamic_index_in_dim({0}, {1}, {axis}, keepdims={keep})", weight=5)
def _indexed(d: Drawing) -> Call:
    x = d.array(where=lambda shape: all(shape))
    axis = d.axis(x)
    i = d.array(shape=(), dtype="int32", data=(-2, d[x].shape[axis] + 1))
    return [x, i], {"axis": axis, "keep": d.chance(2)}


MODES = ("clip", "fill", "promise_in_bounds")


def _places(d: Drawing, size: int, mode: str, shape: tuple[int, ...]) -> str:
    inside = mode == "promise_in_bounds"
    return d.array(shape=shape, dtype="int32", data=(0, size - 1) if inside else (-size, size + 1))


@operation("take", "jnp.take({0}, {1}, axis={axis}, mode='{mode}')", weight=OFTEN)
def _taken(d: Drawing) -> Call:
    x = d.array(where=lambda shape: all(shape))
    axis, mode = d.axis(x), d.one_of(("clip", "fill", "wrap"))
    return [x, _places(d, d[x].shape[axis], mode, d.shape(0, 2))], {"axis": axis, "mode": mode}


@operation("at_get", "{0}.at[{1}].get(mode='{mode}', out_sharding={to})", weight=OFTEN)
def _got(d: Drawing) -> Call:
    x = d.array(where=lambda shape: all(shape))
    mode = d.one_of(MODES)
    i = _places(d, d[x].shape[0], mode, d.shape(1, 2))
    return [x, i], {"mode": mode, "to": d.out((*d[i].shape, *d[x].shape[1:]))}


@operation("at_get_second", "{0}.at[:, {1}].get(mode='{mode}', out_sharding={to})", weight=5)
def _got_second(d: Drawing) -> Call:
    x = d.array(2, 3, where=lambda shape: all(shape))
    mode = d.one_of(MODES)
    i = _places(d, d[x].shape[1], mode, d.shape(1, 2))
    return [x, i], {"mode": mode, "to": d.out((d[x].shape[0], *d[i].shape, *d[x].shape[2:]))}


@operation("at_get_points", "{0}.at[{1}, {2}].get(mode='{mode}', out_sharding={to})", weight=5)
def _got_points(d: Drawing) -> Call:
    x = d.array(2, 3, where=lambda shape: all(shape))
    mode, shape = d.one_of(MODES), d.shape(1, 2)
    places = [_places(d, size, mode, shape) for size in d[x].shape[:2]]
    return [x, *places], {"mode": mode, "to": d.out((*shape, *d[x].shape[2:]))}


@operation("take_along_axis", "jnp.take_along_axis({0}, {1}, {axis})", weight=OFTEN)
def _taken_along(d: Drawing) -> Call:
    x = d.array(where=lambda shape: all(shape))
    axis, shape = d.axis(x), list(d[x].shape)
    shape[axis] = d.size()
    return [x, d.array(shape=shape, dtype="int32", data=(0, d[x].shape[axis] - 1))], {"axis": axis}


for _how in ("set", "add", "max", "min", "multiply"):

    @operation(f"at_{_how}", f"{{0}}.at[{{1}}].{_how}({{2}}, mode='{{mode}}')", weight=5, continuous=_how == "add")
    def _scattered(d: Drawing, of: str = "ordered" if _how in ("max", "min") else "ring") -> Call:
        x = d.array(of=of, where=lambda shape: all(shape))
        mode = d.one_of(("drop", "clip", "promise_in_bounds"))
        i = _places(d, d[x].shape[0], mode, d.shape(1, 2))
        update = d.array(shape=(*d[i].shape, *d[x].shape[1:]), dtype=d[x].dtype)
        return [x, i, update], {"mode": mode}


for _name, _how in (("divide", "divide"), ("power", "power"), ("subtract", "subtract")):

    @operation(f"at_{_name}", f"{{0}}.at[{{1}}].{_how}({{2}})", exact=False, continuous=False, weight=2)
    def _scattered_otherwise(d: Drawing) -> Call:
        x = d.array(dtype="float32", data=(1, 4), where=lambda shape: all(shape))
        i = _places(d, d[x].shape[0], "drop", (1,))
        return [x, i, d.array(shape=(1, *d[x].shape[1:]), dtype="float32", data=(1, 3))], {}


@operation("at_apply", "{0}.at[{1}].apply(lambda x: x * 2)", continuous=False, weight=2)
def _applied(d: Drawing) -> Call:
    x = d.array(of="number", where=lambda shape: all(shape))
    return [x, _places(d, d[x].shape[0], "drop", (1,))], {}


@operation("at_set_sorted", "{0}.at[jnp.sort({1})].add({2}, indices_are_sorted=True)", weight=4)
@operation("at_set_unique", "{0}.at[jnp.argsort({1})].set({2}, unique_indices=True)", weight=4)
def _scattered_in_order(d: Drawing) -> Call:
    x = d.array(of="ring", where=lambda shape: all(shape))
    size = d[x].shape[0]
    i = d.array(shape=(size,), dtype="int32", data=(0, size - 1))
    return [x, i, d.array(shape=d[x].shape, dtype=d[x].dtype)], {}


@operation("at_add_rows", "{0}.at[{1}, jnp.arange({0}.shape[1])[::-1]].add({2})", weight=4)
@operation("at_get_rows", "{0}[{1}, jnp.arange({0}.shape[1])[::-1]] + {2}", weight=4)
@operation("at_add_ix", "{0}.at[jnp.ix_({1}, {1} % {0}.shape[1])].add({2})", weight=4)
def _scattered_grid(d: Drawing) -> Call:
    x = d.array(2, 2, of="ring", where=lambda shape: all(shape))
    rows, columns = d[x].shape
    i = d.array(shape=(columns,), dtype="int32", data=(0, rows - 1))
    return [x, i, d.array(shape=(), dtype=d[x].dtype)], {}


@operation("at_add_second", "{0}.at[:, {1}].add({2}, mode='{mode}')", weight=5)
def _added_second(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=lambda shape: all(shape))
    mode = d.one_of(("drop", "clip"))
    i = _places(d, d[x].shape[1], mode, d.shape(1, 1))
    update = d.array(shape=(d[x].shape[0], *d[i].shape, *d[x].shape[2:]), dtype=d[x].dtype)
    return [x, i, update], {"mode": mode}


@operation("at_add_points", "{0}.at[{1}, {2}].add({3}, mode='{mode}')", weight=5)
def _added_points(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=lambda shape: all(shape))
    mode, shape = d.one_of(("drop", "clip")), d.shape(1, 1)
    places = [_places(d, size, mode, shape) for size in d[x].shape[:2]]
    return [x, *places, d.array(shape=(*shape, *d[x].shape[2:]), dtype=d[x].dtype)], {"mode": mode}


@operation("at_set_slice", "{0}.at[{start}:{stop}:{step}].{how}({value})", weight=OFTEN)
def _slice_set(d: Drawing) -> Call:
    x = d.array(of="number")
    size = d[x].shape[0]
    bounds = d.integer(0, size), d.integer(0, size + 1)
    how = d.one_of(("set", "add", "multiply", "max"))
    return [x], {
        "start": min(bounds),
        "stop": max(bounds),
        "step": d.integer(1, 3),
        "how": how,
        "value": d.integer(0, 3),
    }


@operation("at_set_slice_of", "{0}.at[{start}:{stop}].{how}({1})", weight=OFTEN)
def _slice_set_of(d: Drawing) -> Call:
    x = d.array(of="number")
    size = d[x].shape[0]
    bounds = sorted((d.integer(0, size), d.integer(0, size)))
    update = d.array(shape=(bounds[1] - bounds[0], *d[x].shape[1:]), dtype=d[x].dtype)
    return [x, update], {"start": bounds[0], "stop": bounds[1], "how": d.one_of(("set", "add", "max"))}


@operation("one_hot", "jax.nn.one_hot({0}, {count}, dtype=jnp.{dtype}, axis={axis})", weight=2)
def _one_hot(d: Drawing) -> Call:
    x = d.array(1, 2, dtype="int32", data=(-1, 8))
    axis = d.integer(0, len(d[x].shape))
    return [x], {"count": d.size(), "dtype": d.one_of(("float32", "int32", "bfloat16")), "axis": axis}


@operation(
    "gather_slices",
    "lax.gather({0}, {1}, lax.GatherDimensionNumbers({offset}, {collapsed}, {map}), {sizes}, mode='{mode}')",
    weight=OFTEN,
)
def _gathered(d: Drawing) -> Call:
    x = d.array(2, 3, where=lambda shape: all(shape))
    shape, mode = d[x].shape, d.one_of(("clip", "fill"))
    map_ = d.subset(len(shape))
    sizes = [d.integer(1, size) if i in map_ else size for i, size in enumerate(shape)]
    collapsed = [i for i in map_ if sizes[i] == 1 and d.chance(2)]
    count = d.size()
    i = d.array(shape=(count, len(map_)), dtype="int32", data=(-2, max(shape)))
    offset = list(range(1, 1 + len(shape) - len(collapsed)))
    return [x, i], {"offset": offset, "collapsed": collapsed, "map": map_, "sizes": sizes, "mode": mode}


@operation(
    "scatter_slices",
    "lax.scatter_{how}({0}, {1}, {2}, lax.ScatterDimensionNumbers({window}, {inserted}, {map}), mode='{mode}')",
    weight=OFTEN,
    continuous=False,
)
def _scattered_slices(d: Drawing) -> Call:
    x = d.array(1, 3, of="number", where=lambda shape: all(shape))
    shape, mode = d[x].shape, d.one_of(("clip", "drop"))
    map_ = d.subset(len(shape))
    sizes = [d.integer(1, size) if i in map_ else size for i, size in enumerate(shape)]
    inserted = [i for i in map_ if sizes[i] == 1 and d.chance(2)]
    count = d.size()
    i = d.array(shape=(count, len(map_)), dtype="int32", data=(-2, max(shape)))
    held = [size for j, size in enumerate(sizes) if j not in inserted]
    update = d.array(shape=(count, *held), dtype=d[x].dtype)
    window = list(range(1, 1 + len(held)))
    params = {"window": window, "inserted": inserted, "map": map_, "mode": mode}
    return [x, i, update], {**params, "how": d.one_of(("add", "max", "min", "mul"))}


@operation("vmap_slice", "jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), ({k},)))({0}, {1})", weight=OFTEN)
def _batched_slice(d: Drawing) -> Call:
    x = d.array(2, 2, where=lambda shape: all(shape))
    i = d.array(shape=d[x].shape[:1], dtype="int32", data=(-1, d[x].shape[1] + 1))
    return [x, i], {"k": d.integer(1, d[x].shape[1])}


@operation("vmap_update", "jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i,)))({0}, {1}, {2})", weight=OFTEN)
def _batched_update(d: Drawing) -> Call:
    x = d.array(2, 2, where=lambda shape: all(shape))
    rows, size = d[x].shape
    i = d.array(shape=(rows,), dtype="int32", data=(-1, size + 1))
    return [x, d.array(shape=(rows, d.integer(1, size)), dtype=d[x].dtype), i], {}


@operation("vmap_take", "jax.vmap(lambda x, i: jnp.take(x, i, axis=0, mode='{mode}'))({0}, {1})", weight=OFTEN)
def _batched_take(d: Drawing) -> Call:
    x = d.array(2, 3, where=lambda shape: all(shape))
    mode = d.one_of(("clip", "fill", "wrap"))
    return [x, _places(d, d[x].shape[1], mode, (d[x].shape[0], d.size()))], {"mode": mode}


@operation("vmap_add", "jax.vmap(lambda x, i, u: x.at[i].add(u))({0}, {1}, {2})", weight=OFTEN)
def _batched_add(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=lambda shape: all(shape))
    i = _places(d, d[x].shape[1], "drop", (d[x].shape[0], d.size()))
    return [x, i, d.array(shape=(*d[i].shape, *d[x].shape[2:]), dtype=d[x].dtype)], {}
