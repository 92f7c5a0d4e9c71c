"""Programs whose precision is hard to judge: right ones hold, and of a wrong one the right law breaks."""

import dataclasses
import gc
import inspect
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof import Array, Program, check_program
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.brief import marked
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.program import precision_of
from shardproof.properties.runner.search import SELDOM, collecting_seldom, find_violation


def attention(q: Any, k: Any, v: Any, *, ring: Any, window: int = 3) -> Any:
    """Attention around a ring, of several queries to each key, which sees `window` positions back."""
    p, me, (length, heads, d) = lax.axis_size(ring), lax.axis_index(ring), q.shape
    keys = k.shape[1]
    grouped = q.reshape(length, keys, heads // keys, d).astype(jnp.float32) / math.sqrt(d)
    here = me * length + jnp.arange(length)

    def step(carry: Any, hop: Any) -> tuple[Any, None]:
        k, v, top, weight, total = carry
        there = (me - hop) % p * length + jnp.arange(length)
        seen = (there <= here[:, None]) & (there > here[:, None] - window)
        scores = jnp.where(seen[:, None, None], jnp.einsum("qgrd,kgd->qgrk", grouped, k.astype(jnp.float32)), -jnp.inf)
        new = jnp.maximum(top, scores.max(-1))
        base = jnp.where(jnp.isfinite(new), new, 0.0)
        share, kept = jnp.exp(scores - base[..., None]), jnp.exp(top - base)
        total = kept[..., None] * total + jnp.einsum("qgrk,kgd->qgrd", share, v.astype(jnp.float32))
        onward = [(i, (i + 1) % p) for i in range(p)]
        return (*(lax.ppermute(x, ring, onward) for x in (k, v)), new, kept * weight + share.sum(-1), total), None

    like = jnp.zeros_like(grouped)
    start = (k, v, like[..., 0] - jnp.inf, like[..., 0], like)
    (_, _, _, weight, total), _ = lax.scan(step, lax.pcast(start, (), to="varying"), jnp.arange(p))
    return (total / weight[..., None]).reshape(q.shape).astype(q.dtype)


def whole_attention(q: Any, k: Any, v: Any, window: int = 3) -> Any:
    """The same on whole arrays."""
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1).astype(jnp.float32) for x in (k, v))
    scores = jnp.einsum("qhd,khd->hqk", q.astype(jnp.float32), k) / math.sqrt(q.shape[2])
    back = jnp.arange(len(q))[:, None] - jnp.arange(len(k))
    weights = jax.nn.softmax(jnp.where((back >= 0) & (back < window), scores, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v).astype(q.dtype)


@pytest.mark.lengthy
def test_ring_attention_holds() -> None:
    """Attention of grouped queries with a window, around a ring, in every law."""
    check_program(
        attention,
        whole_attention,
        arguments=("s@ring h d", "s@ring g d", "s@ring g d"),
        results="s@ring h d",
        one_axis=["ring"],
        serves=lambda h, g: h % g == 0,
        max_examples=3,
    )


def settled(start: Any, step: Any) -> Any:
    """The value at which a step settles, to a thousandth."""

    def goes_on(state: Any) -> Any:
        old, new, count = state
        return (jnp.max(jnp.abs(new - old)) > 1e-3) & (count < 60)

    return lax.while_loop(goes_on, lambda state: (state[1], step(state[1]), state[2] + 1), (start, step(start), 0))[1]


def fixed_point(w: Any, b: Any, *, model: Any) -> Any:
    """The z of z = b + tanh(W z) / (8 n): of rows of W on each device."""
    rows, n = w.shape[0], b.shape[0]

    def step(z: Any) -> Any:
        own = jnp.tanh(w @ z) / (8 * n)
        held = lax.dynamic_update_slice_in_dim(lax.pcast(jnp.zeros_like(z), model, to="varying"), own,
                                               lax.axis_index(model) * rows, 0)  # fmt: skip
        return b + lax.psum(held, model)

    return settled(b, step)


def whole_fixed_point(w: Any, b: Any) -> Any:
    """The same on one device."""
    return settled(b, lambda z: b + jnp.tanh(w @ z) / (8 * b.shape[0]))


@pytest.mark.parametrize("dtype", marked(["bfloat16", "float32"], ["bfloat16"]))
def test_a_loop_to_a_residual_holds(dtype: str) -> None:
    """Roundings decide how many steps there are, on one device as on many."""
    described: dict[str, Any] = {"arguments": ("n@model n", "n"), "results": "n", "dtypes": dtype}
    check_program(fixed_point, whole_fixed_point, **described, laws="value", max_examples=6)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def cross_entropy(logits: Any, labels: Any, model: Any) -> Any:
    """Of classes that are sharded, with a backward pass by hand: probabilities less one for the class that is right."""
    return forward(logits, labels, model)[0]


def forward(logits: Any, labels: Any, model: Any) -> Any:
    """The losses, and what the backward pass needs."""
    top = lax.pmax(logits.max(-1, keepdims=True), model)
    shares = jnp.exp(logits - top)
    total = lax.psum(shares.sum(-1, keepdims=True), model)
    own = labels[:, None] == lax.axis_index(model) * logits.shape[1] + jnp.arange(logits.shape[1])
    of_label = lax.psum(jnp.where(own, logits, 0).sum(-1), model)
    return (jnp.log(total) + top)[:, 0] - of_label, (shares / total, own)


def backward(model: Any, saved: Any, ct: Any) -> Any:
    """The gradient of the logits."""
    shares, own = saved
    return (shares - own) * lax.pcast(ct[:, None], model, to="varying"), None


cross_entropy.defvjp(forward, backward)


def losses(logits: Any, labels: Any, *, model: Any) -> Any:
    """Of each row."""
    return cross_entropy(logits, labels, model)


def whole_losses(logits: Any, labels: Any) -> Any:
    """The same on whole arrays."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]


def test_a_gradient_below_the_smallest_number_holds() -> None:
    """0.0 is right of probabilities that are smaller than any number of the dtype, and of subnormal ones."""
    check_program(
        losses,
        whole_losses,
        arguments=("t v@model", Array("t", "int32", below="v")),
        results="t",
        dtypes="float32",
        laws=["value", "gradient"],
        max_examples=12,
    )


def tokens(mask: Any, *, data: Any) -> Any:
    """Counts rows one after the other, in their dtype."""
    ones = jnp.ones_like(mask)
    zero = lax.pcast(jnp.zeros((), mask.dtype), data, to="varying")
    return lax.psum(lax.scan(lambda count, one: (count + one, None), zero, ones[:, 0])[0], data)


def test_a_count_that_stands_still_is_found() -> None:
    """Ones that are added up in bfloat16 stand still at 256."""
    counted = Program(
        tokens,
        lambda mask: jnp.sum(jnp.ones_like(mask)),
        arguments=("t@data 1",),
        results="",
        dtypes="bfloat16",
        sizes={"t": 1024},
    )
    scope = Scope(max_devices=2, available=2)
    found = find_violation(
        [LAWS["value"]], counted.implementation, SimulateEngine(), scope, max_examples=6, shrink=False
    )
    assert found.violation is not None
    assert "blocks wrong" in str(found.violation)


def twice(x: Any, *, data: Any) -> Any:
    """A sum, and what roundings leave of twice its tenth part."""
    return of_tenths(lax.psum(jnp.sum(x), data))


def of_tenths(total: Any) -> Any:
    """The number, and that without ten of its tenths, a thousand times."""
    tenth = jnp.asarray(0.1, total.dtype)
    return jnp.stack([total, (total - total * tenth * 10) * 1000])


def enlarged(x: Any, *, data: Any) -> Any:
    """The sum, times a constant that is six steps of bfloat16 from one."""
    return lax.psum(x.sum(0), data) * x.dtype.type(1.05)


def test_a_constant_is_not_off_by_more_than_it_may_have_been_rounded() -> None:
    """The float64 run shows what is wrong in bfloat16 alone, though any constant there may be rounded."""
    described: dict[str, Any] = {"arguments": ("b@data n",), "results": "n", "dtypes": "bfloat16", "laws": "value"}
    with pytest.raises(AssertionError, match="in double precision"):
        check_program(enlarged, lambda x: x.sum(0), **described, max_examples=16)


def test_what_nothing_is_known_of_is_counted() -> None:
    """Elements of which roundings decide everything are undecided, and the summary tells how many there are."""
    described: dict[str, Any] = {"arguments": ("t@data",), "results": "2", "dtypes": "bfloat16", "laws": "value"}
    summary = str(check_program(twice, lambda x: of_tenths(jnp.sum(x)), **described, max_examples=10))
    assert "may be off by more than an eighth of the largest" in summary


def test_a_complex_constant_may_have_been_rounded() -> None:
    """In float64 it is moved as a real one is."""
    described: dict[str, Any] = {"arguments": ("t@data",), "results": "t@data", "dtypes": "float32", "laws": "value"}
    check_program(lambda x, *, data: lax.imag(x * 0.1j), lambda x: 0.1 * x, **described, max_examples=6)


def test_gradients_may_be_off_by_row() -> None:
    """Of arrays and of scalars."""
    check_program(
        lambda x, s, *, data: x * s * 1.001,
        lambda x, s: x * s,
        arguments=("t@data n", ""),
        results="t@data n",
        dtypes="float32",
        within=0.01,
        relative_to="row",
        gradients=True,
        laws=["value", "gradient"],
        max_examples=4,
    )


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def squares(x: Any, slope: float) -> Any:
    """The sum of squares, whose backward pass by hand has this slope."""
    return (x * x).sum()


squares.defvjp(lambda x, slope: ((x * x).sum(), x), lambda slope, x, ct: (slope * x * ct,))


def plainly(x: Any, *, data: Any) -> Any:
    """As JAX derives it, in both modes."""
    return lax.psum((x * x).sum(), data)


def steeper(x: Any, *, data: Any) -> Any:
    """By hand, too steep."""
    return lax.psum(squares(x, 3.0), data)


def test_a_reference_by_hand_has_reverse_mode_alone() -> None:
    """JAX has no forward mode of it: gradients are compared all the same."""
    described: dict[str, Any] = {"arguments": ("t@data",), "results": "", "laws": "gradient", "max_examples": 6}
    summary = check_program(plainly, partial(squares, slope=2.0), **described)
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    with pytest.raises(AssertionError, match=r"steeper: gradient: mesh .*reverse mode"):
        check_program(steeper, partial(squares, slope=2.0), **described)


def narrow_logarithm(x: Any, mask: Any, *, data: Any) -> Any:
    """The logarithm of a masked sum, rounded; its constants lose nothing in bfloat16."""
    least, nothing = (jnp.bfloat16(constant).astype(x.dtype) for constant in (-jnp.inf, 0))
    terms = jnp.where(mask, jnp.exp(jnp.where(mask, x, least)), nothing)
    total = jnp.log(lax.psum(terms.sum(), data))
    return total.astype(jnp.bfloat16).astype(x.dtype)  # the line


def another_factor(x: Any, *, data: Any) -> Any:
    """A quarter of each number, where a third is right; the constant is not what was rounded."""
    return jnp.minimum(x * jnp.bfloat16(0.25).astype(x.dtype), jnp.bfloat16(jnp.inf).astype(x.dtype))


def test_constants_that_lose_nothing_are_not_blamed() -> None:
    """Infinities and zeros in fewer bits are what they were: the line that rounds is named, or the formula."""

    def whole(x: Any, mask: Any) -> Any:
        return jnp.log(jnp.where(mask, jnp.exp(x), 0).sum())

    described: Any = {"dtypes": "float32", "laws": "value", "max_examples": 16}
    lines, start = inspect.getsourcelines(narrow_logarithm)
    (at,) = [start + i for i, line in enumerate(lines) if "# the line" in line]
    with pytest.raises(AssertionError, match=rf"convert_element_type at test_judged_programs.py:{at}:.* rounds to bfl"):
        check_program(narrow_logarithm, whole, arguments=("n@data", Array("n@data", "bool")), results="", **described)
    with pytest.raises(AssertionError, match="another formula: ") as raised:
        check_program(another_factor, lambda x: x / 3, arguments=("n@data",), results="n@data", **described)
    assert "round" not in str(raised.value).partition("first wrong element")[0]


def test_numbers_that_are_one_once_they_are_rounded_are_a_tie() -> None:
    """Of many gates that are nearly 1 float32 takes the first, and float64 another: each may be kept, and no third."""

    def kept(rows: Any, x: Any, first: Any) -> Any:
        best = lax.top_k(1 / (1 + jnp.exp(jnp.where(jnp.arange(rows) < rows - 1, -18, -30).astype(x.dtype))), 1)[1][0]
        return jnp.where((jnp.arange(len(x)) == best - first)[:, None], x, 0)

    def right(x: Any, *, data: Any, late: int = 0) -> Any:
        return kept(lax.axis_size(data) * len(x), x, lax.axis_index(data) * len(x) - late)

    described: dict[str, Any] = {"arguments": (Array("rows@data 3", "float32"),), "results": "rows@data 3"}
    asked: dict[str, Any] = {"multiples": {"rows": 512}, "laws": ["value"], "max_examples": 6, "random_seed": 1}
    check_program(right, lambda x: kept(len(x), x, 0), **described, **asked)
    with pytest.raises(AssertionError, match=r"value: mesh \("):
        check_program(partial(right, late=2), lambda x: kept(len(x), x, 0), **described, **asked)


def test_cycles_of_objects_are_looked_for_seldom() -> None:
    """While cases are drawn, and as often as before afterwards; not at all where that was so."""
    before = gc.get_threshold()
    for first in (700, 10 * SELDOM, 0):
        gc.set_threshold(first)
        with collecting_seldom():
            assert gc.get_threshold()[0] == (max(first, SELDOM) if first else 0)
        assert gc.get_threshold()[0] == first
    gc.set_threshold(*before)


def mean_of_numbers(x: Any, *, data: Any) -> Any:
    """The mean of what is not NaN."""
    numbers = ~jnp.isnan(x)
    return lax.psum(jnp.where(numbers, x, 0).sum(), data) / lax.psum(numbers.sum(), data)


def mean_of_all(x: Any, *, data: Any) -> Any:
    """The same, in which NaN counts as a number."""
    return lax.psum(jnp.nansum(x), data) / lax.psum(x.size, data)


def test_data_that_are_not_finite_are_drawn_where_asked() -> None:
    """Only then: what is right of them only a function's author knows."""
    described: dict[str, Any] = {"arguments": ("n@data",), "results": "", "gradients": False, "laws": "value"}
    check_program(mean_of_all, lambda x: x.mean(), max_examples=10, **described)
    asked: dict[str, Any] = {**described, "data": ("real", "exact", "nan"), "max_examples": 10}
    check_program(mean_of_numbers, jnp.nanmean, **asked)
    with pytest.raises(AssertionError, match="data: nan"):
        check_program(mean_of_all, jnp.nanmean, **asked)


def infinite_if_whole(x: Any, *, rows: Any) -> Any:
    """The numbers; not a number where all of them are whole."""
    fractions = lax.pmax(jnp.any(x != jnp.round(x)).astype(jnp.int32), rows)
    return jnp.where(fractions > 0, x, jnp.nan)


def test_every_law_leaves_out_data_that_are_declined() -> None:
    """The law of types too."""
    described: dict[str, Any] = {"arguments": ("n@rows 3",), "results": "n@rows 3", "gradients": False, "data": "real"}
    check_program(
        infinite_if_whole, lambda x: x, laws=("value", "type"), dtypes=("float32",), max_examples=10, **described
    )


def roots(x: Any, *, data: Any) -> Any:
    """The norms of columns, whose gradient at zero is infinity times zero."""
    squares = lax.psum((x * x).sum(0), data)
    return jnp.where(squares > 0, jnp.sqrt(squares), 0)


def whole_roots(x: Any) -> Any:
    """The same, whose gradient at zero is zero."""
    squares = (x * x).sum(0)
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1)), 0)


