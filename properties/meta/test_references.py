"""Users' references in doubles: their values, their derivatives, and where these are not known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from shardproof import check_program
from shardproof.oracles.dtypes import as_dtype
from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.described import Array, Signature, at_least, indices
from shardproof.properties.contracts.drawing import Given
from shardproof.properties.contracts.roles import Conditions, sizes_of_dimensions
from shardproof.properties.meta.drawn import drawn, smallest
from shardproof.properties.references import JaxReference, NumpyReference, reference_of
from shardproof.properties.references.kinds import aside, differences

BLOCK = Signature.of(("x", "w"), ("b@data k", "k n"), {"y": "b@data n", "total": ""})
SIZES = {"b": 4, "k": 3, "n": 2}
FLOATS = (np.dtype("float32"), np.dtype("float32"))


def numpy_block(x: Any, w: Any) -> Any:
    """A smooth function of two matrices."""
    y = np.tanh(x @ w)
    return {"y": y, "total": np.sum(y * y)}


def jax_block(x: Any, w: Any) -> Any:
    """The same, with casts that doubles ignore."""
    y = jnp.tanh((x @ w).astype(jnp.float32))
    return {"y": y, "total": jnp.sum(y * y)}


def arrays(seed: int) -> list[np.ndarray]:
    """Numbers of float32, as doubles."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32).astype(np.float64) for shape in ((4, 3), (3, 2))]


def test_references_are_distinguished() -> None:
    """A reference that JAX can trace is run in wide arithmetic, and any other is NumPy's."""
    assert isinstance(reference_of(jax_block, BLOCK, SIZES, {}), JaxReference)
    assert isinstance(reference_of(numpy_block, BLOCK, SIZES, {}), NumpyReference)


