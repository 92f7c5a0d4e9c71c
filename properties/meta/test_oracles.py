"""Oracles of blocks: values and derivatives once more, by JAX, as a function of what all participants hold together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from shardproof.oracles import collective_matmul, collectives, mlp, norms, softmax
from shardproof.oracles.attention import attention
from shardproof.oracles.cross_entropy import projected_cross_entropy, vocab_parallel_cross_entropy
from shardproof.oracles.embedding import embedding_lookup
from shardproof.oracles.halo import halo_exchange
from shardproof.oracles.means import masked_mean
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.pipeline import pipeline
from shardproof.properties.meta import REVERSED

MESH, AXES = MeshCase(("tp", "ep", "dp"), (3, 2, 2)), ("dp", "tp")
"""A tuple that leaves an axis out, and is not in mesh order."""


@dataclass(frozen=True)
class Collective:
    """A collective and its transpose, as the other oracles are called."""

    name: str

    def value(self, operands: Sequence[np.ndarray], *place: Any, **options: Any) -> list[np.ndarray]:
        """The block that every device receives."""
        return [getattr(collectives, self.name)(*operands, *place, **options)]

    def pushforward(self, _: Any, tangents: Sequence[np.ndarray], *place: Any, **options: Any) -> list[np.ndarray]:
        """It is linear."""
        return self.value(tangents, *place, **options)

    def pullback(self, _: Any, cotangents: Sequence[np.ndarray], *place: Any, **options: Any) -> list[np.ndarray]:
        """Its transpose."""
        return [getattr(collectives, f"{self.name}_transpose")(*cotangents, *place, **options)]


@dataclass(frozen=True)
class Integers:
    """An operand of integers of a dtype, of which there is no derivative."""

    shape: tuple[int, ...]
    low: int
    high: int
    dtype: str = "int64"


def to_all(p: int, result: Array) -> Array:
    """A result that every participant receives."""
    return jnp.broadcast_to(result, (p, *result.shape))


def joined(blocks: Sequence[Array], axis: int, tiled: bool) -> Array:
    """Blocks one behind the other along a dimension, or along a new one."""
    return jnp.concatenate(blocks, axis) if tiled else jnp.stack(blocks, axis)


def pieces(block: Array, p: int, axis: int, tiled: bool) -> list[Array]:
    """The pieces of a block, one for each participant."""
    cut = jnp.split(block, p, axis)
    return cut if tiled else [jnp.squeeze(one, axis) for one in cut]


def all_gather(x: Array, axis: int, tiled: bool) -> Array:
    """Every participant receives all blocks."""
    return to_all(len(x), joined([*x], axis, tiled))


def reduce_scatter(x: Array, scatter_dimension: int, tiled: bool) -> Array:
    """A participant receives its piece of the sum."""
    return jnp.stack(pieces(x.sum(0), len(x), scatter_dimension, tiled))


def all_to_all(x: Array, split_axis: int, concat_axis: int, tiled: bool) -> Array:
    """A participant receives from every participant the piece that is for it."""
    cut = [pieces(block, len(x), split_axis, tiled) for block in x]
    return jnp.stack([joined(list(received), concat_axis, tiled) for received in zip(*cut, strict=True)])


def permute(x: Array, perm: Sequence[tuple[int, int]]) -> Array:
    """A participant receives from the source whose destination it is, or zeros."""
    return reduce(lambda y, pair: y.at[pair[1]].set(x[pair[0]]), perm, jnp.zeros_like(x))


def within(collective: Callable[..., Array], groups: Sequence[Sequence[int]], x: Array, **options: Any) -> Array:
    """A collective among the participants of each group by themselves, in the group's own order."""
    received: dict[int, Array] = {}
    for group in groups:
        received.update(zip(group, collective(x[jnp.array(group)], **options), strict=True))
    return jnp.stack([received[i] for i in range(len(x))])