def test_gradients_are_numbers_at_zero() -> None:
    """Where those of the reference are: differences of values say nothing of a root at zero."""
    described: dict[str, Any] = {"arguments": ("n@data k",), "results": "k", "laws": "gradient", "dtypes": ("float32",)}
    with pytest.raises(AssertionError, match="is nan, expected 0"):
        check_program(roots, whole_roots, **described)
    check_program(roots, lambda x: np.sqrt((x * x).sum(0)), max_examples=10, **described)


def called_back(x: Any, *, data: Any) -> Any:
    """A function outside of JAX."""
    twice = jax.pure_callback(
        lambda a: 2 * np.asarray(a), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims"
    )
    return lax.psum(lax.pcast(twice, data, to="varying").sum(0), data)


def test_a_function_outside_of_jax_is_run_in_doubles() -> None:
    """In threads of XLA's, which have 64-bit dtypes as well."""
    described: dict[str, Any] = {"arguments": ("n@data d",), "results": "d", "gradients": False, "dtypes": ("float32",)}
    summary = check_program(
        called_back, lambda x: (2 * x).sum(0), laws="value", data="real", max_examples=5, **described
    )
    assert all(tally.structures for tally in summary.tallies if tally.engine == "xla")


def in_own_order(x: Any, *, data: Any) -> Any:
    """A sum that each device adds up beginning with its own row."""
    total = row = x[0]
    for _ in range(lax.axis_size(data) - 1):
        row = lax.ppermute(row, data, [(i, (i + 1) % lax.axis_size(data)) for i in range(lax.axis_size(data))])
        total = total + row
    return total


