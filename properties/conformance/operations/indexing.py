"""Operations at places that are values: gathers, scatters, and dynamic slices."""

from collections.abc import Sequence

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.parts import Part, array, draws
from shardproof.properties.conformance.operations.table import Call, operation

OFTEN = 8


def _extent(d: Drawing, names: Sequence[str]) -> list[int]:
    shape = d[names[0]].shape
    return [size if d.chance(3) else d.integer(0 if d.chance(9) else min(1, size), size) for size in shape]


def _update(d: Drawing, names: Sequence[str]) -> str:
    return d.array(shape=_extent(d, names), dtype=d[names[0]].dtype)


def _start(d: Drawing, names: Sequence[str]) -> list[int]:
    return [0 if d.chance(2) else d.integer(-size - 1, size + 2) for size in d[names[0]].shape]


def _start_along(dimension: int, *dtypes: str) -> Part:
    """An operand that is the start of a part along a dimension."""
    return lambda d, names: d.array(shape=(), dtype=d.one_of(dtypes), data=(-2, d[names[0]].shape[dimension] + 1))


ROW, COLUMN = _start_along(0, "int32"), _start_along(1, "int32")
operation("dynamic_slice", "lax.dynamic_slice({0}, ({1},), {sizes})", weight=OFTEN)(
    draws(array(1, 1), _start_along(0, "int32", "uint8", "int8"), sizes=_extent)
)
operation("dynamic_slice_2d", "lax.dynamic_slice({0}, ({1}, {2}), {sizes})", weight=OFTEN)(
    draws(array(2, 2), ROW, COLUMN, sizes=_extent)
)
operation("dynamic_slice_constant", "lax.dynamic_slice({0}, {start}, {sizes})", weight=OFTEN)(
    draws(array(), start=_start, sizes=_extent)
)
operation("dynamic_update_slice", "lax.dynamic_update_slice({0}, {1}, ({2},))", weight=OFTEN)(
    draws(array(1, 1), _update, ROW)
)
operation("dynamic_update_slice_2d", "lax.dynamic_update_slice({0}, {1}, ({2}, {3}))", weight=OFTEN)(
    draws(array(2, 2), _update, ROW, COLUMN)
)
operation("dynamic_update_slice_constant", "lax.dynamic_update_slice({0}, {1}, {start})", weight=OFTEN)(
    draws(array(), _update, start=_start)
)


@operation("dynamic_index_in_dim", "lax.dynamic_index_in_dim({0}, {1}, {axis}, keepdims={keep})", weight=5)
def _indexed(d: Drawing) -> Call:
    x = d.array(where=all)
    axis = d.axis(x)
    i = d.array(shape=(), dtype="int32", data=(-2, d[x].shape[axis] + 1))
    return [x, i], {"axis": axis, "keep": d.chance(2)}


def _places(d: Drawing, size: int, mode: str, shape: tuple[int, ...]) -> str:
    inside = mode == "promise_in_bounds"
    return d.array(shape=shape, dtype="int32", data=(0, size - 1) if inside else (-size, size + 1))


@operation("take", "jnp.take({0}, {1}, axis={axis}, mode='{mode}')", weight=OFTEN)
def _taken(d: Drawing) -> Call:
    x = d.array(where=all)
    axis, mode = d.axis(x), d.one_of(("clip", "fill", "wrap"))
    return [x, _places(d, d[x].shape[axis], mode, d.shape(0, 2))], {"axis": axis, "mode": mode}


@operation("take_along_axis", "jnp.take_along_axis({0}, {1}, {axis})", weight=OFTEN)
def _taken_along(d: Drawing) -> Call:
    x = d.array(where=all)
    axis, shape = d.axis(x), list(d[x].shape)
    shape[axis] = d.size()
    return [x, d.array(shape=shape, dtype="int32", data=(0, d[x].shape[axis] - 1))], {"axis": axis}