@pytest.mark.lengthy
@given(seed=st.integers(0, 2**16))
def test_both_kinds_agree_on_values_and_derivatives(seed: int) -> None:
    """To as many digits as are claimed of them."""
    xs, (dx, dw), (cy, ct) = arrays(seed), arrays(seed + 1), arrays(seed + 2)
    cts = [np.float64(ct.flat[0]), np.resize(cy, (4, 2))]  # the leaves of a dict are in the order of its keys
    ours, theirs = JaxReference(jax_block, BLOCK), NumpyReference(numpy_block, BLOCK)
    exact, rough = ours.doubt[0], theirs.doubt[1]
    for one, other in zip(ours.value(xs, FLOATS, {}), theirs.value(xs, FLOATS, {}), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=exact * max(1, np.abs(other).max()))
    pushed = [r.pushforward(xs, {0: dx, 1: dw}, FLOATS, {}) for r in (ours, theirs)]
    pulled = [r.pullback(xs, [np.asarray(c) for c in cts], (0, 1), FLOATS, {}) for r in (ours, theirs)]
    for one, other in (*zip(*pushed, strict=True), *zip(*pulled, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=rough * max(1, np.abs(one).max()))


ZERO = np.zeros(1)

FUNCTIONS: dict[str, Any] = {
    "power": lambda t: np.exp(3 * t),
    "quotient": lambda t: np.sin(t) / (2 + t),
    "kink": np.abs,
    "kink nearby": lambda t: np.maximum(t - 1e-4, 0),
    "kink between": lambda t: np.maximum(t - 5e-4, 0),
    "kink at the end": lambda t: np.maximum(t - 9e-4, 0),
    "bend": lambda t: t * np.maximum(t, 0),
    "step": np.floor,
}


@pytest.mark.parametrize(("name", "known"), [(name, name in ("power", "quotient")) for name in FUNCTIONS])
def test_what_is_not_smooth_is_not_known(name: str, known: bool) -> None:
    """A kink is noticed wherever it lies within the steps."""
    (found,) = differences(lambda step, number: [np.array([FUNCTIONS[name](aside(ZERO, number)[0] + step)])], 2.0**-9)
    assert np.isfinite(found[0]) == known


def test_what_looks_smooth_along_a_line_is_not_known() -> None:
    """The second of three equal elements is that in the middle, whichever way the three go."""
    x, way = np.array([1.0, 1.0, 1.0, 2.0]), np.array([0.3, 0.1, 0.7, 1.0])
    (found,) = differences(lambda step, number: [np.sort(aside(x, number) + step * way)], 2.0**-9)
    np.testing.assert_array_equal(np.isfinite(found), [False, False, False, True])


def test_options_reach_a_reference() -> None:
    """They are part of what is traced."""
    reference = JaxReference(lambda x, w, factor: {"y": factor * (x @ w), "total": jnp.sum(x)}, BLOCK)
    xs = arrays(0)
    for factor in (2.0, 3.0):
        np.testing.assert_allclose(reference.value(xs, FLOATS, {"factor": factor})[1], factor * (xs[0] @ xs[1]), 1e-12)


def test_results_of_numpy_keep_their_imaginary_parts() -> None:
    """Where the dtype of a case is a complex one; nothing is known of their gradients."""
    x, dtypes = np.array([1 + 2j, 3 - 1j]), (np.dtype("complex64"),)
    reference = NumpyReference(lambda x: x * np.conj(x) * x, Signature.of(("x",), ("n",), "n"))
    (found,) = reference.value([x], dtypes, {})
    np.testing.assert_allclose(found, x * np.conj(x) * x, rtol=1e-15)
    (pulled,) = reference.pullback([x], [x], (0,), dtypes, {})
    assert (pulled.dtype, np.isnan(pulled).all()) == (x.dtype, True)


@pytest.mark.parametrize(
    ("described", "dtype", "options", "message"),
    [
        ("a b!", "float", {}, "'b!': expected NAME, NAME@ROLE, NAME@ROLE@ROLE, @ROLE, or a size"),
        ("0 a", "float", {}, "'0': expected"),
        ("a@x b@x", "float", {}, "expected each role to shard one dimension at most"),
        ("n", "float", {"below": "n"}, "below='n': expected a dimension or a positive size, of integers"),
        ("n", "float", {"upto": "n"}, "upto='n': expected a dimension or a positive size, of integers"),
        ("n", "int32", {"below": 3, "upto": "n"}, "below=3, upto='n': expected one of them"),
        ("n", "int32", {"also": -1}, r"also=\(-1,\): expected below= or upto= besides"),
        ("n", "float", {"least": "0"}, "least='0': expected a number, such as 0"),
        ("n", "int32", {"least": 1, "below": "n"}, "least=1 with below='n': indices begin at 0"),
        ("n", "complex64", {"least": 0}, "least=0 of complex64: expected a finite number"),
        ("n", "uint8", {"below": 3, "also": (-1, 256)}, r"also=\(-1, 256\): expected integers of uint8"),
    ],
)
def test_what_describes_no_array_is_refused(described: str, dtype: str, options: dict[str, Any], message: str) -> None:
    """In one line, as are ranges of floats, and numbers that no array of such a dtype can hold."""
    with pytest.raises(ValueError, match=message):
        Array(described, dtype, **options)


@given(size=st.integers(60, 100), below=st.integers(1, 9), seed=st.integers(-9, 9))
def test_indices_are_in_range_and_all_are_met(size: int, below: int, seed: int) -> None:
    """Numbers that mark padding are a sixth to a half of all, and each of several is met."""
    plain, padded = (indices(np.full((size,), seed, np.int32), below, also) for also in ((), (-1, -100)))
    assert plain.min() >= 0
    assert plain.max() < below
    assert len(set(plain.tolist())) == below or 31 % below == 0
    assert set(padded.tolist()) - {*range(below)} == {-1, -100}
    assert size / 6 < np.sum(padded < 0) < size / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), least=st.sampled_from([0, 0.5, 7]))
