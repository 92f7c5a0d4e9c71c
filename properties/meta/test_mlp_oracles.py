"""The oracle of the loss of a model: its definition once more, number by number, and its derivatives by differences."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles import mlp

STEP = 1e-6


@st.composite
def models(draw: st.DrawFn) -> list[np.ndarray]:
    """Layers, inputs and targets of real numbers; shrinks to one layer of one number and one example."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    examples = draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    layers = list(itertools.pairwise(sizes))
    shapes = [shape for d_in, d_out in layers for shape in ((d_in, d_out), (d_out,))]
    return [generator.normal(size=shape) for shape in (*shapes, (examples, sizes[0]), (examples, sizes[-1]))]


def number_by_number(arrays: list[np.ndarray]) -> float:
    """The loss in plain arithmetic."""
    *parameters, inputs, targets = arrays
    total = 0.0
    for example, target in zip(inputs, targets, strict=True):
        x = list(example)
        for at in range(0, len(parameters), 2):
            w, b = parameters[at], parameters[at + 1]
            z = [sum(x[i] * w[i, j] for i in range(len(x))) + b[j] for j in range(len(b))]
            x = z if at == len(parameters) - 2 else [max(value, 0.0) for value in z]
        total += sum((y - t) ** 2 for y, t in zip(x, target, strict=True))
    return total / len(inputs)


@given(models())
def test_the_loss_is_what_it_is_defined_as(arrays: list[np.ndarray]) -> None:
    """The mean over the examples of the sums of squares, with ReLU between the layers and none after the last."""
    (loss,) = mlp.loss.value(arrays, [a.dtype for a in arrays], {})
    assert loss.shape == ()
    np.testing.assert_allclose(loss, number_by_number(arrays), rtol=1e-10)


@given(models(), st.integers(0, 2**16))
def test_derivatives_are_those_of_the_loss(arrays: list[np.ndarray], seed: int) -> None:
    """Forward mode is a difference along the tangents, and reverse mode its transpose."""
    generator, dtypes = np.random.default_rng(seed), [a.dtype for a in arrays]
    tangents = [generator.normal(size=a.shape) for a in arrays]
    up, down = ([a + s * t for a, t in zip(arrays, tangents, strict=True)] for s in (STEP, -STEP))
    difference = (number_by_number(up) - number_by_number(down)) / (2 * STEP)
    (pushed,) = mlp.loss.pushforward(arrays, dict(enumerate(tangents)), dtypes, {})
    scale = max(1.0, float(np.abs(pushed)), number_by_number(arrays))
    assert abs(pushed - difference) <= 1e-4 * scale
    pulled = mlp.loss.pullback(arrays, [np.array(3.0)], range(len(arrays)), dtypes, {})
    assert [g.shape for g in pulled] == [a.shape for a in arrays]
    inner = sum(float(np.sum(g * t)) for g, t in zip(pulled, tangents, strict=True))
    assert inner == pytest.approx(3.0 * float(pushed), rel=1e-9, abs=1e-9 * scale)


def test_relu_has_no_derivative_at_zero() -> None:
    """A hidden value of zero hands on no gradient, and no tangent."""
    arrays = [np.ones((1, 1)), np.array([-1.0]), np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.ones((1, 1))]
    dtypes = [a.dtype for a in arrays]
    pulled = mlp.loss.pullback(arrays, [np.ones(())], range(6), dtypes, {})
    assert [float(g.sum()) for g in pulled] == [0.0, 0.0, 0.0, -2.0, 0.0, 2.0]
    assert float(mlp.loss.pushforward(arrays, {0: np.ones((1, 1))}, dtypes, {})[0]) == 0.0


def test_sizes_must_match() -> None:
    """A bias that is as long as another layer's is refused, and so are targets of too many examples."""
    right = [np.ones((2, 3)), np.ones(3), np.ones((1, 2)), np.ones((1, 3))]
    for place, wrong in ((1, np.ones(1)), (3, np.ones((2, 3))), (2, np.ones((1, 3)))):
        arrays = [wrong if i == place else a for i, a in enumerate(right)]
        with pytest.raises(ValueError, match="expected those of layers, inputs and targets that match"):
            mlp.loss.value(arrays, [a.dtype for a in arrays], {})
