"""Order: sort, top_k, argmax, argmin. NaN sorts last and wins every maximum and minimum."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.env import Env, common_lead
from shardproof.properties.engines.simulate.rules import result_dtype, rule


def comparable(x: np.ndarray) -> np.ndarray:
    """Numbers in a dtype that NumPy itself sorts, NaN last; exact. `float8_e5m2` says that it is one of NumPy's."""
    return x if x.dtype.kind in "biufc" and x.dtype.isbuiltin == 1 else x.astype(np.float32)


def ranking(keys: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The indices that sort by the first key, ties by the next, and equal elements as they stand."""
    return np.lexsort([comparable(key) for key in reversed(keys)], axis=axis)


@rule("sort")
def sort(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """All operands in the order of the first `num_keys`, along a dimension."""
    axis = env.lead + equation.params["dimension"]
    lead = common_lead(env, *operands)
    full = [np.broadcast_to(x, lead + x.shape[env.lead :]) for x in operands]
    order = ranking(full[: equation.params["num_keys"]], axis)
    return [np.take_along_axis(x, order, axis) for x in full]


@rule("top_k")
def top_k(env: Env, equation: Any, x: np.ndarray) -> list[np.ndarray]:
    """The k largest elements in descending order and their indices; of equal ones the first."""
    axis = env.lead + equation.params.get("axis", x.ndim - env.lead - 1) % (x.ndim - env.lead)
    backwards = np.flip(ranking([np.flip(x, axis)], axis), axis)
    order = np.moveaxis(x.shape[axis] - 1 - backwards, axis, -1)[..., : equation.params["k"]]
    order = np.moveaxis(order, -1, axis)
    return [np.take_along_axis(x, order, axis), order.astype(result_dtype(equation, 1))]


@rule("argmax")
def argmax(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The index of the first largest element."""
    (axis,) = equation.params["axes"]
    return np.asarray(np.argmax(comparable(x), axis=env.lead + axis)).astype(result_dtype(equation))


@rule("argmin")
def argmin(env: Env, equation: Any, x: np.ndarray) -> np.ndarray:
    """The index of the first smallest element."""
    (axis,) = equation.params["axes"]
    return np.asarray(np.argmin(comparable(x), axis=env.lead + axis)).astype(result_dtype(equation))