def whole_attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Of the whole sequence."""
    queries, keys, values = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    logits = jnp.einsum("shd,thd->hst", queries, keys) / q.shape[-1] ** 0.5
    seen = jnp.tri(len(keys), dtype=bool) if causal else True
    return jnp.einsum("hst,thd->shd", jax.nn.softmax(logits, where=seen), values).reshape(q.shape)


def losses(logits: Array, labels: Array, label_smoothing: float, ignore_index: int) -> Array:
    """Of every participant's labels, with the logits of all classes: `[p, T, V]` and `[p, T]`."""
    surprises = -jax.nn.log_softmax(jnp.concatenate([*logits], axis=-1))
    of_label = jnp.take_along_axis(to_all(len(labels), surprises), labels[..., None], axis=-1)[..., 0]
    loss = (1 - label_smoothing) * of_label + label_smoothing * surprises.mean(-1)
    return jnp.where(labels == ignore_index, 0, loss)


def projected_losses(x: Array, w: Array, labels: Array, **options: Any) -> Array:
    """Every participant has the logits of its own classes, and tokens that are ignored count for nothing there."""
    kept = jnp.where((labels == options["ignore_index"])[..., None], 0, x)
    return losses(kept @ w, labels, **options)


def rows(table: Array, ids: Array) -> Array:
    """Those that the ids name, and zeros where they name none."""
    whole = jnp.pad(table.reshape(-1, table.shape[-1]), ((0, 1), (0, 0)))
    return whole[jnp.where((ids >= 0) & (ids < len(whole) - 1), ids, -1)]


def with_halo(x: Array, before: int, after: int, axis: int) -> Array:
    """Rows of the whole array, from `before` rows in front of a block to `after` behind it."""
    whole, n = jnp.concatenate([*x], axis), x.shape[1 + axis]
    return jnp.stack(
        [jnp.take(whole, jnp.arange(i * n - before, (i + 1) * n + after), axis, mode="wrap") for i in range(len(x))]
    )


def mean_of(values: Array, weights: Array) -> Array:
    """The mean of all elements by their weights; of no weight it is zero."""
    total = weights.sum()
    return to_all(len(values), jnp.where(total > 0, (values * weights).sum() / jnp.where(total > 0, total, 1), 0))


def rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    """Features by the root of the mean square of their whole token."""
    root = jnp.sqrt(jnp.square(x).mean((0, 2), keepdims=True) + epsilon)
    return x / root * scale[:, None]


def through_layers(weights: Array, x: Array) -> Array:
    """Every participant's x, through the n-th layer of all participants before the next one of any."""
    layers = weights.reshape(len(x), -1, x.shape[-1], x.shape[-1]).swapaxes(0, 1).reshape(-1, *x.shape[-1:] * 2)
    return reduce(lambda y, layer: jnp.tanh(y @ layer), layers, x)


def perceptron(x: Array, w_in: Array, w_out: Array) -> Array:
    """Every participant's positions, by the hidden units of all."""
    return jnp.einsum("...pf,pfd->...d", jax.nn.relu(jnp.einsum("...d,pdf->...pf", x, w_in)), w_out)


def lhs_contracting(lhs: Array, rhs: Array) -> Array:
    """A[M, K_Y] W[K, N], of every participant's W."""
    return jnp.concatenate([*lhs], -1) @ rhs


def lhs_gathered(lhs: Array, rhs: Array) -> Array:
    """A[M_Y, K] W[K, N], of every participant's W."""
    return jnp.concatenate([*lhs], -2) @ rhs


def rhs_gathered(lhs: Array, rhs: Array) -> Array:
    """A[M, K] W[K_Y, N], of every participant's A."""
    return lhs @ jnp.concatenate([*rhs], -2)


def reduced(lhs: Array, rhs: Array) -> Array:
    """A[M, K_Y] W[K_Y, N]."""
    return to_all(len(lhs), (lhs @ rhs).sum(0))


def scattered(lhs: Array, rhs: Array, scatter_dimension: int) -> Array:
    """Of that a piece."""
    return jnp.stack(jnp.split((lhs @ rhs).sum(0), len(lhs), scatter_dimension))


def block(x: Array, w_in: Array, w_out: Array) -> Array:
    """X[B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]."""
    return scattered(jax.nn.relu(lhs_contracting(x, w_in)), w_out, 1)


GROUPS = ((4, 0, 1), (2, 5, 3))
TILED, UNTILED = {"axis": 1, "tiled": True}, {"axis": -1, "tiled": False}
CLASSES = Integers((3,), 0, 12)
Operands = Callable[[int], Sequence[tuple[int, ...] | Integers]]

