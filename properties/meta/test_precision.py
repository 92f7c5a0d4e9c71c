"""The judge of precision: samples of roundings cover what is right, and tell it from what is not."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array, lax
from jax.lax import linalg

from shardproof import check
from shardproof.oracles.dtypes import exact_limit, is_float
from shardproof.oracles.layout import nan_equal
from shardproof.properties.engines import simulate
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.meta.brief import marked
from shardproof.properties.meta.test_simulate_windows import numbers
from shardproof.properties.precision import formats
from shardproof.properties.precision.arithmetic import Doubles, Sampled
from shardproof.properties.precision.comparison import size_of
from shardproof.properties.precision.formats import Charges, format_of, literal_error, moved, round_at_random
from shardproof.properties.precision.judge import bound_of
from shardproof.properties.precision.runs import SAMPLES, compute_for_each_reader, fused_products, run_samples
from shardproof.properties.report.diagnosis.changes import run_in_doubles

pytestmark = pytest.mark.untyped  # of scalars NumPy makes other types than the arrays that are annotated

MESH = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
P = jax.P
DTYPES = ("float32", "bfloat16", "float16")
THIRD, SEVENTH = np.float32(1 / 3), np.float32(1 / 7)
Function = Callable[..., Any]
OWN = Charges()


def noisy(x: Any) -> Any:
    """Numbers that are off: of a product and a sum, each rounded."""
    return x * THIRD.astype(x.dtype) + SEVENTH.astype(x.dtype)


BOTH = P("dp", "tp")


def local(function: Function, out: Any = BOTH) -> Function:
    """A function of blocks on four devices."""
    return jax.shard_map(function, mesh=MESH, in_specs=BOTH, out_specs=out)


def sharp(x: Array) -> Array:
    """Numbers in (-1, 1)."""
    return jnp.clip(x / 8, -0.9, 0.9)


def _indices(x: Array) -> Array:
    return jnp.array([2, 0, 2, 1])


def _looped(x: Array) -> Array:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1]) + c[1]), (0, x))[1]


def _scanned(x: Array) -> Any:
    return lax.scan(lambda c, row: (c * row + row, jnp.exp(-c)), x[0], x)


@jax.custom_jvp
def _own(x: Array) -> Array:
    return jnp.sinh(x)


_own.defjvp(lambda primal, tangent: (_own(*primal), jnp.cosh(*primal) * tangent[0]))


def _exchanged(x: Array, y: Array) -> Array:
    """Both devices along an axis exchange their second rows."""
    one, rows = jnp.ones(2, jnp.int32), jnp.arange(2, dtype=jnp.int32)
    me = lax.axis_index("tp").astype(jnp.int32)
    lists = (rows, one, jnp.full(2, 0, jnp.int32) + me, one)
    return lax.ragged_all_to_all(
        x, y, *(lax.pcast(a, _missing(a, ("dp", "tp")), to="varying") for a in lists), axis_name="tp"
    )


def _by_sign(x: Array) -> Array:
    """Devices along an axis take different branches, as their data says; those along the other agree."""
    index = (lax.psum(x.sum(), "tp") > 0).astype(int)
    return lax.switch(index, [lambda x: lax.ppermute(x, "tp", [(0, 1)]), lambda x: x - lax.psum(x, "tp")], x)


def _within(x: Array) -> Any:
    return jax.shard_map(lambda x: x * lax.psum(x, "tp"), in_specs=P(None, "tp"), out_specs=P(None, "tp"))(x)


def _missing(x: Array, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in jax.typeof(x).manual_axis_type.varying)


PROGRAMS: dict[str, Function] = {
    "arithmetic": lambda x, y: (x + y, x - y, x * y, x / y, -x, abs(x), lax.square(x), lax.sign(x)),
    "roots": lambda x, y: (lax.sqrt(abs(x)), lax.rsqrt(abs(x) + 1), lax.cbrt(x), lax.sqrt(x * x)),
    "powers": lambda x, y: (x**3, x**-2, abs(x) ** y, lax.pow(abs(x), 2), lax.integer_pow(x, 0)),
    "exponentials": lambda x, y: (lax.exp(x), lax.exp2(y), lax.expm1(x), lax.logistic(x), lax.tanh(y)),
    "logarithms": lambda x, y: (lax.log(abs(x)), lax.log1p(abs(y)), lax.log(x), jnp.log2(abs(x) + 1)),
    "circular": lambda x, y: (lax.sin(x), lax.cos(y), lax.tan(x), lax.atan(y), lax.atan2(x, y)),
    "hyperbolic": lambda x, y: (lax.sinh(x), lax.cosh(y), lax.asinh(x), lax.acosh(abs(x) + 1)),
    "inverse": lambda x, y: (lax.asin(sharp(x)), lax.acos(sharp(x)), lax.atanh(sharp(y)), lax.erf_inv(sharp(y))),
    "remainders": lambda x, y: (lax.rem(noisy(x), noisy(y)), lax.rem(x * 3, jnp.full_like(y, 0.7)), jnp.mod(x, 2)),
    "errors": lambda x, y: (lax.erf(x), lax.erfc(y)),
    "extremes": lambda x, y: (lax.max(x, y), lax.min(x, y), lax.clamp(-x, y, x), jnp.clip(x, -1, 1)),
    "steps": lambda x, y: (lax.floor(x), lax.ceil(y), lax.round(x), jnp.rint(y), lax.is_finite(x)),
    "comparisons": lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y, (x > 0) & (y < 0), ~(x > y)),
    "choices": lambda x, y: (jnp.where(x > y, x, y * 2), jnp.where(x > 0, 1, 2), jax.nn.relu(x)),
    "sums": lambda x, y: (jnp.sum(x, 0), lax.reduce_sum_p.bind(y, axes=(0, 1), out_sharding=None), lax.cumsum(x)),
    "means": lambda x, y: (jnp.mean(x, 1), jnp.var(y, 0)),
    "products": lambda x, y: (x @ y, jnp.einsum("ij,ij->i", x, y), jnp.vdot(x, y)),
    "preferred": lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32),
    "ragged products": lambda x, y: lax.ragged_dot(x, jnp.stack([y, x]), jnp.array([1, 3])),
    "largest": lambda x, y: (jnp.max(x, 0), jnp.min(y), lax.cummax(x), lax.cummin(y)),
    "orders": lambda x, y: (jnp.sort(x), lax.sort([x, y], num_keys=1), lax.top_k(y, 2)),
    "places": lambda x, y: (jnp.argmax(x, 1), jnp.argmin(y), jnp.argsort(x)),
    "casts": lambda x, y: (
        x.astype(jnp.float32).astype(jnp.bfloat16),
        y.astype(jnp.float16) + 1,
        x.astype(jnp.int32),
        y.astype(bool),
        (x > 0).astype(y.dtype),
        x.astype(jnp.int32).astype(jnp.float16),
        lax.reduce_precision(x.astype(jnp.float32), 8, 7),
    ),
    "barriers": lambda x, y: lax.optimization_barrier((x * y, y.astype(jnp.float16), x > y)),
    "bits": lambda x, y: (
        lax.bitcast_convert_type(lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)[::-1], jnp.float32),
        lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32) >> 3,
    ),
    "complex": lambda x, y: (
        lax.real(lax.complex(*_singles(x, y)) * lax.conj(lax.complex(*_singles(y, x)))),
        lax.imag(jnp.sum(lax.complex(*_singles(x, y)), 0) + lax.complex(*_singles(y, x))[0]),
        lax.real(lax.complex(*_singles(x, y)) @ lax.complex(*_singles(y, y))),
    ),
    "gathers": lambda x, y: (x[_indices(x)], jnp.take(y, jnp.array([0, 9]), mode="fill"), x.at[9].get(mode="clip")),
    "slices": lambda x, y: (
        lax.dynamic_slice_in_dim(x, 1, 2),
        lax.dynamic_update_slice_in_dim(x, y[:1], 2, 0),
        jnp.argmax(x[0]) + lax.dynamic_slice_in_dim(jnp.arange(4), jnp.argmin(y[0]), 1),
    ),
    "scatters": lambda x, y: (
        x.at[_indices(x)].add(y),
        jnp.zeros_like(x).at[jnp.argsort(x[:, 0])].set(y),
        x.at[_indices(x)].subtract(y),
        x.at[jnp.argmax(y[0])].set(0),
    ),
    "loops": lambda x, y: (_looped(x), _scanned(y), lax.fori_loop(0, 2, lambda i, c: c * x, y)),
    "branches": lambda x, y: (
        lax.cond(x[0, 0] > y[0, 0], lambda: x * 2, lambda: y),
        lax.cond(y[1, 1] > 1e-3, lambda: x, lambda: x / 3),
    ),
    "calls": lambda x, y: (jax.jit(lax.sin)(x), jax.checkpoint(lax.cos)(y), _own(x)),
    "movements": lambda x, y: (
        jnp.concatenate([x.T, y.reshape(4, 4)])[::-2],
        jnp.pad(x, 1, constant_values=2),
        jnp.broadcast_to(x[:, None], (4, 2, 4)),
        jnp.arange(4, dtype=x.dtype) * y,
        jnp.flip(x),
    ),
    "psum": local(lambda x, y: (lax.psum(x, ("tp", "dp")), lax.psum(y, "dp")), (P(None, None), P(None, "tp"))),
    "pmean": local(lambda x, y: lax.pmean(jnp.exp(x) * y, "tp"), P("dp", None)),
    "pmax": local(lambda x, y: (lax.pmax(x, "tp"), lax.pmin(x, "tp")), P("dp", None)),
    "psum_scatter": local(lambda x, y: lax.psum_scatter(x * y, "tp", tiled=True)),
    "exchanges": local(
        lambda x, y: (
            lax.ppermute(x, "tp", [(0, 1)]),
            lax.all_gather(y, "dp")[lax.axis_index("dp")],
            lax.all_to_all(x, "tp", 0, 1, tiled=True).reshape(2, 2),
        )
    ),
    "softmax": local(lambda x, y: jax.nn.softmax(x * y)),
    "branches of devices": local(lambda x, y: _by_sign(x * y)),
    "nested": lambda x, y: jax.jit(
        jax.shard_map(_within, mesh=MESH, in_specs=P("dp"), out_specs=P("dp"), axis_names={"dp"})
    )(x * y),
    "unwritten": lambda x, y: jnp.where(x == x, y, lax.empty((4, 4), x.dtype)),
    "sums of gradients": lambda x, y: jax.grad(lambda z: jnp.sum(jnp.sin(z) * z + jnp.tanh(z)))(x),
    "unchecked sums": jax.shard_map(
        lambda x, y: lax.psum(x * y, "tp"), mesh=MESH, in_specs=P("dp", "tp"), out_specs=P("dp", None), check_vma=False
    ),
    "ragged exchange": local(_exchanged),
}


def _singles(x: Array, y: Array) -> tuple[Array, Array]:
    return x.astype(jnp.float32), y.astype(jnp.float32)


def pooled(x: Any) -> Any:
    """Maxima over windows that overlap."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3), (1, 1, 2), "SAME")


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "fft": lambda x: jnp.fft.fftn(lax.complex(x, 2 * x)),
    "ifft": lambda x: jnp.fft.ifft(lax.complex(x, 2 * x)),
    "rfft": jnp.fft.rfft2,
    "irfft": lambda x: jnp.fft.irfft(lax.complex(x, -x)),
    "power": lambda x: jnp.abs(jnp.fft.fft(x) / 7) ** 2,
    "qr": lambda x: linalg.qr(x, full_matrices=False),
    "svd": lambda x: linalg.svd(x, full_matrices=False),
    "lu": linalg.lu,
    "cholesky": lambda x: jnp.linalg.cholesky(products(x)),
    "eigh": lambda x: jnp.linalg.eigh(products(x) + jnp.diag(jnp.arange(4.0) ** 2)),
    "solve": lambda x: jnp.linalg.solve(products(x), x[:, :4]),
    "triangle": lambda x: linalg.triangular_solve(products(x), x, lower=True),
    "reflections": lambda x: linalg.householder_product(jnp.swapaxes(jnp.linalg.qr(x, mode="raw")[0], -1, -2), x[:, 0]),
    "convolution": lambda x: lax.conv_general_dilated(x, x[:, :, :3], (1,), "SAME"),
    "pooling": pooled,
    "gradient of pooling": jax.grad(lambda x: (pooled(x) ** 3).sum()),
    "tangent of pooling": lambda x: jax.jvp(pooled, (x,), (x * x,)),
    "sums of windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 3), (1, 1, 1), "SAME"),
    "products of windows": lambda x: lax.reduce_window(x, 1.0, lax.mul, (1, 2, 3), (1, 1, 1), "SAME"),
    "cumulative": lambda x: [lax.cumprod(x, 1), lax.cumlogsumexp(x, 2, reverse=True), lax.reduce_prod(x, (0, 1))],
    "scattered": lambda x: [x.at[0, jnp.array([1, 1, 0])].max(x[1, :3]), x.at[:, 1].multiply(x[:, 0])],
}