def test_no_number_is_smaller_than_the_least(values: list[int], least: float, dtype: str) -> None:
    """Those that are none stay what they are."""
    given = np.array(values).astype(as_dtype(dtype))
    found, number = at_least(given, least), np.asarray(least, given.dtype)
    assert (found >= number).all()
    assert (found == given)[given >= number].all()
    assert found.dtype == given.dtype


def test_a_variance_is_no_negative_number() -> None:
    """A program that takes its root is held, and gives no NaN."""

    def normed(x: Any, variance: Any, *, data: Any) -> Any:
        return x / jnp.sqrt(variance + 1) + 0 * lax.axis_index(data)

    def checked_norm(x: Any, variance: Any) -> Any:
        assert (np.asarray(variance) >= 0).all()
        return np.asarray(x) / np.sqrt(np.asarray(variance) + 1)

    described = ("n@data", Array("n@data", least=0))
    check_program(normed, checked_norm, arguments=described, results="n@data", laws="value", max_examples=6)


@pytest.mark.lengthy
def test_a_length_may_be_that_of_the_whole_dimension() -> None:
    """And a program that is wrong there alone is reported."""

    def masked(x: Any, lengths: Any, *, data: Any) -> Any:
        del data
        within = jnp.arange(x.shape[1]) < lengths[:, None] % x.shape[1]
        return jnp.where(within, x, 0)

    def reference(x: Any, lengths: Any) -> Any:
        return jnp.where(jnp.arange(x.shape[1]) < lengths[:, None], x, 0)

    def checked(**options: Any) -> Any:
        arguments = ("batch@data time", Array("batch@data", "int32", **options))
        return check_program(
            masked, reference, arguments=arguments, results="batch@data time", laws=("value",), max_examples=20
        )

    checked(below="time")
    with pytest.raises(AssertionError, match="1 of 1 blocks wrong"):
        checked(upto="time")


def branching(x: Any) -> Any:
    """In JAX, and not to be traced."""
    return jnp.exp(x) / 3 if float(jnp.abs(x).max()) < 1e9 else x


def test_what_jax_cannot_trace_is_evaluated_in_doubles() -> None:
    """A reference in JAX with a branch in Python is no worse for it."""
    signature = Signature.of(("x",), ("n@data",), "n@data")
    found = reference_of(branching, signature, {"n": 3}, {})
    assert isinstance(found, NumpyReference)
    x = np.array([0.1, 1.0, 2.0])
    (value,) = found.value([x], [np.dtype("float32")], {})
    np.testing.assert_allclose(value, np.exp(x) / 3, rtol=1e-14)


def sorted_approximately(x: Any) -> Any:
    """The maximum of a cast, by a primitive that the interpreter has no rule for."""
    return lax.approx_max_k(x.astype(jnp.float32), x.shape[0])[0]


def test_a_cast_that_would_round_is_refused() -> None:
    """A compiled reference casts for real; the message says what to leave out."""
    signature = Signature.of(("x",), ("n@data",), "n@data")
    with pytest.raises(ValueError, match=r"^the reference casts to float32, .* cannot run .*: expected no cast$"):
        reference_of(sorted_approximately, signature, {"n": 3}, {})


def sampled(x: Any, key: Any) -> Any:
    """A sample in the dtype of its source."""
    return x + jax.random.gamma(jax.random.wrap_key_data(key), 2.0, (3,), jnp.float32)


def test_a_reference_that_takes_a_sample_is_refused_with_a_remedy() -> None:
    """By the name of the argument for what is right up to a relation."""
    signature = Signature.of(("x", "key"), ("@data 3", Array("2", "uint32")), "@data 3")
    with pytest.raises(ValueError, match=r"cannot run random_gamma: .*, or holds= in its place$"):
        reference_of(sampled, signature, {}, {})