ORACLES: dict[str, tuple[Any, Callable[..., Array], Operands, dict[str, Any]]] = {
    "sum": (Collective("all_reduce"), lambda x, op: to_all(len(x), x.sum(0)), lambda p: [(2, 3)], {"op": "sum"}),
    "mean": (Collective("all_reduce"), lambda x, op: to_all(len(x), x.mean(0)), lambda p: [(2, 3)], {"op": "mean"}),
    "all_gather": (Collective("all_gather"), all_gather, lambda p: [(2, 3)], TILED),
    "all_gather untiled": (Collective("all_gather"), all_gather, lambda p: [(2, 3)], UNTILED),
    "reduce_scatter": (
        Collective("reduce_scatter"), reduce_scatter, lambda p: [(2, 2 * p)], {"scatter_dimension": 1, "tiled": True},
    ),
    "reduce_scatter untiled": (
        Collective("reduce_scatter"), reduce_scatter, lambda p: [(p, 2)], {"scatter_dimension": -2, "tiled": False},
    ),
    "all_to_all": (
        Collective("all_to_all"), all_to_all, lambda p: [(2, 2 * p)],
        {"split_axis": 1, "concat_axis": 0, "tiled": True},
    ),
    "all_to_all untiled": (
        Collective("all_to_all"), all_to_all, lambda p: [(2, p, 3)],
        {"split_axis": 1, "concat_axis": 2, "tiled": False},
    ),
    "permute": (Collective("permute"), permute, lambda p: [(2,)], {"perm": ((0, 3), (3, 5), (4, 0))}),
    "ring_shift": (
        Collective("ring_shift"), lambda x, offset: jnp.roll(x, offset, 0), lambda p: [(2,)], {"offset": -8},
    ),
    "broadcast": (Collective("broadcast"), lambda x, root: to_all(len(x), x[root]), lambda p: [(2,)], {"root": 4}),
    "attention": (attention, whole_attention, lambda p: [(2, 2, 3)] * 3, {"causal": False}),
    "causal attention": (attention, whole_attention, lambda p: [(2, 2, 3)] * 3, {"causal": True}),
    "cross-entropy": (
        vocab_parallel_cross_entropy, losses, lambda p: [(3, 2), CLASSES], {"label_smoothing": 0.1, "ignore_index": 0},
    ),
    "projected cross-entropy": (
        projected_cross_entropy, projected_losses, lambda p: [(3, 2), (2, 2), CLASSES],
        {"label_smoothing": 0.1, "ignore_index": 0},
    ),
    "embedding": (embedding_lookup, rows, lambda p: [(2, 3), Integers((5,), -2, 2 * p + 2)], {}),
    "halo": (halo_exchange, with_halo, lambda p: [(3, 2)], {"before": 7, "after": 1, "axis": 1}),
    "masked mean": (masked_mean, mean_of, lambda p: [(4,), Integers((4,), 0, 2, "bool")], {}),
    "global norm": (norms.global_norm, lambda x: to_all(len(x), jnp.linalg.norm(x.ravel())), lambda p: [(2, 3)], {}),
    "rms norm": (norms.rms_norm, rms_norm, lambda p: [(2, 3), (3,)], {"epsilon": 0.25}),
    "pipeline": (pipeline, through_layers, lambda p: [(4, 2), (2, 1, 2)], {}),
    "perceptron": (collective_matmul.sequence_parallel_mlp, perceptron, lambda p: [(2, 1, 2), (2, 3), (3, 2)], {}),
    "lhs contracting": (
        collective_matmul.all_gather_matmul_lhs_contracting, lhs_contracting, lambda p: [(3, 2), (2 * p, 2)], {},
    ),
    "lhs": (collective_matmul.all_gather_matmul_lhs, lhs_gathered, lambda p: [(3, 2), (2, 2)], {}),
    "rhs": (collective_matmul.all_gather_matmul_rhs, rhs_gathered, lambda p: [(3, 2 * p), (2, 2)], {}),
    "matmul_all_reduce": (collective_matmul.matmul_all_reduce, reduced, lambda p: [(3, 2), (2, 2)], {}),
    "matmul_reduce_scatter": (
        collective_matmul.matmul_reduce_scatter, scattered, lambda p: [(3, 2), (2, 2 * p)], {"scatter_dimension": 1},
    ),
    "transformer block": (
        collective_matmul.transformer_block, block, lambda p: [(2, 2), (2 * p, 3), (3, 2 * p)], {},
    ),
}  # fmt: skip
"""Each with its definition on what a set of participants holds, `[p, …]`, and the shapes of p participants' blocks."""