def products(x: Any) -> Any:
    """Definite matrices."""
    return jnp.swapaxes(x, -1, -2) @ x + jnp.eye(x.shape[-1])


@cache
def prepared(name: str, dtype: str, off: bool) -> simulate.Simulated:
    """A program on `[4, 4]` operands, which are computed themselves if they are to be `off`."""
    function = PROGRAMS[name]
    aval = jax.ShapeDtypeStruct((4, 4), dtype)
    return simulate.prepare((lambda x, y: function(noisy(x), noisy(y))) if off else function, aval, aval)


def drawn(seed: int, scale: float, dtype: str) -> list[np.ndarray]:
    """Two arrays of normal numbers, in a tenth of the places equal."""
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((4, 4)) * scale for _ in range(2))
    return [
        x.astype(np.float32).astype(dtype),
        np.where(rng.random((4, 4)) < 0.1, x, y).astype(np.float32).astype(dtype),
    ]


def bounds(
    program: simulate.Simulated, arrays: list[np.ndarray], charges: Charges = OWN
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each result in double precision, and how far off one in the program's own dtypes may be."""
    arithmetic = Doubles()
    doubles = run_samples(program, [arrays], arithmetic, 1)[0]
    samples = run_samples(program, [arrays], Sampled(charges=charges, known=arithmetic.steps), SAMPLES)[0]
    found = []
    for (double,), own, aval in zip(doubles, samples, program.closed_jaxpr.out_avals, strict=True):
        dtype = np.dtype(aval.dtype)
        if is_float(dtype):
            found.append((double, bound_of(double, double, own, dtype, finite=False)))
        else:
            found.append((double, np.where((own != double).any(axis=0), np.inf, 0.0)))
    return found


def beyond(results: list[np.ndarray], known: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    """Where results are further off than that, by the number of the result."""
    found = []
    for i, (result, (double, bound)) in enumerate(zip(results, known, strict=True)):
        number = result.astype(double.dtype)
        with np.errstate(invalid="ignore"):
            apart = np.abs(number.astype(np.complex128) - double)
        right = nan_equal(number, double) | (apart <= np.abs(bound)) | (bound < 0) & ~np.isfinite(number)
        if not right.all():
            found.append((i, np.argwhere(~right)[0]))
    return found


@pytest.mark.parametrize("dtype", marked(DTYPES, ["bfloat16"]))
@pytest.mark.parametrize("name", PROGRAMS)
@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1.0, 1e-3, 30.0]), off=st.booleans())
def test_what_the_interpreter_rounds_is_covered(name: str, dtype: str, seed: int, scale: float, off: bool) -> None:
    """The program's results in its own dtypes are within the samples' bound."""
    program, arrays = prepared(name, dtype, off), drawn(seed, scale, dtype)
    results, known = jax.tree.leaves(program.run(*arrays)), bounds(program, arrays)
    assert not beyond(results, known), (beyond(results, known), results, known)