def _indices(d: Drawing, x: str, along: Sequence[int], mode: str, most: int) -> tuple[list[str], tuple[int, ...]]:
    """Indices along some adjacent dimensions, and the shape of what is there."""
    shape, of = d.shape(1, most), d[x].shape
    return [_places(d, of[i], mode, shape) for i in along], (*of[: along[0]], *shape, *of[along[-1] + 1 :])


for _name, _index, _along, _weight in (
    ("at_get", "{1}", (0,), OFTEN),
    ("at_get_second", ":, {1}", (1,), 5),
    ("at_get_points", "{1}, {2}", (0, 1), 5),
):

    @operation(_name, f"{{0}}.at[{_index}].get(mode='{{mode}}', out_sharding={{to}})", weight=_weight)
    def _got(d: Drawing, along: Sequence[int] = _along) -> Call:
        x = d.array(along[-1] + 1, where=all)
        mode = d.one_of(("clip", "fill", "promise_in_bounds"))
        places, shape = _indices(d, x, along, mode, 2)
        return [x, *places], {"mode": mode, "to": d.out(shape)}


for _name, _how, _index, _dims in (
    *((f"at_{how}", how, "{1}", (0,)) for how in ("set", "add", "max", "min", "multiply")),
    ("at_add_second", "add", ":, {1}", (1,)),
    ("at_add_points", "add", "{1}, {2}", (0, 1)),
):
    _line = f"{{0}}.at[{_index}].{_how}({{{len(_dims) + 1}}}, mode='{{mode}}')"

    @operation(_name, _line, weight=5, continuous=_how == "add")
    def _scattered(
        d: Drawing, along: Sequence[int] = _dims, of: str = "ordered" if _how in ("max", "min") else "ring"
    ) -> Call:
        x = d.array(along[-1] + 1, of=of, where=all)
        mode = d.one_of(("drop", "clip", "promise_in_bounds"))
        places, shape = _indices(d, x, along, mode, 2)
        return [x, *places, d.array(shape=shape, dtype=d[x].dtype)], {"mode": mode}


def _any_place(d: Drawing, names: Sequence[str]) -> str:
    return _places(d, d[names[0]].shape[0], "drop", (1,))


for _how in ("divide", "power", "subtract"):
    operation(f"at_{_how}", f"{{0}}.at[{{1}}].{_how}({{2}})", exact=False, continuous=False, weight=2)(
        draws(
            array(dtype="float32", data=(1, 4), where=all),
            _any_place,
            lambda d, names: d.array(shape=(1, *d[names[0]].shape[1:]), dtype="float32", data=(1, 3)),
        )
    )
operation("at_apply", "{0}.at[{1}].apply(lambda x: x * 2)", continuous=False, weight=2)(
    draws(array(of="number", where=all), _any_place)
)


@operation("at_set_sorted", "{0}.at[jnp.sort({1})].add({2}, indices_are_sorted=True)", weight=4)
@operation("at_set_unique", "{0}.at[jnp.argsort({1})].set({2}, unique_indices=True)", weight=4)
def _scattered_in_order(d: Drawing) -> Call:
    x = d.array(of="ring", where=all)
    size = d[x].shape[0]
    i = d.array(shape=(size,), dtype="int32", data=(0, size - 1))
    return [x, i, d.array(shape=d[x].shape, dtype=d[x].dtype)], {}


@operation("at_add_rows", "{0}.at[{1}, jnp.arange({0}.shape[1])[::-1]].add({2})", weight=4)
@operation("at_get_rows", "{0}[{1}, jnp.arange({0}.shape[1])[::-1]] + {2}", weight=4)
@operation("at_add_ix", "{0}.at[jnp.ix_({1}, {1} % {0}.shape[1])].add({2})", weight=4)
def _scattered_grid(d: Drawing) -> Call:
    x = d.array(2, 2, of="ring", where=all)
    rows, columns = d[x].shape
    i = d.array(shape=(columns,), dtype="int32", data=(0, rows - 1))
    return [x, i, d.array(shape=(), dtype=d[x].dtype)], {}


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