def participants(x: np.ndarray, mesh: MeshCase, axes: Sequence[str]) -> np.ndarray:
    """Blocks of all devices as `[others, p, …]`."""
    order = [mesh.axis_names.index(name) for name in (*(n for n in mesh.axis_names if n not in axes), *axes)]
    moved = x.transpose(*order, *range(len(order), x.ndim))
    return moved.reshape(-1, mesh.axis_size(axes), *x.shape[len(order) :])


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_is_its_definition(name: str) -> None:
    """Value, forward and reverse mode are those that JAX has of a function of all participants' blocks."""
    oracle, definition, shapes, options = ORACLES[name]
    rng, stacked = np.random.default_rng(0), partial(participants, mesh=MESH, axes=AXES)
    described = shapes(MESH.axis_size(AXES))
    operands = [
        rng.integers(one.low, one.high, (*MESH.sizes, *one.shape)).astype(one.dtype)
        if isinstance(one, Integers)
        else rng.standard_normal((*MESH.sizes, *one))
        for one in described
    ]
    moving = [i for i, one in enumerate(described) if not isinstance(one, Integers)]
    along = {i: rng.standard_normal(operands[i].shape) for i in moving}
    (value,) = oracle.value(operands, MESH, AXES, **options)
    (pushed,) = oracle.pushforward(operands, [along.get(i) for i in range(len(operands))], MESH, AXES, **options)
    ct = rng.standard_normal(value.shape)
    pulled = oracle.pullback(operands, [ct], MESH, AXES, **options)
    assert [i for i, x in enumerate(pulled) if x is not None] == moving

    @jax.jit
    def derived(held: Any, along: Any, ct: Any) -> Any:
        def function(*floats: Array) -> Array:
            given = dict(enumerate(held)) | dict(zip(moving, floats, strict=True))
            return jax.vmap(partial(definition, **options))(*given.values())

        primals = [held[i] for i in moving]
        return [*jax.jvp(function, primals, along), *jax.vjp(function, *primals)[1](ct)]

    with jax.enable_x64(True):
        expected = derived([*map(stacked, operands)], [*map(stacked, along.values())], stacked(ct))
    for found, wanted in zip([value, pushed, *(pulled[i] for i in moving)], expected, strict=True):
        np.testing.assert_allclose(stacked(found), wanted, rtol=1e-9, atol=1e-9)


GAP, EXACT = 40.0, Context(prec=60)
"""One logit is larger than all others by so much; what is computed to 60 digits."""

LOGITS, X = [GAP, 1.0, 0.0, -2.0], [0.7, -1.3, 0.4, 2.1]


def weights_in_decimals() -> list[Decimal]:
    """The softmax of `LOGITS`."""
    powers = [EXACT.exp(Decimal(z)) for z in LOGITS]
    return [EXACT.divide(power, reduce(EXACT.add, powers)) for power in powers]


def test_a_softmax_whose_largest_weight_is_nearly_1_has_all_digits() -> None:
    """Its derivative is as small as the other weights are, and so is a loss."""
    w, z, x = weights_in_decimals(), np.array(LOGITS), np.array(X)
    with localcontext(EXACT):
        mean = sum((wi * Decimal(xi) for wi, xi in zip(w, X, strict=True)), Decimal(0))
        moved = [float(wi * (Decimal(xi) - mean)) for wi, xi in zip(w, X, strict=True)]
        logs, off = [float(wi.ln()) for wi in w], [float(wi - one) for wi, one in zip(w, (1, 0, 0, 0), strict=True)]
    np.testing.assert_allclose(softmax.through_softmax(softmax.softmax(z), x), moved, rtol=1e-14)
    np.testing.assert_allclose(softmax.log_softmax(z), logs, rtol=1e-14)
    slope = vocab_parallel_cross_entropy.slope(z.reshape(1, 1, 1, -1), np.zeros((1, 1, 1), np.int64))
    np.testing.assert_allclose(slope.ravel(), off, rtol=1e-14)