@pytest.mark.parametrize("name", PROGRAMS)
def test_data_sets_that_are_run_together_have_the_results_that_they_have_alone(name: str) -> None:
    """In double precision, whatever the others hold, and however many steps their loops take."""
    program, sets = prepared(name, "float32", False).live(), [drawn(1, 1.0, "float32"), drawn(2, 100.0, "float32")]
    whole, odd = np.arange(16, dtype=np.float32).reshape(4, 4), np.eye(4, dtype=np.float32)
    sets += [[whole - 7, 0 * whole], [np.where(odd > 0, np.nan, whole), np.where(odd > 0, np.inf, -whole)]]
    for arrays, results in zip(sets, run_samples(program, sets, Doubles(), 1), strict=True):
        for one, other in zip(results, run_in_doubles(program, *arrays), strict=True):
            np.testing.assert_array_equal(one[0], other, strict=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_data_sets_that_are_sampled_together_are_rounded_as_each_is_alone(name: str) -> None:
    """Though devices hold the same numbers in one of them, and another is exact."""
    program = prepared(name, "float32", False).live()
    whole, sets = np.arange(16, dtype=np.float32).reshape(4, 4), [drawn(seed, 1.0, "float32") for seed in (1, 2)]
    sets.insert(1, [whole - 7, 0 * whole])
    together = run_samples(program, sets, Sampled(charges=OWN), SAMPLES)
    for arrays, found in zip(sets, together, strict=True):
        for one, other in zip(found, run_samples(program, [arrays], Sampled(charges=OWN), SAMPLES)[0], strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


ON_DEVICES = (
    *("psum", "pmean", "pmax", "psum_scatter", "exchanges", "softmax", "unchecked sums", "ragged exchange"),
    *("branches of devices", "nested"),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {*ON_DEVICES, "unwritten"}))
def test_what_is_compiled_is_covered(name: str, dtype: str) -> None:
    """The results of XLA are within the samples' bound as well."""

    def function(x: Array, y: Array) -> Any:  # the barrier keeps XLA from adding up constants of both parts
        return PROGRAMS[name](*lax.optimization_barrier((noisy(x), noisy(y))))

    program, compiled = prepared(name, dtype, True), jax.jit(function)
    for seed in range(5):
        for scale in (1.0, 1e-3, 30.0):
            arrays = drawn(seed, scale, dtype)
            results, known = [np.asarray(r) for r in jax.tree.leaves(compiled(*arrays))], bounds(program, arrays)
            assert not beyond(results, known), (beyond(results, known), results, known)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_numerics_are_covered(name: str) -> None:
    """So are transforms, decompositions, convolutions and windows, in float32; and the bound tells something."""
    x = numbers(2, 6, 4)
    program = simulate.prepare(FUNCTIONS[name], x)
    known = bounds(program, [x])
    assert not beyond([np.asarray(r) for r in jax.tree.leaves(jax.jit(FUNCTIONS[name])(x))], known)
    for double, bound in known:
        if double.dtype.kind in "fc":
            assert np.abs(bound).max(initial=0) <= 0.01 * np.abs(double).max(initial=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x + y, ((4,), (4,))),
        (lambda x, y: x * y, ((4,), (4,))),
        (lambda x: x / (x + 3) * x, ((4,),)),
        (lambda x: jnp.sum(x), ((16,),)),
        (lambda x, y: jnp.vdot(x, y), ((8,), (8,))),
        (lambda x, y: (x @ y) @ x, ((3, 3), (3, 3))),
    ],
    ids=["sum", "product", "quotient", "reduction", "inner product", "two products"],
)
def test_the_bound_is_not_much_too_large(function: Function, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    """In the worst of many draws a sum or product is off by a fiftieth of it, or more."""
    rng, most = np.random.default_rng(0), 0.0
    program = simulate.prepare(function, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))
    for _ in range(50):
        arrays = [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]
        results = jax.tree.leaves(program.run(*arrays))
        for result, (double, bound) in zip(results, bounds(program, arrays), strict=True):
            allowed = np.where(bound > 0, bound, np.inf)
            most = max(most, float(np.max(np.abs(result.astype(np.float64) - double) / allowed)))
    assert most > 1 / 50


