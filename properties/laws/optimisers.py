"""The law of optimisers: in any dtype, updates are those of the definition, computed in the accumulator's dtype."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

from shardproof.impl.optimisers import updated
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.properties.programs.violation import Broken, Difference


@dataclass(frozen=True)
class Updates:
    """Some updates of two parameters, `[rows, 3]` and `[5]`, by gradients that are drawn: no loss is involved."""

    dtype: str
    rows: int = 2
    steps: int = 4
    seed: int = 0

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype, ml_dtypes' own included."""
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    @property
    def accumulator(self) -> np.dtype:
        """The dtype in which updates are to be: float32 for 16 bits."""
        return np.dtype(np.float32) if self.numpy_dtype.itemsize < 4 else self.numpy_dtype

    def arrays(self) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
        """Parameters, and the gradients of every step: some are zero, some parameters' in all steps."""
        rng = np.random.default_rng(self.seed)
        shapes = (self.rows, 3), (5,)
        never = [rng.random(shape) < 0.2 for shape in shapes]

        def gradient(shape: tuple[int, ...], zero: np.ndarray) -> np.ndarray:
            values = rng.normal(size=shape).clip(-4, 4)
            return np.where(zero | (rng.random(shape) < 0.2), 0, values).astype(self.numpy_dtype)

        params = [rng.normal(size=shape).astype(self.numpy_dtype) for shape in shapes]
        return params, [[gradient(s, zero) for s, zero in zip(shapes, never, strict=True)] for _ in range(self.steps)]


def check_updates(case: Updates, optimiser: tuple[Callable[[], Any], oracle.Optimiser]) -> None:
    """Updates equal those of the definition to the accumulator's rounding; parameters are rounded once in a step.

    A moment after k steps is off by k roundings of the largest gradient, at most 4 here, and by the square root of k
    more beside a second moment, which is at least 1/k of the largest gradient's square. `1 - decay**k` loses as many
    digits as the decay is near 1, at most 1 / (1 - 0.999).

    Raises:
        Broken: for an update in another dtype, an update or a parameter that is off by more.
    """
    make, of = optimiser
    drawn, gradients = case.arrays()
    leaves, kept = [p.astype(np.float64) for p in drawn], of.start(drawn)
    with jax.enable_x64(True):
        run, params = make(), [jax.numpy.asarray(p) for p in drawn]
        update = jax.jit(run.update)
        state = run.init(params)
        for step, given in enumerate(gradients, 1):
            context = f"{of} on {case}, step {step}"
            right, kept = of.step([np.zeros(p.shape) for p in params], given, kept)
            leaves = [(p + u).astype(case.numpy_dtype).astype(np.float64) for p, u in zip(leaves, right, strict=True)]
            found, state = update([jax.numpy.asarray(g) for g in given], state, params)
            params = updated(params, found)
            off = of.learning_rate * (64 * step**2 + 2000) * unit_roundoff(case.accumulator)
            for i, (one, other) in enumerate(zip(found, right, strict=True)):
                _near(one, other.astype(case.accumulator), off, f"{context}: update {i}", other)
            ulps = 2 * step * unit_roundoff(case.numpy_dtype)
            for i, (one, other) in enumerate(zip(params, leaves, strict=True)):
                largest = float(np.max(np.abs(other)))
                _near(
                    one, other.astype(case.numpy_dtype), ulps * largest + step * off, f"{context}: parameter {i}", other
                )


def _near(found: Any, right: np.ndarray, off: float, what: str, exact: np.ndarray) -> None:
    actual = np.asarray(found)
    if actual.dtype != right.dtype:
        raise Broken("dtype", f"{what} is {actual.dtype}, expected {right.dtype}")
    difference = np.abs(actual.astype(np.float64) - exact)
    wrong = ~(difference <= off)  # NaN is wrong
    if wrong.any():
        blocks = Difference("result", what, right, actual, wrong, np.full(right.shape, off))
        raise Broken("values", f"{what} is off by {np.max(difference):.3g}, more than {off:.3g}", difference=blocks)