def test_indices_are_tried_where_there_is_one() -> None:
    """A table of one row is read there; a mistake of a reference in NumPy is reported as such."""
    signature = Signature.of(("t", "i"), ("v d", Array("n@data", "int32", below="v")), "n d")
    found = reference_of(lambda t, i: np.stack([t[int(k)] for k in i]), signature, {"v": 1, "d": 2, "n": 2}, {})
    assert isinstance(found, NumpyReference)
    with pytest.raises(ValueError, match=r"^the reference cannot be called with t\[1, 2\] \('v d'\), "):
        reference_of(lambda t, i: np.asarray(t) @ np.asarray(i), signature, {"v": 1, "d": 2, "n": 3}, {})


def test_listed_sizes_are_all_drawn() -> None:
    """Of many sizes each comes, and the smallest is the simplest."""
    conditions = Conditions(sizes={"b": (2, 4, 8, 16, 32, 64)})
    strategy = st.composite(sizes_of_dimensions)(Given(Scope(), 2, {"b": 2}), conditions=conditions)
    assert {one.sizes["b"] for one in drawn(strategy, 200)} == {1, 2, 4, 8, 16, 32}
    assert smallest(strategy).sizes == {"b": 1}


@pytest.mark.parametrize(("participants", "longest"), [(2, 522), (8, 320)])
def test_the_longest_side_is_shorter_on_more_devices(participants: int, longest: int) -> None:
    """Each of them may compute its square: of all pairs of positions, say."""
    place = Given(Scope(), participants, {"b": participants})
    strategy = st.composite(sizes_of_dimensions)(place, conditions=Conditions())
    assert participants * max(one.sizes["b"] for one in drawn(strategy, 200)) == longest


ROWS = Signature.of(("x",), ("b k",), "b k")
BFLOAT16 = [np.dtype("bfloat16")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_constants_are_what_the_source_says(dtype: str) -> None:
    """Numbers are doubles, whatever the case's dtype is; arrays of numbers are of float32 at least."""
    table = np.sin(np.arange(1.0, 4.0))
    x = np.array([[1.0, 2.0, 3.0]])
    for factor, digits in ((np.sqrt(2 / np.pi), 1e-15), (table, 1e-7)):
        reference = reference_of(lambda x, factor=factor: 0.1 * x * factor, ROWS, {"b": 1, "k": 3}, {})
        (value,) = reference.value([x], [np.dtype(dtype)], {})
        (pulled,) = reference.pullback([x], [np.ones_like(x)], (0,), [np.dtype(dtype)], {})
        (pushed,) = reference.pushforward([x], {0: np.ones_like(x)}, [np.dtype(dtype)], {})
        for found, expected in ((value, 0.1 * x * factor), (pulled, 0.1 * factor), (pushed, 0.1 * factor)):
            np.testing.assert_allclose(found, np.broadcast_to(expected, x.shape), rtol=digits)
        assert reference.doubt[0] >= digits


def test_a_table_of_a_reference_is_that_of_the_function_too() -> None:
    """Tracing the reference leaves no doubles in a program that is compiled without them."""
    table = np.sin(np.arange(1.0, 4.0))
    reference = reference_of(lambda x: x * table, ROWS, {"b": 1, "k": 3}, {})
    x = np.array([[1.0, 2.0, 3.0]])
    reference.value([x], FLOATS[:1], {})
    np.testing.assert_allclose(jax.jit(lambda x: x * table)(x.astype(np.float32)), x * table, rtol=1e-6)


def test_what_depends_on_the_dtype_is_traced_in_it() -> None:
    """The end of a dtype, random bits, and what has a dtype of its own are those of the case."""
    ends = JaxReference(lambda x: jnp.where(x > 1, x, jnp.finfo(x.dtype).min), ROWS)
    drawn_bits = JaxReference(lambda x: jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), x, 0), ROWS)
    carried = JaxReference(lambda x: lax.scan(lambda c, row: (c + row, c), jnp.zeros(64, x.dtype), x)[1], ROWS)
    bound = JaxReference(lambda x: lax.scan(lambda c, row: (c + row, c), jnp.zeros(64, "float32"), x)[1], ROWS)
    x = np.ones((2, 64))
    end = float(jnp.finfo("float32").min)
    assert ends.value([x], FLOATS[:1], {})[0].tolist() == np.full((2, 64), end).tolist()
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (2, 64))
    assert drawn_bits.value([x], FLOATS[:1], {})[0].tolist() == np.where(kept, x, 0).tolist()
    runs = {r: r.run_program("value", r.called, [x.shape], FLOATS[:1], {}) for r in (ends, drawn_bits, carried, bound)}
    assert [doubles for _, doubles in runs.values()] == [False, False, True, False]
    assert bound.value([x], FLOATS[:1], {})[0].tolist() == carried.value([x], FLOATS[:1], {})[0].tolist()


