"""Wide arithmetic: what it claims of a program's roundings is so, is not much too large, and needs no tolerance."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array, lax

from shardproof.oracles.dtypes import exact_limit
from shardproof.properties.engines import simulate
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.meta.brief import marked
from shardproof.properties.precision.wide import DOUBLES, OWN, Rounding, Wide, WideArithmetic
from shardproof.properties.precision.wide.held import together
from shardproof.properties.precision.wide.rounding import WAYS, literal_error, moved
from shardproof.properties.precision.wide.run import run_wide

pytestmark = pytest.mark.untyped  # of scalars NumPy makes other types than the arrays that are annotated

MESH = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
P = jax.P
DTYPES = ("float32", "bfloat16", "float16")
THIRD, SEVENTH = np.float32(1 / 3), np.float32(1 / 7)
Function = Callable[..., Any]


def noisy(x: Array) -> Array:
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
    "unwritten": lambda x, y: jnp.where(x == x, y, lax.empty((4, 4), x.dtype)),
    "sums of gradients": lambda x, y: jax.grad(lambda z: jnp.sum(jnp.sin(z) * z + jnp.tanh(z)))(x),
    "unchecked sums": jax.shard_map(
        lambda x, y: lax.psum(x * y, "tp"), mesh=MESH, in_specs=P("dp", "tp"), out_specs=P("dp", None), check_vma=False
    ),
    "ragged exchange": local(_exchanged),
}


def _singles(x: Array, y: Array) -> tuple[Array, Array]:
    return x.astype(jnp.float32), y.astype(jnp.float32)


def traced(name: str, dtype: str, *, off: bool = True) -> simulate.Simulated:
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


def beyond(plain: list[np.ndarray], wide: list[Wide]) -> list[tuple[int, np.ndarray]]:
    """Where results are further from a wide run than that claims, by the number of the result."""
    found = []
    for i, (result, claim) in enumerate(zip(plain, wide, strict=True)):
        number = result if result.dtype.kind in "biuc" else result.astype(np.float64)
        same = (number == claim.value) | ((number != number) & (claim.value != claim.value))
        with np.errstate(invalid="ignore"):
            apart = np.abs(number.astype(np.complex128) - claim.value)
        wrong = ~same & ~(apart <= claim.error) & ~np.isinf(claim.error)
        if wrong.any():
            found.append((i, np.argwhere(wrong)[0]))
    return found


@pytest.mark.parametrize("dtype", marked(DTYPES, ["bfloat16"]))
@pytest.mark.parametrize("name", PROGRAMS)
@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1.0, 1e-3, 30.0]), off=st.booleans())
def test_no_result_is_further_off_than_is_claimed(name: str, dtype: str, seed: int, scale: float, off: bool) -> None:
    """What the program computes in its own dtypes is within the error of its wide run."""
    program, arrays = prepared(name, dtype, off), drawn(seed, scale, dtype)
    plain, wide = jax.tree.leaves(program.run(*arrays)), run_wide(program, *arrays)
    assert not beyond(plain, wide), (beyond(plain, wide), plain, wide)


ON_DEVICES = ("psum", "pmean", "pmax", "psum_scatter", "exchanges", "softmax", "unchecked sums", "ragged exchange")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {*ON_DEVICES, "unwritten"}))
def test_no_compiled_result_is_further_off_than_is_claimed(name: str, dtype: str) -> None:
    """What XLA makes of the program is within the error of its wide run as well."""

    def function(x: Array, y: Array) -> Any:  # the barrier keeps XLA from adding up constants of both parts
        return PROGRAMS[name](*lax.optimization_barrier((noisy(x), noisy(y))))

    program, compiled = prepared(name, dtype, True), jax.jit(function)
    for seed in range(5):
        for scale in (1.0, 1e-3, 30.0):
            arrays = drawn(seed, scale, dtype)
            results, wide = [np.asarray(r) for r in jax.tree.leaves(compiled(*arrays))], run_wide(program, *arrays)
            assert not beyond(results, wide), (beyond(results, wide), results, wide)


_PREPARED: dict[tuple[str, str, bool], simulate.Simulated] = {}


def prepared(name: str, dtype: str, off: bool) -> simulate.Simulated:
    """The traced program, traced once."""
    if (name, dtype, off) not in _PREPARED:
        _PREPARED[name, dtype, off] = traced(name, dtype, off=off)
    return _PREPARED[name, dtype, off]


def worst(function: Function, shapes: tuple[tuple[int, ...], ...], dtype: str) -> float:
    """How much of the claimed error is seen, in the worst of many draws."""
    most = 0.0
    rng = np.random.default_rng(0)
    program = simulate.prepare(function, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))
    for _ in range(200):
        arrays = [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]
        for plain, wide in zip(jax.tree.leaves(program.run(*arrays)), run_wide(program, *arrays), strict=True):
            claimed = np.where(wide.error > 0, wide.error, np.inf)  # a sum that is zero is exact
            most = max(most, float(np.max(np.abs(plain.astype(np.float64) - wide.value) / claimed)))
    return most


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
def test_the_claim_is_not_much_too_large(function: Function, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    """In the worst of many draws a sum or product is off by a fiftieth of what is claimed, or more."""
    assert worst(function, shapes, dtype) > 1 / 50


def run_of(function: Function, *arrays: Any, rounding: Rounding = OWN) -> list[Wide]:
    """The results of a function in double precision."""
    return run_wide(simulate.prepare(function, *arrays), *arrays, rounding=rounding)


ONES = np.ones(3, np.float32)


def test_what_is_only_moved_has_no_error() -> None:
    """Elements that go elsewhere are what they were."""
    (wide,) = run_of(lambda x: jnp.concatenate([x[::-1], x])[1:], drawn(0, 1.0, "float32")[0])
    assert wide.value.dtype == np.float64
    assert (wide.error == 0).all()


def test_what_waits_behind_a_barrier_is_rounded_where_that_is_charged() -> None:
    """To its own dtype, whatever wider one the rest of the program is charged by; an integer is what it is."""
    x = drawn(0, 1.0, "bfloat16")[0]
    function = lambda x: lax.optimization_barrier((x * x, jnp.int32(3)))  # noqa: E731
    own = Rounding("float32", frozenset({"optimization_barrier"}))
    free, charged = (run_of(function, x, rounding=rounding) for rounding in (Rounding("float32"), own))
    (plain, _), exact = simulate.prepare(function, x).run(x), x.astype(np.float64) ** 2
    off = np.abs(plain.astype(np.float64) - exact)
    assert (off > free[0].error).any()
    assert (off <= charged[0].error).all()
    assert (charged[0].error <= exact * 2.0**-8 * 1.01).all()
    assert not charged[1].error.any()


def test_a_choice_that_rounding_may_change_covers_both() -> None:
    """Where operands are as close as they may be off, what is chosen may be either; elsewhere it is the one."""
    (wide,) = run_of(lambda x: jnp.where(x * THIRD >= np.float32(1) * THIRD, 5.0, 1.0), np.array([1, 2], np.float32))
    np.testing.assert_array_equal(wide.value, [5, 5])
    np.testing.assert_array_equal(wide.error, [4, 0])


def test_of_what_rounding_decides_nothing_is_claimed() -> None:
    """Integers, indices and branches that depend on a rounding are unknown, and so is what they lead to."""
    x = np.array([3, 3, 1], np.float32)

    def function(x: Array) -> Any:
        third = x * THIRD
        index = jnp.argmax(third)
        return (third * 3).astype(jnp.int32), index, x[index], lax.cond(third[0] > third[1], lambda: 1.0, lambda: 2.0)

    whole, index, found, branch = run_of(function, x)
    assert np.isinf(whole.error).all()
    assert np.isinf([index.error, found.error, branch.error]).all()
    (sure,) = run_of(lambda x: jnp.argmin(x * THIRD), x)
    assert (float(sure.value), float(sure.error)) == (2.0, 0.0)


def test_bits_that_come_back_are_the_number_that_they_were() -> None:
    """A number that is off has unknown bits, but is as much off afterwards as it was, and a rounding more."""

    def function(x: Array) -> Any:
        bits = lax.bitcast_convert_type(jnp.exp(x), jnp.int32)
        return (
            bits,
            lax.bitcast_convert_type(bits[::-1], jnp.float32)[::-1],
            lax.bitcast_convert_type(bits + 1, jnp.float32),
        )

    bits, back, changed = run_of(function, ONES)
    assert np.isinf(bits.error).all()
    assert (back.error < 1e-5).all()
    assert np.isinf(changed.error).all()


@pytest.mark.parametrize(
    ("function", "lacks"),
    [
        (lambda x: lax.lgamma(x), "lgamma"),
        (lambda x: lax.while_loop(lambda c: c.sum() * THIRD < 1, lambda c: c * 2, x), "a loop whose end depends"),
        (lambda x: lax.log(lax.complex(x, x)), "log of complex numbers"),
        (lambda x: lax.digamma(x), "digamma"),
    ],
)
def test_what_has_no_rule_is_named(function: Function, lacks: str) -> None:
    """Of an operation whose error nothing says, the interpreter says that."""
    with pytest.raises(InterpreterLimit) as raised:
        run_of(function, ONES)
    assert lacks in raised.value.lacks
    assert "in wide arithmetic" in raised.value.lacks
    assert "test_wide.py" in str(raised.value)


def test_what_cancels_below_the_normal_range_may_be_taken_for_zero() -> None:
    """XLA:CPU does that with a sum of normal numbers that is none itself."""
    x, y = np.array([1.5e-37], np.float32), np.array([-1.49e-37], np.float32)

    def functions(x: Array, y: Array) -> Any:
        rows = jnp.stack([x, y])
        return rows.sum(0), jnp.ones(2, np.float32) @ rows, x + y, jnp.cumsum(rows, 0)[-1]

    plain = [np.asarray(result) for result in jax.jit(functions)(x, y)]
    assert any((one == 0).all() for one in plain)
    wide = run_of(functions, x, y)
    assert not beyond(plain, wide), (plain, wide)
    assert all((one.error > 0).all() and (one.error < 2e-38).all() for one in wide)


def test_doubles_are_charged_as_doubles() -> None:
    """The mathematics is known to the last digits, but for a constant that a number of the source was rounded to."""
    exact, rounded = run_of(lambda x: (jnp.tanh(x * 0.5), x * 0.1), ONES, rounding=DOUBLES)
    assert (exact.error < 1e-14).all()
    assert ((rounded.error > 2e-9) & (rounded.error < 1e-8)).all()
    assert (np.abs(rounded.value - 0.1) < rounded.error).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [1e-5, 0.1, 1 / 3, 1e-3, 0.044715, 2.0**-20 / 3])
def test_a_constant_is_off_by_its_own_rounding(number: float, dtype: str) -> None:
    """What a number of the source was rounded to knows how far it may be, below the normal range as well."""
    constant = np.asarray(number, dtype)
    error = literal_error(constant.astype(np.float64), constant.dtype)
    assert abs(float(constant) - number) <= error
    info = ml_dtypes.finfo(dtype)
    assert error <= max(2 * float(info.eps) * number, float(info.smallest_subnormal))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_of_few_digits_is_what_the_source_has(dtype: str) -> None:
    """Nobody writes 0.1 and finds 0.5."""
    error = literal_error(np.array([0, 0.5, 1, -2, 3, 1.25, np.inf]), np.dtype(dtype))
    assert (error[[0, -1]] == 0).all()
    assert (error[1:-1] == 0).all() == (exact_limit(np.dtype(dtype)) > 2**8)  # 0.999 is 1 in bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_of_constants_is_rounded_as_a_whole(dtype: str) -> None:
    """Where one has many digits, those that have few may have had more; zero is zero."""
    error = literal_error(np.array([0, 0.1, 0.5]).astype(dtype).astype(np.float64), np.dtype(dtype))
    assert ((error > 0) == [False, True, True]).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_constants_are_moved_together(dtype: str, way: int) -> None:
    """By as much as each may have been rounded, a number and its negative the opposite way; a scalar is one still."""
    value = np.array([0.1, -0.1, 0.1, 0.3, 0]).astype(dtype).astype(np.float64)
    found = moved(value, np.dtype(dtype), way)
    assert (np.abs(found - value) == literal_error(value, np.dtype(dtype))).all()
    assert found[0] == -found[1] == found[2]
    assert moved(value[0], np.dtype(dtype), way).shape == ()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_may_be_cast_late(dtype: str) -> None:
    """A number that is made to vary first is of float32 until then, and off by a rounding to what it is cast to."""

    def scaled(x: Array) -> Array:
        return x * lax.pcast(0.1, ("dp", "tp"), to="varying").astype(x.dtype)

    (wide,) = run_of(local(scaled), np.ones((2, 2), dtype), rounding=DOUBLES)
    assert (np.abs(float(np.asarray(0.1, dtype)) - wide.value) <= wide.error).all()
    assert (wide.error <= 0.1 * float(ml_dtypes.finfo(dtype).eps)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_count_may_have_been_rounded(dtype: str) -> None:
    """Beyond what a dtype counts to, its numbers of few digits are near to others: 256 in bfloat16 may be 257."""
    count = int(exact_limit(np.dtype(dtype))) + 1
    held = np.array([count], dtype).astype(np.float64)
    assert held != count
    assert abs(held - count) <= literal_error(held, np.dtype(dtype))


@pytest.mark.parametrize("divisor", [3, 5, 7, 41, 1.5, 2, 8])
def test_a_compiler_divides_by_reciprocals(divisor: float) -> None:
    """A quotient that is exact is rounded all the same, but by a power of two: XLA leaves a little of x - 3 x / 3."""
    x = np.arange(1, 9, dtype=np.float32)

    def nothing(x: Array) -> Array:
        return x - (x * divisor) / divisor

    compiled, (wide,) = np.asarray(jax.jit(nothing)(x)), run_of(nothing, x)
    assert (wide.value == 0).all()
    assert (abs(compiled) <= wide.error).all()
    assert wide.error.any() == (np.frexp(divisor)[0] != 0.5)


def test_narrow_operations_may_be_charged_as_wider_ones() -> None:
    """Charged as float32, a product in bfloat16 is further off than is claimed; a cast that is excepted is not."""
    x = np.asarray([1.015625, 1.0234375], "bfloat16")
    program = simulate.prepare(lambda x: x * x, x)
    (wide,), (plain,) = run_wide(program, x, rounding=Rounding("float32")), [program.run(x)]
    assert (np.abs(plain.astype(np.float64) - wide.value) > wide.error).any()
    own = Rounding("float32", own=frozenset({"convert_element_type"}))
    (cast,) = run_of(lambda x: (x.astype(jnp.float32) ** 2).astype(jnp.bfloat16), x, rounding=own)
    assert (cast.error > 1e-3).all()


def test_a_factor_of_zero_makes_nothing_known() -> None:
    """A product with what nothing is known of is unknown, in a sum of products as well."""
    lowest = float(jnp.finfo(jnp.float32).min)

    def function(x: Array) -> Array:
        p = x + jnp.exp(lowest - x)
        return p @ jnp.array([[0.0], [1.0]], jnp.float32)

    (whole,) = run_of(function, np.ones((1, 2), np.float32))
    assert np.isinf(whole.error).all()


def test_a_replica_is_as_uncertain_as_the_least_certain_one() -> None:
    """Where devices know what they have in common to different digits, whoever gets it knows no more than the least."""
    held = together(np.ones((3, 2)), np.array([[0.0, 0.0], [1e-3, 0.0], [0.0, -1.0]]), np.dtype(np.float32))
    (one,) = WideArithmetic(OWN).replica(held, 0)
    assert one["error"].tolist() == [1e-3, -1.0]
