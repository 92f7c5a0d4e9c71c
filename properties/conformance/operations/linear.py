"""Products, convolutions, transforms and decompositions."""

from collections.abc import Sequence
from functools import partial

from shardproof.properties.conformance.drawing import Drawing, Unsuited
from shardproof.properties.conformance.operations.parts import array, axis, choice, draws, like, whole
from shardproof.properties.conformance.operations.table import Call, operation

OFTEN = 6


@operation(
    "dot_general",
    "lax.dot_general({0}, {1}, ({contracted}, {batch}), out_sharding={to})",
    weight=OFTEN,
    keeps="product",
)
def _product(d: Drawing) -> Call:
    x = d.array(1, 4, of="ring")
    shape = d[x].shape
    roles = [d.one_of(("free", "contracted", "batch")) for _ in shape]
    contracted = [i for i, role in enumerate(roles) if role == "contracted"]
    batch = [i for i, role in enumerate(roles) if role == "batch"]
    free = [d.size() for _ in range(d.integer(0, 2))]
    dims = [*((shape[i], i) for i in (*contracted, *batch)), *((size, None) for size in free)]
    dims = [dims[i] for i in d.permutation(len(dims))]
    other = d.array(shape=[size for size, _ in dims], dtype=d[x].dtype)
    places = {own: place for place, (_, own) in enumerate(dims) if own is not None}
    out = [*(shape[i] for i in batch), *(shape[i] for i, role in enumerate(roles) if role == "free")]
    to = d.out([*out, *(size for size, own in dims if own is None)])
    pairs = [contracted, [places[i] for i in contracted]], [batch, [places[i] for i in batch]]
    return [x, other], {"contracted": pairs[0], "batch": pairs[1], "to": to}


def _with_unreduced(d: Drawing, *, product: bool) -> Call:
    axis = d.one_of([*d.mesh])
    rows, inner, dtype = d.size(), d.integer(1, 3) * d.mesh[axis], d.one_of(("float32", "bfloat16"))
    x = d.new((rows, inner), dtype, spec=[None, [axis]])
    y = d.new((inner, rows), dtype, spec=[[axis], None])
    how = d.one_of(("x", "x + x", "-x", "x.T", "x * 2", "x.astype('float32')", "x.reshape(-1)"))
    spec = d.layout((rows * rows,) if "reshape" in how and product else (rows, rows)[: 1 + product])
    return [x, y], {"how": how, "unreduced": axis if d.axes == "explicit" else None, "spec": spec}


operation(
    "unreduced_product",
    "put((lambda x: {how})(lax.dot_general({0}, {1}, (([1], [0]), ([], [])), out_sharding={unreduced})), {spec})",
)(partial(_with_unreduced, product=True))
operation(
    "unreduced_sum", "put((lambda x: {how})(lax.reduce_sum({0} * {1}.T, [1], out_sharding={unreduced})), {spec})"
)(partial(_with_unreduced, product=False))


@operation("matmul_batched", "jnp.matmul({0}, jnp.stack([{1}, {1}]))", weight=2)
@operation("tensordot", "jnp.tensordot({0}, {1}, 1)", weight=2)
@operation("matmul", "jnp.matmul({0}, {1})", weight=OFTEN)
def _matmul(d: Drawing) -> Call:
    x = d.array(2, 3, of="ring")
    *_, inner = d[x].shape
    return [x, d.array(shape=(inner, d.size()), dtype=d[x].dtype)], {}


EINSUMS = (
    "ij,jk->ik",
    "ij,kj->ki",
    "bij,bjk->bik",
    "bij,bkj->kib",
    "ij,ij->",
    "ij,ij->j",
    "ij->ji",
    "ij->j",
    "bij->bj",
    "bhqd,bhkd->bhqk",
    "bi,bi->b",
    "bij,bj->bi",
    "bik,bjk->bij",
)
TRACES = ("ii->i", "ii->", "bii->bi", "bii->b", "iij->j", "i,j->ij", "ijk,jk->i", "ij,jk,kl->il", "ij,j->ij")


@operation("einsum", "jnp.einsum('{text}', {all}, out_sharding={to})", weight=OFTEN)
def _einsum(d: Drawing) -> Call:
    text = d.one_of((*EINSUMS, *TRACES))
    sizes = {letter: d.size() for letter in sorted({*text} - {*"->,"})}
    left, _, out = text.partition("->")
    operands = [d.array(shape=[sizes[c] for c in part], dtype="float32") for part in left.split(",")]
    return operands, {"text": text, "to": d.out([sizes[c] for c in out])}