def bounds_of(function: Function, *arrays: Any, charges: Charges = OWN) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results in double precision, and how far off the function's own may be."""
    return bounds(simulate.prepare(function, *arrays), [*arrays], charges)


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_exact_is_compared_bit_for_bit(dtype: str) -> None:
    """Moved elements, small whole numbers, their sums and products: no sample differs."""
    whole = np.arange(6).reshape(2, 3).astype(dtype)

    def function(x: Array) -> Any:
        return jnp.concatenate([x[::-1], x])[1:], x.sum(), x @ x.T, x * 2 - 1, jnp.where(x > 2, x, -x)

    assert all((bound == 0).all() for _, bound in bounds_of(function, whole))


def test_what_is_beyond_doubles_counts_as_the_largest_of_them() -> None:
    """An exact result in long doubles may be so: it is no infinity, by which nothing else would be known."""
    exact = np.array(["-7.9e308", "1", "inf", "nan"], np.longdouble)
    assert size_of(exact).tolist() == [np.finfo(np.float64).max, 1, 0, 0]


@pytest.mark.parametrize("count", [512, 1024])
def test_a_sum_that_stands_still_is_beyond_any_sample(count: int) -> None:
    """Ones that are counted in bfloat16 stand still at 256: most counts are further off than any sample."""

    def counted(x: Array) -> Array:
        return lax.scan(lambda total, ones: (total + ones, None), jnp.zeros(8, jnp.bfloat16), x)[0]

    ones = np.ones((count, 8), "bfloat16")
    program = simulate.prepare(counted, ones)
    results = jax.tree.leaves(program.run(ones))
    assert (results[0] == 256).all()
    ((_, bound),) = bounds(program, [ones])
    assert (bound < count - 256).sum() >= 5