def test_the_dtype_is_not_that_of_a_constant_of_numpy() -> None:
    """Where NumPy would compute in doubles anyway; what casts, and what is made in JAX, says what it is."""
    of_table = JaxReference(lambda x: x * np.sqrt(2 / np.pi), ROWS)
    cast = JaxReference(lambda x: (x * np.sqrt(2 / np.pi)).astype(np.float32), ROWS)
    of_jax = JaxReference(lambda x: jnp.tanh(x) * jnp.ones(x.shape), ROWS)
    found = [r.result_dtypes([(2, 3)], BFLOAT16, {}) for r in (of_table, cast, of_jax)]
    assert found == [[np.dtype("bfloat16")], [np.dtype("float32")], [np.dtype("float32")]]


KINKS: dict[str, tuple[Any, Any, list[bool]]] = {
    "relu": (jnp.abs, [[0.0, 1.0, -2.0]], [True, False, False]),
    "tie": (lambda x: jnp.max(x, axis=1, keepdims=True) + 0 * x, [[2.0, 2.0, 1.0]], [True, True, False]),
    "sorted": (lambda x: jnp.sort(x, axis=1) * jnp.arange(3.0), [[1.0, 5.0, 5.0]], [False, True, True]),
    "smooth": (lambda x: jnp.exp(10 * x) * x**2, [[0.0, 1.0, -1.0]], [False, False, False]),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_are_not_known_at_a_kink(name: str) -> None:
    """Each program has its own there; all others are known."""
    function, at, unknown = KINKS[name]
    x = np.array(at)
    (pulled,) = JaxReference(function, ROWS).pullback([x], [np.ones_like(x)], (0,), FLOATS[:1], {})
    assert np.isnan(pulled[0]).tolist() == unknown


def test_casts_of_a_reference_round_nothing() -> None:
    """A reference that casts on the way is run in doubles all the same."""
    reference = JaxReference(lambda x: (x.astype(jnp.float32) * 2).astype(x.dtype), ROWS)
    x = np.full((2, 3), 1 + 2.0**-40)
    assert reference.value([x], FLOATS[:1], {})[0].tolist() == (2 * x).tolist()


def test_a_reference_may_work_in_place() -> None:
    """It gets arrays of its own."""

    def in_place(x: Any) -> Any:
        x[...] = np.sort(x, axis=1)
        return x

    x = np.array([[3.0, 1.0, 2.0]])
    x.flags.writeable = False
    found = reference_of(in_place, ROWS, {"b": 1, "k": 3}, {})
    assert isinstance(found, NumpyReference)
    assert found.value([x], FLOATS[:1], {})[0].tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(("shape", "known"), [((1, 10), 10), ((1, 2000), 64), ((1100, 1000), 8)])
def test_differences_are_fewer_of_large_matrices(shape: tuple[int, int], known: int) -> None:
    """A reference may multiply them, once for each; others are taken of other numbers, and one at the end."""
    found = []
    for x in (np.ones(shape), np.full(shape, 2.0)):
        (pulled,) = NumpyReference(np.square, ROWS).pullback([x], [np.ones(shape)], (0,), (), {})
        found.append(np.isfinite(pulled))
        assert found[-1].sum() == known
        assert found[-1][-1, -1]
    assert (known < x.size) == (found[0] != found[1]).any()