@pytest.mark.parametrize("x", [[], [3.0], [1e9, 1.0, -2.0]])
def test_a_norm_of_one_large_feature_has_all_digits(x: list[float]) -> None:
    """The derivative of `x / rms(x)` is zero for one feature, and small where one is the largest by far."""
    of_x, _ = norms.rms_norm.cotangents(
        [np.array([[x]])[None], np.ones((1, 1, len(x)))], np.arange(1.0, 1 + len(x)).reshape(1, 1, 1, -1), epsilon=0.0
    )
    with localcontext(EXACT):
        given, g = [Decimal(one) for one in x], [Decimal(i + 1) for i in range(len(x))]
        square, along = (
            sum((a * b for a, b in zip(one, given, strict=True)), Decimal(0)) / (len(x) or 1) for one in (given, g)
        )
        right = [
            float((b * square - a * along) / square**3 * square ** Decimal("1.5"))
            for a, b in zip(given, g, strict=True)
        ]
    np.testing.assert_allclose(of_x.ravel(), right, rtol=1e-14)


@pytest.mark.parametrize("name", ["sum", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_collective_in_groups_is_that_of_each_group(name: str) -> None:
    """The participants of a group are in the group's own order."""
    oracle, definition, shapes, options = ORACLES[name]
    mesh, axes = REVERSED
    shape: Any = shapes(3)[0]
    x = np.random.default_rng(0).integers(0, 9, (*mesh.sizes, *shape))
    (found,) = oracle.value([x], mesh, axes, **options, groups=GROUPS)
    expected = within(definition, GROUPS, jnp.asarray(participants(x, mesh, axes)[0]), **options)
    np.testing.assert_array_equal(participants(found, mesh, axes)[0], expected)


def test_the_loss_of_a_model_is_its_definition() -> None:
    """The mean of the examples' sums of squares, with ReLU between layers, whose derivative at zero is zero."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((2, 4), (4,), (4, 3), (3,), (5, 2), (5, 3))]
    arrays[0][:, 0] = arrays[1][0] = 0
    tangents, dtypes = [rng.standard_normal(x.shape) for x in arrays], [x.dtype for x in arrays]

    def loss(w: Array, b: Array, v: Array, c: Array, x: Array, y: Array) -> Array:
        return jnp.square(jax.nn.relu(x @ w + b) @ v + c - y).sum(1).mean()

    with jax.enable_x64(True):
        expected = jax.jvp(loss, [*map(jnp.asarray, arrays)], [*map(jnp.asarray, tangents)])
        backward = jax.grad(loss, range(6))(*map(jnp.asarray, arrays))
    found = [
        *mlp.loss.value(arrays, dtypes, {}),
        *mlp.loss.pushforward(arrays, dict(enumerate(tangents)), dtypes, {}),
        *mlp.loss.pullback(arrays, [np.ones(())], range(6), dtypes, {}),
    ]
    for ours, theirs in zip(found, [*expected, *backward], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


REFUSED: list[tuple[Any, list[np.ndarray], str]] = [
    (attention, [np.zeros((1, 2, 1, n)) for n in (3, 4, 3)], r"operands: shapes .*: expected the same of all"),
    (vocab_parallel_cross_entropy, [np.zeros((1, 2, 2)), np.zeros((1, 2))], r"labels: \[2\] of the kind 'f'"),
    (vocab_parallel_cross_entropy, [np.zeros((1, 2, 2)), np.zeros((1, 3), int)], r"labels: \[3\] of the kind"),
    (projected_cross_entropy, [np.zeros((1, 1, 2)), np.zeros((1, 3, 2)), np.zeros((1, 1), int)], "expected a row for"),
    (masked_mean, [np.ones((1, 2)), np.ones((1, 2))], r"mask: \[2\] of the kind 'f': expected bool\[2\]"),
    (pipeline, [np.zeros((1, 3, 2)), np.zeros((1, 1, 1, 2))], "weights: blocks of 3 by 2: expected layers of 2"),
]


@pytest.mark.parametrize(("oracle", "operands", "message"), REFUSED)
def test_an_oracle_refuses_what_does_not_fit(oracle: Any, operands: list[np.ndarray], message: str) -> None:
    """Operands of other shapes and dtypes than the definition has are refused with what was expected."""
    with pytest.raises(ValueError, match=message):
        oracle.value(operands, MeshCase(("tp",), (1,)), ("tp",))