def test_a_loop_may_end_a_step_earlier_or_later() -> None:
    """Where roundings decide how many steps there are, the samples take as many as they happen to."""

    def halved(x: Array) -> Array:
        return lax.while_loop(
            lambda c: jnp.abs(c[1] - c[0]).max() > 0.125, lambda c: (c[1], (c[1] + 2 / c[1]) / 2), (x, 2 * x)
        )[1]

    for seed in range(8):
        (x, _) = drawn(seed, 1.0, "bfloat16")
        x = np.abs(x) + np.array(1, x.dtype)
        program = simulate.prepare(halved, x)
        assert not beyond([np.asarray(jax.jit(halved)(x))], bounds(program, [x]))


SURPRISING = {
    "a slot that nothing is added to": lambda x: jnp.zeros(3, x.dtype).at[jnp.zeros(x.size, int)].add(x.ravel()),
    "a square less the largest": lambda x: jnp.square(x) - jnp.square(x).max(-1, keepdims=True),
    "a power less the largest": lambda x: x**3 - (x**3).max(-1, keepdims=True),
    "a quotient less the largest": lambda x: (y := x[:, :4] / jnp.sqrt(jnp.asarray(3.0))) - y.max(-1, keepdims=True),
    "an outer product less the largest": lambda x: (y := jnp.einsum("rn,n->rn", x, x[0])) - y.max(-1, keepdims=True),
}


@pytest.mark.parametrize("name", SURPRISING)
def test_what_compilers_do_is_covered(name: str) -> None:
    """XLA adds up in an order of its own, and leaves a product unrounded that it adds to something."""
    x = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    program = simulate.prepare(SURPRISING[name], x)
    double, samples = (
        run_samples(program, [[x]], Doubles(), 1),
        run_samples(program, [[x]], Sampled(charges=OWN, fused=fused_products(program.closed_jaxpr)), SAMPLES),
    )
    ((exact,),), ((own,),) = double, samples
    found = np.asarray(jax.jit(SURPRISING[name])(x))
    assert not beyond([found], [(exact[0], bound_of(exact[0], exact[0], own, found.dtype))])


