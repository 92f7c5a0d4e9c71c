"""Functions of jax.numpy and its kin that are programs of several primitives."""

import math

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.parts import array, axis, draws, like
from shardproof.properties.conformance.operations.table import Call, operation

for _name, _template, _of in (
    ("gradient", "jnp.gradient({0}, axis={axis})", "float32"),
    ("trapezoid", "jnp.trapezoid({0}, axis={axis})", "float32"),
    ("unwrap", "jnp.unwrap({0}, axis={axis})", "float32"),
    ("nancumsum", "jnp.nancumsum({0}, {axis})", "float32"),
    ("nanargmax", "jnp.nanargmax({0}, {axis})", "float32"),
    ("quantile", "jnp.quantile({0}, 0.3, axis={axis})", "float32"),
    ("quantiles", "jnp.quantile({0}, jnp.array([0.1, 0.5]), axis={axis}, method='lower')", "float32"),
    ("packbits", "jnp.packbits({0}, {axis})", "bool"),
    ("unpackbits", "jnp.unpackbits({0}, {axis})", "uint8"),
    ("flip_twice", "jnp.flip({0}, {axis})[::-1]", "int32"),
    ("standardize", "jax.nn.standardize({0}, axis={axis})", "float32"),
    ("average", "jnp.average({0}, {axis}, jnp.arange({0}.shape[{axis}]) + 1)", "float32"),
    ("partition", "jnp.sort(jnp.partition({0}, 0, {axis}), {axis})", "int32"),
    ("normalized", "{0} / jnp.linalg.norm({0} + 4, axis={axis}, keepdims=True)", "float32"),
    ("rank", "jnp.argsort(jnp.argsort({0}, {axis}), {axis})", "int32"),
    ("rows_apart", "jnp.apply_along_axis(lambda x: jnp.roll(x, 1), {axis}, {0})", "float32"),
):
    operation(
        _name,
        _template,
        exact=_name not in ("gradient", "trapezoid", "unwrap", "quantile", "standardize", "average", "normalized"),
        continuous=_name in ("gradient", "trapezoid", "nancumsum", "average", "rows_apart", "flip_twice"),
        weight=2,
    )(draws(array(dtype=_of, where=all), axis=axis))


for _name, _template in (
    ("isin", "jnp.isin({0}, {1})"),
    ("digitize", "jnp.digitize({0}, jnp.sort({1}))"),
    ("interp", "jnp.interp({0} + 0.5, jnp.arange({1}.size), {1}.astype('float32'))"),
    ("union1d", "jnp.union1d({0}, {1}, size=5, fill_value=9)"),
    ("intersect1d", "*jnp.intersect1d({0}, {1}, size=4, fill_value=9, return_indices=True)"),
    ("setdiff1d", "jnp.setdiff1d({0}, {1}, size=4, fill_value=9)"),
    ("unique_all", "*jnp.unique_all({0}, size=5, fill_value=9)"),
    ("histogram", "jnp.histogram({0}, bins=4, range=(-3, 5))[0]"),
    ("lexsort", "jnp.lexsort(({0}, {0}[::-1]))"),
    ("searchsorted_vmap", "jax.vmap(lambda x: jnp.searchsorted(jnp.sort({1}), x))({0})"),
    ("polyval", "jnp.polyval({1}, {0})"),
    ("compress", "jnp.compress({0} > 0, {0}, size=4, fill_value=7)"),
    ("fill_diagonal", "jnp.fill_diagonal(jnp.outer({0}, {1}), {1}, inplace=False)"),
    ("toeplitz", "jax.scipy.linalg.toeplitz({0}, {1})"),
    ("ix", "jnp.outer({0}, {1})[jnp.ix_(jnp.arange({0}.size)[::-1], jnp.arange({1}.size) // 2)]"),
    ("where_size", "*jnp.where({0} > 0, size=3, fill_value=-1)"),
):
    operation(_name, _template, continuous=False, weight=2)(
        draws(*[array(1, 1, dtype="int32", where=all, data=(-3, 5))] * (1 + ("{1}" in _template)))
    )


