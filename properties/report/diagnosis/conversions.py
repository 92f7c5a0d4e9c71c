"""Other numbers in place of those that go in or come out: their magnitudes, whole parts, values in another dtype."""

from collections.abc import Callable, Iterator
from functools import partial

import ml_dtypes
import numpy as np

from shardproof.oracles.dtypes import is_integer, wide
from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.report.diagnosis.alternatives import Made
from shardproof.properties.report.diagnosis.scene import Scene

Change = Callable[[np.ndarray], np.ndarray]

INSTEAD: dict[str, Change] = {
    "its magnitude": np.abs,
    "its real part": np.real,
    "its complex conjugate": np.conj,
    "its negative": np.negative,
    "zero where it is negative": lambda x: np.maximum(x, 0),
    "its whole part, the fraction cut off": np.trunc,
    "the whole number below": np.floor,
}
"""What may have been taken for an operand, or for a result."""

COARSE = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "int32", "int16", "int8", "float32")
"""The dtypes through which numbers may have been sent."""


def numbers_instead(scene: Scene) -> Iterator[tuple[str, Made]]:
    """Other numbers in place of what goes in."""
    what = "each number that goes in"
    for text, change in _changes(scene.inputs[0].dtype):

        def made(change: Change = change) -> np.ndarray:
            return scene.oracle(scene.case, [_as(change(x), x.dtype) for x in scene.inputs])

        yield f"are the right ones with {text} in place of {what}", made
    if scene.inputs[0].dtype.kind == "u":
        signed = np.dtype(f"int{8 * scene.inputs[0].dtype.itemsize}")
        yield (
            f"are the right ones if {what} is taken for {signed}",
            lambda: scene.oracle(scene.case, [x.view(signed) for x in scene.inputs]).view(scene.expected.dtype),
        )


def results_instead(scene: Scene) -> Iterator[tuple[str, Made]]:
    """What was made of the right values in the end."""
    shape = (*scene.case.mesh.sizes, *scene.expected.shape[1:])
    for text, change in _changes(scene.expected.dtype):

        def made(change: Change = change) -> np.ndarray:
            return _as(change(scene.expected), scene.expected.dtype).reshape(shape)

        yield f"hold {text} in place of the right value", made


def _changes(dtype: np.dtype) -> Iterator[tuple[str, Change]]:
    for text, change in INSTEAD.items():
        if dtype.kind == "c" or not ("complex" in text or "real" in text):
            yield text, partial(_widely, change)
    for name in COARSE:
        other = as_dtype(name)
        if dtype.kind != "c" and dtype != bool and other != dtype:
            yield f"its value in {name}", partial(_as, dtype=other)


def as_wide(x: np.ndarray) -> np.ndarray:
    """The numbers in a dtype in which nothing that matters is lost."""
    return x.astype(wide(x.dtype))


def _widely(change: Change, x: np.ndarray) -> np.ndarray:
    return change(as_wide(x))


def _as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers in another dtype; integers that do not fit wrap.

    Raises:
        ValueError: if floats do not fit integers, and what they become is left to the machine.
    """
    cast = x.astype(dtype)
    if is_integer(dtype) and x.size and x.dtype.kind != "b" and not is_integer(x.dtype):
        info, exact = ml_dtypes.iinfo(dtype), x.astype(np.float64)
        if not (np.isfinite(exact).all() and exact.min() >= info.min and exact.max() <= info.max):
            raise ValueError(f"x={x}: not all of {dtype}")
    return cast
