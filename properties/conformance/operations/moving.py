"""Operations that move elements: slices, pads, joins, reshapes, and their kind."""

import math

from shardproof.properties.conformance.drawing import Drawing, Unsuited
from shardproof.properties.conformance.operations.parts import array, axis, choice, dims, draws, like, scalar, whole
from shardproof.properties.conformance.operations.table import Call, operation

OFTEN = 8


@operation("slice", "lax.slice({0}, {start}, {limit}, {strides})", weight=OFTEN)
def _sliced(d: Drawing) -> Call:
    x = d.array()
    start, limit, strides = [], [], []
    for size in d[x].shape:
        start.append(0 if d.chance(2) else d.integer(0, size))
        limit.append(size if d.chance(2) else d.integer(start[-1], size))
        strides.append(1 if d.chance(2) else d.integer(1, max(1, size)))
    return [x], {"start": start, "limit": limit, "strides": strides}


@operation("getitem", "{0}[{start}:{stop}:{step}]", weight=OFTEN)
def _item(d: Drawing) -> Call:
    x = d.array()
    size = d[x].shape[0]
    start, stop = d.integer(-size - 1, size + 1), d.integer(-size - 1, size + 1)
    return [x], {"start": start, "stop": stop, "step": d.one_of((1, -1, 2, -2, 3))}


@operation("split", "*lax.split({0}, {sizes}, {axis})", weight=OFTEN)
def _split(d: Drawing) -> Call:
    x = d.array()
    axis = d.axis(x)
    left = d[x].shape[axis]
    sizes: list[int] = []
    while left and len(sizes) < 3:
        sizes.append(left if len(sizes) == 2 else d.integer(0, left))
        left -= sizes[-1]
    return [x], {"sizes": [*sizes, left] if left or not sizes else sizes, "axis": axis}


@operation("pad", "lax.pad({0}, jnp.array({value}, {0}.dtype), {config})", weight=OFTEN)
def _padded(d: Drawing) -> Call:
    x = d.array()
    config = []
    for size in d[x].shape:
        within = 0 if d.chance(2) else d.integer(0, 3)
        low, high = (0 if d.chance(2) else d.integer(-min(size, 3), 4) for _ in range(2))
        config.append([low, high, within])
    return [x], {"value": d.integer(0, 3), "config": config}


@operation("jnp_pad", "jnp.pad({0}, {widths}, '{mode}')", weight=OFTEN)
def _padded_by_mode(d: Drawing) -> Call:
    x = d.array(1, 2, of="number", where=all)
    widths = [[d.integer(0, 3), d.integer(0, 3)] for _ in d[x].shape]
    return [x], {"widths": widths, "mode": d.one_of(("wrap", "edge", "reflect", "symmetric", "constant"))}


@operation("concatenate", "lax.concatenate([{all}], {axis})", weight=OFTEN)
def _joined(d: Drawing) -> Call:
    x = d.array()
    axis, shape, dtype = d.axis(x), d[x].shape, d[x].dtype
    parts = [x]
    for _ in range(d.integer(1, 2)):
        size = shape[axis] if d.chance(3) else d.size()
        parts.append(x if d.chance(4) else d.array(shape=(*shape[:axis], size, *shape[axis + 1 :]), dtype=dtype))
    return parts if d.chance(2) else parts[::-1], {"axis": axis}


operation("stack", "jnp.stack([{0}, {1}, {0}], {axis})")(
    draws(array(0, 2), like(), axis=lambda d, names: d.integer(0, len(d[names[0]].shape)))
)
operation("unstack", "*jnp.unstack({0}, axis={axis})")(
    draws(array(where=lambda shape: all(0 < size < 7 for size in shape)), axis=axis)
)


@operation("reshape", "lax.reshape({0}, {sizes}, out_sharding={to})", weight=OFTEN, keeps="sizes")
def _reshaped(d: Drawing) -> Call:
    x = d.array(0, 3, where=all)
    left = math.prod(d[x].shape)
    sizes: list[int] = []
    while left > 1 and len(sizes) < 3:
        sizes.append(d.one_of([n for n in range(1, left + 1) if left % n == 0]))
        left //= sizes[-1]
    if left > 1 or not sizes:
        sizes.append(left)
    if d.chance(6):
        sizes.insert(d.integer(0, len(sizes)), 1)
    return [x], {"sizes": sizes, "to": d.out(sizes)}


@operation("merge", "{0}.reshape({sizes})", weight=OFTEN, keeps="sizes")
def _merged(d: Drawing) -> Call:
    x = d.array(2, 4)
    at, shape = d.integer(0, len(d[x].shape) - 2), list(d[x].shape)
    return [x], {"sizes": [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]}