def test_products_are_left_unrounded_in_program_order() -> None:
    """So that a sample is the same in every run."""
    program = simulate.prepare(lambda x: lax.concatenate([x * n for n in range(9)], 0) + 1, ONES).closed_jaxpr
    products = [id(equation) for equation in program.jaxpr.eqns if equation.primitive.name == "mul"]
    assert fused_products(program) == {id(program.jaxpr.eqns[-1]): [products, []]}


@pytest.mark.parametrize("further", [False, True])
def test_what_is_left_unrounded_differs_between_its_readers(further: bool) -> None:
    """Two kernels compute it for themselves, so that it does not cancel; of one reader nothing is computed again.

    Nor does it cancel by way of another addition, as in the gradient of a Sinkhorn iteration.
    """

    def quotient(x: jax.Array) -> jax.Array:
        first, scaled = jnp.arange(x.shape[-1]) == 0, x / 3
        off = jnp.where(first, scaled - jnp.where(first, scaled, 0).sum(-1, keepdims=True), 0)  # zero, of real numbers
        off = off / 7 + off if further else off
        return (off * x).sum(-1) - x[:, 0] * off.sum(-1)

    x = np.random.default_rng(3).standard_normal((64, 8)).astype(np.float32)
    traced = simulate.prepare(quotient, x)
    for program, moves in ((traced, False), (simulate.Simulated(compute_for_each_reader(traced.closed_jaxpr)), True)):
        sampled = Sampled(charges=OWN, fused=fused_products(program.closed_jaxpr))
        ((samples,),) = run_samples(program, [[x]], sampled, SAMPLES)
        assert (np.abs(samples).max() > 1e-8) == moves
    alone = simulate.prepare(lambda x: (x * 0.7 + 1).sum(), x).closed_jaxpr
    again = simulate.Simulated(compute_for_each_reader(alone)).live().closed_jaxpr
    assert len(again.jaxpr.eqns) == len(alone.jaxpr.eqns)


def test_what_is_close_to_one_is_not_exact() -> None:
    """The exponential of zero is 1, and that of a number that is hardly larger is rounded to it."""
    x = np.array([0, 1e-35, 1e-3], np.float32)
    program = simulate.prepare(jnp.exp, x)
    ((_, bound),) = bounds(program, [x])
    assert bound[0] == 0
    assert (bound[1:] > 0).all()


def test_what_is_exact_stays_exact_beside_what_is_not() -> None:
    """Of data sets that are run together each is rounded by itself."""
    rng = np.random.default_rng(0)
    real, whole = rng.standard_normal((3, 8)).astype(np.float32), rng.integers(-4, 5, (3, 8)).astype(np.float32)
    program = simulate.prepare(lambda x, y, z: x * y + z, *real)
    sampled = Sampled(charges=OWN, fused=fused_products(program.closed_jaxpr))
    (moved,), (still,) = run_samples(program, [list(real), list(whole)], sampled, SAMPLES)
    assert (moved != moved[:1]).any()
    assert (still == still[:1]).all()


def test_a_barrier_rounds_each_to_its_own_dtype() -> None:
    """A number in the same barrier as a narrow one keeps its digits."""
    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    program = simulate.prepare(lambda x: lax.optimization_barrier((x.astype(jnp.bfloat16), x / 3)), x)
    _, (exact, bound) = bounds(program, [x], Charges("float64", frozenset({"optimization_barrier"})))
    assert (np.abs(bound) < 1e-5 * np.abs(exact)).all()


def test_replicas_stay_replicas() -> None:
    """Equal numbers of devices are rounded equally, so that a loop with a collective ends on all of them."""

    def settled(x: Array) -> Array:
        def step(c: Any) -> Any:
            return c[1], lax.pmean(jnp.cos(c[1]) / 3, "dp")

        return lax.while_loop(lambda c: jnp.abs(c[1] - c[0]).max() > 0.01, step, (x, 2 * x))[1][None]

    (x, _) = drawn(1, 1.0, "bfloat16")
    run = jax.shard_map(settled, mesh=MESH, in_specs=P(), out_specs=P(("dp", "tp")), check_vma=False)
    known = Doubles()
    program = simulate.prepare(run, x)
    run_samples(program, [[x]], known, 1)
    ((samples,),) = run_samples(program, [[x]], Sampled(charges=OWN, known=known.steps), SAMPLES)
    assert (samples == samples[:, :1]).all()
    assert (samples != samples[:1]).any()


def test_newton_schulz_is_judged() -> None:
    """An iterated polynomial of matrices in bfloat16, as Muon has it."""

    def iterated(x: Array) -> Array:
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return x

    x = (np.random.default_rng(1).standard_normal((4, 4)) / 4).astype("bfloat16")
    program = simulate.prepare(iterated, x)
    ((_, bound),) = known = bounds(program, [x])
    assert not beyond([np.asarray(jax.jit(iterated)(x))], known)
    assert np.median(bound) < 0.5