def test_replicas_that_differ_in_bits_are_named() -> None:
    """Of programs whose types nobody checks."""
    described: dict[str, Any] = {"arguments": ("@data d",), "results": "d", "check_vma": False, "one_axis": "data"}
    summary = check_program(
        in_own_order, lambda x: x.sum(0), laws="value", dtypes=("float32",), max_examples=10, **described
    )
    assert "devices that hold the same part of result differ in bits" in str(summary)


def test_options_of_jax_stay_what_they_are() -> None:
    """Judging a case with 64-bit dtypes changes them for a while, within a context of JAX's as well."""
    case = example("all_reduce", MeshCase(("tp",), (1,)), "tp")
    wide = dataclasses.replace(case, operands=(dataclasses.replace(case.operands[0], dtype="float64"),))
    with jax.enable_x64(True), precision_of(wide), precision_of(wide):
        assert jnp.ones(1).dtype == jnp.float64
    with jax.enable_x64(False), precision_of(wide):
        assert jnp.ones(1).dtype == jnp.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_a_conjugate_is_not_linear() -> None:
    """Of complex numbers its derivatives in both modes are no adjoint pair, whatever the data."""
    numbers = Array("n@data", "complex64")
    described: dict[str, Any] = {"arguments": (numbers, numbers), "results": Array("", "complex64")}

    def product(x: Any, y: Any, *, data: Any) -> Any:
        return lax.psum(jnp.vdot(x, y), data)

    check_program(product, jnp.vdot, laws="gradient", max_examples=10, **described)


def cubed(x: Any, *, columns: Any) -> Any:
    """A product of as many rows and columns as there are rows, and of what it gives."""
    return lax.psum(x @ x.T, columns) @ x


@pytest.mark.parametrize("sizes", [{}, {"n": (65, 100)}], ids=["drawn", "stated"])
def test_sides_that_take_long_are_run_where_they_are_stated(sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a long side costs is in no proportion to what it shows, if nobody asked for it."""
    monkeypatch.setattr("shardproof.properties.runner.judging.MOST_STEPS", 200)
    described: dict[str, Any] = {
        "arguments": ("n m@columns",),
        "results": "n m@columns",
        "laws": "value",
        "max_examples": 20,
    }
    summary = check_program(cubed, lambda x: x @ x.T @ x, sizes=sizes, **described)
    assert ("since sides are long" in str(summary)) == (not sizes)
    assert "since the mesh is large" in str(summary)