@operation("unmerge", "{0}.reshape({sizes})", weight=OFTEN, keeps="sizes")
def _unmerged(d: Drawing) -> Call:
    x = d.array(1, 3, where=all)
    at, shape = d.axis(x), list(d[x].shape)
    first = d.one_of([n for n in range(1, shape[at] + 1) if shape[at] % n == 0])
    return [x], {"sizes": [*shape[:at], first, shape[at] // first, *shape[at + 1 :]]}


operation("ravel_order", "{0}.reshape(-1, order='F')")(draws(array(2, 3)))


operation("transpose", "lax.transpose({0}, {order})", keeps="order")(
    draws(array(2, 4), order=lambda d, names: d.permutation(len(d[names[0]].shape)))
)
operation("rev", "lax.rev({0}, {dims})", weight=OFTEN)(draws(array(), dims=dims))


@operation("squeeze", "lax.squeeze({0}, {dims})", weight=2)
def _squeezed(d: Drawing) -> Call:
    shape = list(d.shape(1, 2))
    at = d.integer(0, len(shape))
    return [d.array(shape=[*shape[:at], 1, *shape[at:]], dtype="float32")], {"dims": [at]}


operation("expand_dims", "lax.expand_dims({0}, {dims})", weight=2)(
    draws(array(0, 2), dims=lambda d, names: [d.integer(0, len(d[names[0]].shape))])
)


@operation("broadcast_in_dim", "lax.broadcast_in_dim({0}, {shape}, {dims}, out_sharding={to})")
def _broadcast(d: Drawing) -> Call:
    shape = d.shape()
    dims = d.subset(len(shape), 0) if d.chance(2) else [len(shape) - 1]
    own = [1 if d.chance(4) else shape[i] for i in dims]
    return [d.array(shape=own, dtype=d.one_of(("float32", "int32", "bool", "bfloat16")))], {
        "shape": list(shape),
        "dims": dims,
        "to": d.out(shape),
    }


operation("roll", "jnp.roll({0}, {shift}, {axis})", weight=OFTEN)(draws(array(), shift=whole(-9, 9), axis=axis))
operation("roll_by_value", "jnp.roll({0}, {1}, {axis})", weight=4)(draws(array(), scalar(-9, 9), axis=axis))
operation("roll_both", "jnp.roll({0}, {shift}, (0, 1))", weight=4)(
    draws(array(2, 3), shift=lambda d, names: [d.integer(-5, 5), d.integer(-5, 5)])
)
operation("tile", "jnp.tile({0}, {counts})", weight=4)(
    draws(array(1, 2), counts=lambda d, names: [d.integer(1, 3) for _ in range(d.integer(1, 3))])
)
operation("repeat", "jnp.repeat({0}, {count}, {axis})", weight=4)(draws(array(1, 2), count=whole(0, 3), axis=axis))


@operation("repeat_each", "jnp.repeat({0}, {1}, {axis}, total_repeat_length={total})", weight=4)
def _repeated_each(d: Drawing) -> Call:
    x = d.array(1, 2, where=all)
    axis = d.axis(x)
    counts = d.array(shape=(d[x].shape[axis],), dtype="int32", data=(0, 3))
    return [x, counts], {"axis": axis, "total": d.integer(1, 16)}


operation("diagonal", "jnp.diagonal({0}, {offset})", weight=4)(draws(array(2, 3), offset=whole(-3, 3)))
operation("diag", "jnp.diag({0}, {offset})")(draws(array(1, 1), offset=whole(-2, 2)))
operation("moveaxis", "jnp.moveaxis({0}, {start}, {end})", weight=2)(draws(array(2, 4), start=axis, end=axis))
operation("rot90", "jnp.rot90({0}, {k})")(draws(array(2, 3), k=whole(1, 3)))


@operation("shift_add", "{0}.at[{k}:].{how}({0}[:-{k}])", weight=OFTEN)
def _shift_add(d: Drawing) -> Call:
    x = d.array(of="number", where=lambda shape: shape[0] > 1)
    return [x], {"k": d.integer(1, max(1, d[x].shape[0] - 1)), "how": d.one_of(("add", "max", "multiply"))}


operation("diff", "jnp.diff({0}, axis={axis})", weight=4)(draws(array(of="number", where=all), axis=axis))


@operation("delete", "jnp.delete({0}, {i}, axis={axis})")
def _deleted(d: Drawing) -> Call:
    x = d.array(where=all)
    axis = d.axis(x)
    return [x], {"i": d.integer(0, d[x].shape[axis] - 1), "axis": axis}


@operation("insert", "jnp.insert({0}, {i}, {value}, axis={axis})")
def _inserted(d: Drawing) -> Call:
    x = d.array(1, 2, of="number", where=all)
    axis = d.axis(x)
    return [x], {"i": d.integer(0, d[x].shape[axis]), "value": d.integer(0, 3), "axis": axis}


operation("meshgrid", "*jnp.meshgrid({0}, {1}, indexing='{how}')", weight=2)(
    draws(*[array(1, 1, dtype="float32")] * 2, how=choice("xy", "ij"))
)


@operation("interleave", "jnp.stack([{0}, {1}], -1).reshape({sizes})")
def _interleaved(d: Drawing) -> Call:
    x = d.array(1, 2)
    shape = d[x].shape
    return [x, d.array(shape=shape, dtype=d[x].dtype)], {"sizes": [*shape[:-1], 2 * shape[-1]]}


@operation("constrain_twice", "put(lax.optimization_barrier(put({0}, {spec})), {spec})", weight=1)
@operation("constrain", "put({0}, {spec})", weight=6, keeps="spec")
def _constrained(d: Drawing) -> Call:
    x = d.array()
    auto = d.axes == "auto"
    spec = d.layout(d[x].shape, uneven=auto and d.chance(2), choices=auto)
    if "*" in spec and not auto:
        raise Unsuited
    return [x], {"spec": spec}