def test_a_wrong_term_of_a_millionth_is_found() -> None:
    """In float32, of a sum of a few products."""
    x, y = drawn(3, 1.0, "float32")
    known = bounds_of(lambda x, y: x @ y, x, y)
    wrong = np.asarray(x.astype(float) @ y * (1 + 1e-6), np.float32)
    assert beyond([wrong], known)


@pytest.mark.parametrize("terms", [16, 64])
def test_a_wrong_accumulator_is_found(terms: int) -> None:
    """Terms that are added up in bfloat16, where float32 is right."""

    def added(x: Array) -> Array:
        return lax.scan(lambda total, one: (total + one, None), jnp.zeros((), jnp.bfloat16), x)[0]

    found = 0
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal(terms).astype("bfloat16")
        program = simulate.prepare(added, x)
        found += bool(beyond(jax.tree.leaves(program.run(x)), bounds(program, [x], Charges("float32"))))
    assert found > 10


def test_of_what_rounding_decides_nothing_is_known() -> None:
    """Integers and indices that depend on a rounding are any."""
    close = np.array([1, 1 + 2.0**-22, 0], np.float32)

    def function(x: Array) -> Any:
        return jnp.argmax(x * THIRD * 3), (x * THIRD * 3 > 1).astype(jnp.int32)

    (_, index), (_, larger) = bounds_of(function, close)
    assert np.isinf(index).all()
    assert np.isinf(larger[0])
    assert larger[2] == 0


def test_bits_that_come_back_are_the_number_that_they_were() -> None:
    """A number that is off has other bits, and is as much off afterwards as it was."""

    def function(x: Array) -> Array:
        return lax.bitcast_convert_type(lax.bitcast_convert_type(noisy(x), jnp.int32)[::-1], jnp.float32)

    ((double, bound),) = bounds_of(function, ONES)
    assert ((bound > 0) & (bound < 1e-5)).all()
    assert np.abs(double - noisy(ONES)).max() < 1e-6


def test_what_calls_another_program_is_named() -> None:
    """Of a function outside of JAX nothing is known."""

    def function(x: Array) -> Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(InterpreterLimit, match="pure_callback"):
        run_samples(simulate.prepare(function, ONES), [[ONES]], Doubles(), 1)


@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn"])
def test_a_format_has_the_numbers_of_its_dtype(dtype: str) -> None:
    """A number of the dtype stays what it is; any other becomes one nearby."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(2000) * 4
    own = x.astype(dtype).astype(np.float64)
    to = format_of(np.dtype(dtype))
    assert (round_at_random(own, to, lambda x: rng.random(x.shape)) == own).all()
    rounded = round_at_random(x, to, lambda x: rng.random(x.shape))
    assert (rounded == rounded.astype(dtype).astype(np.float64)).all()
    assert (np.abs(rounded - x) <= 5 * to.unit * np.maximum(np.abs(x), to.smallest / to.unit)).all()
    assert abs(np.mean((rounded - x) / x)) < 4 * to.unit


def test_a_product_of_doubles_is_not_exact_by_coincidence() -> None:
    """One in eight has no more digits than the format in which samples of doubles are rounded."""
    x = np.random.default_rng(0).standard_normal((4, 4096))
    with jax.enable_x64(True):
        program = simulate.prepare(lambda a, b, c, d: a * b + c * d, *x)
    (samples,) = run_samples(program, [[*x]], Sampled(charges=OWN), SAMPLES)[0]
    assert (samples.max(axis=0) > samples.min(axis=0)).all()
    (samples,) = run_samples(program, [[*np.rint(1000 * x)]], Sampled(charges=OWN), SAMPLES)[0]
    assert (samples.max(axis=0) == samples.min(axis=0)).all()


def test_samples_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are rounded in parts, for the caches, are as those that are rounded at once."""
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    x[0, :3] = 1e-42, np.inf, 0
    program = simulate.prepare(lambda x: jnp.exp(x) / (x * x + x) + x.sum() * jnp.where(x > 0, x, 1), x)
    found = []
    for size in (2**15, 7):
        monkeypatch.setattr(formats, "BLOCK", size)
        found.append(run_samples(program, [[x]], Sampled(charges=OWN), SAMPLES)[0][0])
    at_once, in_parts = found
    assert np.array_equal(at_once, in_parts, equal_nan=True)
    assert formats.lowest_bit(np.array([[2**-9, *[1.0] * 20]]), 1).item() == 2**-9


def test_what_is_below_the_normal_numbers_is_zero_in_half_of_the_samples() -> None:
    """A processor may flush it, or not."""
    to, small = format_of(np.dtype("float32")), np.full((1, 3), 1e-40)
    samples = round_at_random(small, to, lambda x: np.full((4, *x.shape[1:]), 0.5), numbers=range(4))
    assert [bool(sample.all()) for sample in samples] == [True, True, False, False]