def _slices(d: Drawing, x: str) -> tuple[str, list[int], list[int], list[int]]:
    """Indices of slices, the dimensions that they index, the sizes, and the dimensions that are dropped."""
    shape = d[x].shape
    map_ = d.subset(len(shape))
    sizes = [d.integer(1, size) if i in map_ else size for i, size in enumerate(shape)]
    dropped = [i for i in map_ if sizes[i] == 1 and d.chance(2)]
    return d.array(shape=(d.size(), len(map_)), dtype="int32", data=(-2, max(shape))), map_, sizes, dropped


@operation(
    "gather_slices",
    "lax.gather({0}, {1}, lax.GatherDimensionNumbers({offset}, {collapsed}, {map}), {sizes}, mode='{mode}')",
    weight=OFTEN,
)
def _gathered(d: Drawing) -> Call:
    x = d.array(2, 3, where=all)
    mode = d.one_of(("clip", "fill"))
    i, map_, sizes, collapsed = _slices(d, x)
    offset = list(range(1, 1 + len(sizes) - len(collapsed)))
    return [x, i], {"offset": offset, "collapsed": collapsed, "map": map_, "sizes": sizes, "mode": mode}


@operation(
    "scatter_slices",
    "lax.scatter_{how}({0}, {1}, {2}, lax.ScatterDimensionNumbers({window}, {inserted}, {map}), mode='{mode}')",
    weight=OFTEN,
    continuous=False,
)
def _scattered_slices(d: Drawing) -> Call:
    x = d.array(1, 3, of="number", where=all)
    mode = d.one_of(("clip", "drop"))
    i, map_, sizes, inserted = _slices(d, x)
    held = [size for j, size in enumerate(sizes) if j not in inserted]
    update = d.array(shape=(d[i].shape[0], *held), dtype=d[x].dtype)
    window = list(range(1, 1 + len(held)))
    params = {"window": window, "inserted": inserted, "map": map_, "mode": mode}
    return [x, i, update], {**params, "how": d.one_of(("add", "max", "min", "mul"))}


@operation("vmap_slice", "jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), ({k},)))({0}, {1})", weight=OFTEN)
def _batched_slice(d: Drawing) -> Call:
    x = d.array(2, 2, where=all)
    i = d.array(shape=d[x].shape[:1], dtype="int32", data=(-1, d[x].shape[1] + 1))
    return [x, i], {"k": d.integer(1, d[x].shape[1])}


@operation("vmap_update", "jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i,)))({0}, {1}, {2})", weight=OFTEN)
def _batched_update(d: Drawing) -> Call:
    x = d.array(2, 2, where=all)
    rows, size = d[x].shape
    i = d.array(shape=(rows,), dtype="int32", data=(-1, size + 1))
    return [x, d.array(shape=(rows, d.integer(1, size)), dtype=d[x].dtype), i], {}


@operation("vmap_take", "jax.vmap(lambda x, i: jnp.take(x, i, axis=0, mode='{mode}'))({0}, {1})", weight=OFTEN)
def _batched_take(d: Drawing) -> Call:
    x = d.array(2, 3, where=all)
    mode = d.one_of(("clip", "fill", "wrap"))
    return [x, _places(d, d[x].shape[1], mode, (d[x].shape[0], d.size()))], {"mode": mode}


@operation("vmap_add", "jax.vmap(lambda x, i, u: x.at[i].add(u))({0}, {1}, {2})", weight=OFTEN)
def _batched_add(d: Drawing) -> Call:
    x = d.array(2, 3, of="number", where=all)
    i = _places(d, d[x].shape[1], "drop", (d[x].shape[0], d.size()))
    return [x, i, d.array(shape=(*d[i].shape, *d[x].shape[2:]), dtype=d[x].dtype)], {}