@operation("put_along_axis", "jnp.put_along_axis({0}, {1}, {2}, {axis}, inplace=False)", continuous=False, weight=3)
def _put_along(d: Drawing) -> Call:
    x = d.array(1, 3, of="number", where=all)
    axis, shape = d.axis(x), list(d[x].shape)
    shape[axis] = 1
    places = d.array(shape=shape, dtype="int32", data=(0, d[x].shape[axis] - 1))
    return [x, places, d.array(shape=shape, dtype=d[x].dtype)], {"axis": axis}


@operation("cross", "jnp.cross({0}, {1})", weight=2)
@operation("vecdot", "jnp.vecdot({0}, {1})", weight=1)
def _of_threes(d: Drawing) -> Call:
    shape = (*d.shape(0, 2), 3)
    return [d.array(shape=shape, dtype="float32"), d.array(shape=shape, dtype="float32")], {}


for _name, _template, _weight in (
    ("cov", "jnp.cov({0})", 1),
    ("vander", "jnp.vander({0}[..., 0], 3)", 1),
    ("block", "jnp.block([[{0}, {0} * 2], [-{0}, {0}]])", 2),
    ("rolled_rows", "jax.vmap(jnp.roll)({0}, jnp.arange({0}.shape[0]))", 4),
    ("flat_take", "{0}.reshape(-1)[jnp.arange({0}.size)[::-1] // 2]", 3),
    ("swapped", "{0}.at[jnp.array([0, -1])].set({0}[jnp.array([-1, 0])])", 3),
    ("mixed_index", "{0}[jnp.arange({0}.shape[0]) // 2, ::-1]", 4),
    ("two_indices", "{0}[jnp.arange({0}.shape[0])[:, None] // 2, jnp.arange({0}.shape[1])[::-1]]", 4),
    ("masked", "jnp.where({0} > 0, {0}, {0}[:1] - {0}[:, :1])", 2),
    ("added_to_rows", "{0}.at[:, 0].add({0}[:, -1])", 4),
    ("column_set", "{0}.at[..., -1].set({0}[..., 0])", 4),
):
    operation(_name, _template, exact=_name != "cov", continuous=_name != "masked", weight=_weight)(
        draws(array(2, 2, dtypes=("float32", "int32", "bfloat16"), where=all))
    )


@operation("convolve2d", "jax.scipy.signal.convolve2d({0}, {1}, mode='{mode}')", weight=3)
def _convolved_2d(d: Drawing) -> Call:
    x = d.array(2, 2, dtype="float32", where=all, data=(-2, 3))
    kernel = d.array(shape=[d.integer(1, min(3, n)) for n in d[x].shape], dtype="float32", data=(-2, 2))
    return [x, kernel], {"mode": d.one_of(("full", "same", "valid"))}


@operation(
    "map_coordinates", "jax.scipy.ndimage.map_coordinates({0}, [{1}, {2}], order={order}, mode='{mode}')", exact=False
)
def _at_coordinates(d: Drawing) -> Call:
    x = d.array(2, 2, dtype="float32", where=all)
    shape = d.shape(1, 2)
    places = [d.array(shape=shape, dtype="float32", data=(-2, n + 1)) for n in d[x].shape]
    return [x, *places], {"order": d.integer(0, 1), "mode": d.one_of(("constant", "nearest", "wrap", "mirror"))}


@operation("unravel", "*jnp.unravel_index({0}, {shape})", continuous=False, weight=1)
def _unravelled(d: Drawing) -> Call:
    shape = d.shape(2, 3)
    return [d.array(1, 2, dtype="int32", data=(0, max(0, math.prod(shape) - 1)))], {"shape": [max(1, n) for n in shape]}


for _name, _template in (
    ("select_many", "jnp.select([{0} > 1, {0} < 0], [{0}, {1}], 5)"),
    ("choose", "jnp.choose({0} % 2, [{0}, {1}], mode='wrap')"),
):
    operation(_name, _template, continuous=False, weight=2)(draws(array(dtype="int32"), like()))