def test_a_sum_that_is_below_the_normal_numbers_on_its_way_may_be_off_by_one_of_them() -> None:
    """Unless all numbers are multiples of one that is no smaller."""
    program = simulate.prepare(lambda x: x.sum(), ONES)
    smallest = float(np.finfo(np.float32).tiny)
    for x, off in (((2.3, -1.7, 0.44), True), ((4.0, -2.0, 3.0), False)):
        samples = run_samples(
            program, [[np.array(x, np.float32) * np.float32(smallest)]], Sampled(charges=OWN), SAMPLES
        )[0][0]
        assert (np.ptp(samples) > smallest / 2) == off


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0.1, 1e-3, 3.3e-5, 1 / 3])
def test_a_constant_is_off_by_its_own_rounding(number: float, dtype: str) -> None:
    """A rounded number of the source has a bound of how far it may be off."""
    held = np.array(number).astype(dtype)
    assert abs(float(held) - number) <= literal_error(held.astype(np.float64), held.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_constant_of_few_digits_is_what_the_source_has(dtype: str) -> None:
    """Nobody writes 0.1 and finds 0.5."""
    few = np.array([0.5, 1, 2, -3, 0.25, 0, np.inf]).astype(dtype)
    assert (literal_error(few.astype(np.float64), few.dtype) == 0).all()


def test_a_count_may_have_been_rounded() -> None:
    """256 in bfloat16 may be 257."""
    limit = np.array(exact_limit(np.dtype("bfloat16")), np.float64)
    assert literal_error(limit, np.dtype("bfloat16")) > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_constants_are_moved_together(dtype: str) -> None:
    """By up to twice as much as each may have been rounded, a number and its negative the opposite way."""
    held = np.array([0.1, -0.1, 0.1, 0.7]).astype(dtype)
    others = moved(held.astype(np.float64), held.dtype, 8)
    assert others.shape == (8, 4)
    assert (others[:, 0] == -others[:, 1]).all()
    assert (others[:, 0] == others[:, 2]).all()
    assert len(np.unique(others[:, 0])) == 8
    off = literal_error(held.astype(np.float64), held.dtype)
    far = (others - held.astype(np.float64)) / off
    assert (np.abs(far) <= 2).all()
    assert (far.max(axis=0) >= 1).all()  # so that a comparison that the rounding decides falls either way
    assert (far.min(axis=0) <= -1).all()


def test_narrow_operations_may_be_charged_as_wider_ones() -> None:
    """Charged as float32, a product in bfloat16 is further off than is right; a cast that is excepted is not."""
    x, y = drawn(1, 1.0, "bfloat16")
    program = simulate.prepare(lambda x, y: x / y, x, y)
    ((_, known),), ((_, own),) = (bounds(program, [x, y], charges) for charges in (Charges("float32"), OWN))
    assert (own >= known).all()
    assert (own > known).mean() > 0.5


def test_what_no_sample_can_tell_may_be_what_rounding_to_the_nearest_makes() -> None:
    """A step by the root of a small square: where that is rounded to zero, it is far larger than in other samples."""
    x = np.array([6.0, 7.0, 0.5])
    double = 1 / (1 - np.tanh(x) ** 2 + 1e-8)
    nearest = np.array([1e8, 1e8, 1.28])
    others = double + np.array([[-0.99, 0.9, -0.01], [-0.95, -0.9, 0.01], [0.9, 0.95, 0.02]]) * double
    bound = bound_of(double, double, np.stack([nearest, *others]), np.dtype("bfloat16"))
    assert (np.abs(nearest - double) <= np.abs(bound)).tolist() == [True, True, True]
    still = np.array([256.0])  # of 1,024 ones
    counted = np.concatenate([still, 1024 + np.linspace(-90, 90, SAMPLES - 1)])[:, None]
    assert abs(bound_of(still * 4, still * 4, counted, np.dtype("bfloat16"))[0]) < 768


@pytest.mark.parametrize("once", [True, False])
def test_a_device_rounds_its_sum_once(once: bool) -> None:
    """Of a product over devices a device's own sum may be rounded before it is sent, and not whenever it grows."""

    def product(lhs: Array, rhs: Array, axis_name: Any) -> Array:
        wide = jnp.float32 if lhs.dtype in (jnp.bfloat16, jnp.float16) else lhs.dtype
        total = jnp.zeros((*lhs.shape[:-1], rhs.shape[1]), wide if once else lhs.dtype)
        for k in range(lhs.shape[-1]):
            total = (total.astype(wide) + lhs[..., k, None].astype(wide) * rhs[k].astype(wide)).astype(total.dtype)
        return lax.psum(total.astype(lhs.dtype), axis_name)

    with nullcontext() if once else pytest.raises(AssertionError, match=r"value: .* wrong"):
        check("matmul_all_reduce", product, laws="value", max_examples=40)