for _name, _template, _weight in (
    ("outer", "jnp.outer({0}, {1})", 1),
    ("kron", "jnp.kron({0}, {1})", 2),
    ("convolve", "jnp.convolve({0}, {1}, mode='full')", 3),
    ("correlate", "jnp.correlate({0}, {1}, mode='same')", 3),
):
    operation(_name, _template, weight=_weight)(draws(*[array(1, 1, dtype="float32", where=all)] * 2))


@operation(
    "conv",
    "lax.conv_general_dilated({0}, {1}, {strides}, {padding}, {base}, {within}, feature_group_count={groups}, "
    "batch_group_count={batches})",
    weight=OFTEN,
)
def _convolution(d: Drawing) -> Call:
    from shardproof.properties.conformance.operations.reducing import window

    spatial = d.integer(1, 2)
    groups = d.one_of((1, 1, 2, 4))
    batches = d.one_of((1, 2, 4)) if groups == 1 and d.chance(3) else 1
    features = groups * d.one_of((1, 1, 2, 4))
    batch = batches * d.one_of((1, 2, 4))
    outs = max(groups, batches) * d.one_of((1, 2, 4))
    shape = tuple(d.one_of((4, 8, 6, 5, 3)) for _ in range(spatial))
    drawn = window(d, shape)
    kernel = [d.integer(1, 4) for _ in shape]
    for i, extent in enumerate(kernel):
        extended = (shape[i] - 1) * drawn["base"][i] + 1 + sum(drawn["padding"][i])
        if (extent - 1) * drawn["within"][i] + 1 > extended:
            kernel[i] = 1
    dtype = d.one_of(("float32", "float32", "bfloat16", "int32"))
    x = d.array(shape=(batch, features, *shape), dtype=dtype, data=(-2, 3))
    w = d.array(shape=(outs, features // groups, *kernel), dtype=dtype, data=(-2, 2))
    params = {key: drawn[key] for key in ("strides", "padding", "base", "within")}
    return [x, w], {**params, "groups": groups, "batches": batches}


@operation(
    "product_in",
    "lax.dot_general({0}, {1}, (([1], [0]), ([], [])), preferred_element_type=jnp.{wide}, out_sharding={to})",
    weight=4,
)
def _product_in(d: Drawing) -> Call:
    narrow, wide = d.one_of(
        (("bfloat16", "float32"), ("int8", "int32"), ("float16", "float32"), ("uint8", "int32"), ("int4", "int32"))
    )
    rows, inner, columns = d.size(), d.size(), d.size()
    operands = [d.array(shape=shape, dtype=narrow) for shape in ((rows, inner), (inner, columns))]
    return operands, {"wide": wide, "to": d.out((rows, columns))}


@operation(
    "conv_channels_last",
    "lax.conv_general_dilated({0}, {1}, {strides}, {padding}, dimension_numbers=('NHWC', 'HWIO', 'NHWC'), "
    "preferred_element_type=jnp.float32)",
    weight=4,
)
@operation(
    "conv_gradient",
    "*jax.grad(lambda x, w: lax.conv_general_dilated(x, w, {strides}, {padding}, dimension_numbers=('NHWC', 'HWIO', "
    "'NHWC')).sum(), (0, 1))({0}, {1})",
    weight=2,
)
@operation(
    "conv_flipped",
    "lax.conv_general_dilated({0}, {1}[::-1], {strides}, {padding}, rhs_dilation=(2, 1), "
    "dimension_numbers=('CWNH', 'HWOI', 'HNWC'))",
    weight=2,
)
def _convolution_of_images(d: Drawing) -> Call:
    channels = d.one_of((1, 2, 4))
    dtype = d.one_of(("float32", "bfloat16"))
    x = d.array(
        shape=(d.one_of((2, 4, 1)), d.one_of((4, 8, 6)), d.one_of((4, 3, 2)), channels), dtype=dtype, data=(-2, 3)
    )
    w = d.array(shape=(d.integer(1, 3), d.integer(1, 2), channels, d.one_of((1, 2, 4))), dtype=dtype, data=(-2, 2))
    return [x, w], {
        "strides": [d.integer(1, 3), d.integer(1, 2)],
        "padding": [[d.integer(0, 2), d.integer(0, 2)], [1, 0]],
    }


@operation("conv_local", "lax.conv_general_dilated_local({0}, {1}, (1,), 'VALID', (2,))", weight=2)
def _unshared_convolution(d: Drawing) -> Call:
    batch, channels, size, out = d.one_of((2, 4)), d.one_of((1, 2)), d.one_of((5, 9, 3)), d.one_of((2, 4))
    x = d.array(shape=(batch, channels, size), dtype="float32", data=(-2, 3))
    return [x, d.array(shape=(out, 2 * channels, size - 1), dtype="float32", data=(-2, 2))], {}


@operation(
    "conv_transpose", "lax.conv_transpose({0}, {1}, {strides}, '{padding}', dimension_numbers=('NCH', 'OIH', 'NCH'))"
)
def _transposed_convolution(d: Drawing) -> Call:
    channels = d.one_of((1, 2, 4))
    x = d.array(shape=(d.one_of((2, 4, 1)), channels, d.one_of((4, 8, 6))), dtype="float32", data=(-2, 3))
    w = d.array(shape=(d.one_of((1, 2, 4)), channels, d.integer(1, 3)), dtype="float32", data=(-2, 2))
    return [x, w], {"strides": [d.integer(1, 3)], "padding": d.one_of(("SAME", "VALID"))}


@operation("conv_patches", "lax.conv_general_dilated_patches({0}, ({k},), ({s},), 'VALID')", weight=2)
def _patches(d: Drawing) -> Call:
    x = d.array(shape=(d.one_of((2, 4)), d.one_of((1, 2, 4)), d.one_of((4, 8, 6))), dtype="float32")
    return [x], {"k": d.integer(1, 3), "s": d.integer(1, 3)}


@operation("fft", "jnp.fft.{which}({0})", exact=False, weight=4)
def _transform(d: Drawing) -> Call:
    which = d.one_of(("fft", "ifft", "rfft", "fft2", "irfft", "fftn", "hfft", "ifftn"))
    rank = 2 if which == "fft2" else 1
    x = d.array(rank, 3, dtype="float32" if which == "rfft" else "complex64", where=all)
    if which in ("irfft", "hfft") and d[x].shape[-1] < 2:
        raise Unsuited
    return [x], {"which": which}


operation("fft_along", "jnp.fft.{which}({0}, n={n}, axis={axis})", exact=False, weight=4)(
    draws(array(dtype="complex64", where=all), which=choice("fft", "ifft"), n=whole(1, 9), axis=axis)
)


def _square(d: Drawing, names: Sequence[str] = ()) -> str:
    """A batch of square matrices."""
    size = d.one_of((4, 2, 3, 6))
    batch = [d.size()] if d.chance(2) else []
    return d.array(shape=[*batch, size, size], dtype="float32", data=(-2, 2))


for _name, _template in (
    ("cholesky", "jnp.linalg.cholesky({0} @ {0}.mT + 9 * jnp.eye({0}.shape[-1]))"),
    ("eigh", "jnp.linalg.eigvalsh({0} + {0}.mT)"),
    ("svd", "jnp.linalg.svd({0}, compute_uv=False)"),
    ("qr", "jnp.abs(jnp.linalg.qr({0} + 9 * jnp.eye({0}.shape[-1]), mode='r'))"),
    ("lu", "*lax.linalg.lu({0} + 9 * jnp.eye({0}.shape[-1]))"),
    ("det", "jnp.linalg.det({0} + 5 * jnp.eye({0}.shape[-1]))"),
    ("inv", "jnp.linalg.inv({0} + 9 * jnp.eye({0}.shape[-1]))"),
    ("slogdet", "*jnp.linalg.slogdet({0} + 9 * jnp.eye({0}.shape[-1]))"),
    ("pinv", "jnp.linalg.pinv({0} + 9 * jnp.eye({0}.shape[-1]))"),
    ("expm", "jax.scipy.linalg.expm({0} / 9)"),
    ("eigh_again", "(lambda w, v: (v * w[..., None, :]) @ v.mT)(*jnp.linalg.eigh({0} + {0}.mT))"),
    ("qr_again", "(lambda q, r: q @ r)(*jnp.linalg.qr({0} + 9 * jnp.eye({0}.shape[-1])))"),
    ("svd_again", "(lambda u, s, v: (u * s[..., None, :]) @ v)(*jnp.linalg.svd({0}))"),
    ("symmetric_product", "lax.linalg.symmetric_product({0}, {0} * 0)"),
):
    operation(_name, _template, exact=False, weight=3)(draws(_square))


@operation(
    "triangular_solve",
    "lax.linalg.triangular_solve({0} + 9 * jnp.eye({0}.shape[-1]), {1}, left_side={left}, lower={lower}, "
    "transpose_a={turned}, unit_diagonal=False)",
    exact=False,
    weight=5,
)
def _solved(d: Drawing) -> Call:
    a = _square(d)
    *batch, size, _ = d[a].shape
    left, other = d.chance(2), d.size()
    b = d.array(shape=[*batch, size, other] if left else [*batch, other, size], dtype="float32", data=(-3, 3))
    return [a, b], {"left": left, "lower": d.chance(2), "turned": d.chance(2)}


for _name, _template, _weight in (
    ("lstsq", "jnp.linalg.lstsq({0} + 9 * jnp.eye({0}.shape[-1]), {1})[0]", 1),
    (
        "cho_solve",
        "jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({0} @ {0}.mT + 9 * jnp.eye({0}.shape[-1])), True), {1})",
        2,
    ),
    ("solve", "jnp.linalg.solve({0} + 9 * jnp.eye({0}.shape[-1]), {1})", 3),
):
    operation(_name, _template, exact=False, weight=_weight)(draws(_square, like(data=(-3, 3))))


@operation(
    "tridiagonal_solve",
    "lax.linalg.tridiagonal_solve({0}.at[..., 0].set(0), {1} + 9, {2}.at[..., -1].set(0), {3})",
    exact=False,
    weight=2,
)
def _tridiagonal(d: Drawing) -> Call:
    shape = (*d.shape(0, 1), d.one_of((3, 4, 6)))
    diagonals = [d.array(shape=shape, dtype="float32", data=(-2, 2)) for _ in range(3)]
    return [*diagonals, d.array(shape=(*shape, d.size()), dtype="float32", data=(-3, 3))], {}


operation("matrix_power", "jnp.linalg.matrix_power({0}, {n})", weight=2)(draws(_square, n=whole(0, 3)))
operation("trace", "jnp.trace({0}, {offset})", weight=2)(draws(array(2, 3, dtype="float32"), offset=whole(-2, 2)))
for _name in ("softmax", "logsumexp"):
    operation(_name, f"jax.nn.{_name}({{0}}, axis={{axis}})", exact=False, weight=2)(
        draws(array(dtype="float32", where=all, data=(-3, 4)), axis=axis)
    )


@operation(
    "ragged_contraction",
    "lax.ragged_dot_general({0}.T, {1}, jnp.array([1, {0}.shape[0] - 1]), "
    "lax.RaggedDotDimensionNumbers((([1], [0]), ([], [])), [1], []))",
    weight=3,
)
def _ragged_contraction(d: Drawing) -> Call:
    rows = d.one_of((4, 8, 6))
    x, y = (d.array(shape=(rows, d.one_of((4, 2, 3))), dtype="float32", data=(-2, 3)) for _ in range(2))
    return [x, y], {}


@operation("ragged_dot", "lax.ragged_dot({0}, {1}, {2})", weight=4)
def _ragged(d: Drawing) -> Call:
    rows, inner, groups = d.one_of((4, 8, 6)), d.one_of((4, 2, 3)), d.one_of((2, 4, 3))
    x = d.array(shape=(rows, inner), dtype="float32", data=(-2, 3))
    w = d.array(shape=(groups, inner, d.one_of((4, 2, 3))), dtype="float32", data=(-2, 3))
    return [x, w, d.array(shape=(groups,), dtype="int32", data=(0, rows // groups))], {}


@operation("attention", "jax.nn.dot_product_attention({0}, {1}, {1}, is_causal={causal})", exact=False, weight=2)
def _attention(d: Drawing) -> Call:
    shape = (d.one_of((2, 4)), d.one_of((4, 6, 8)), d.one_of((2, 4, 1)), d.one_of((2, 4)))
    x, y = (d.array(shape=shape, dtype="float32", data=(-2, 2)) for _ in range(2))
    return [x, y], {"causal": d.chance(2)}


@operation("resize", "jax.image.resize({0}, {shape}, '{method}')", exact=False, weight=3)
def _resized(d: Drawing) -> Call:
    x = d.array(1, 2, dtype="float32", where=all, data=(-3, 4))
    shape = [d.integer(1, 9) for _ in d[x].shape]
    return [x], {"shape": shape, "method": d.one_of(("nearest", "linear"))}
