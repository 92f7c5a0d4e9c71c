"""References that are called with doubles: in NumPy, or in JAX with branches in Python."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from shardproof.properties.contracts.call import refilled
from shardproof.properties.contracts.described import Signature
from shardproof.properties.references.kinks import aside, differences
from shardproof.properties.references.leaves import Arrays, Dtypes, Options, leaves_of, together_of

STEP = 2.0**-9
"""The larger step of central differences, relative to arrays of the size of 1."""

MOST_DIFFERENCES = 64
"""Of so many elements of an argument, central differences give the derivative; of the others it is not known."""


FEW_ASIDES = 3
"""How many places aside are looked at for each of these: what is weighed by cotangents rarely looks smooth."""


class NumpyReference:
    """A reference in NumPy, or in JAX where it cannot be traced: what it returns is what its results are described as.

    Arguments:
        function: takes and returns whole arrays, in trees; floats are doubles, in JAX as well.
        signature: these trees.
    """

    doubt = (1e-11, 1e-7)
    """How far off it may be, of values and of derivatives (see `Contract`)."""

    casts: tuple[np.dtype, ...] = ()
    """To which floats it casts, is not known."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function, self.signature = function, signature

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results."""
        with np.errstate(all="ignore"), jax.enable_x64(True):
            own = [np.array(a) for a in arrays]  # which it may write to
            found = leaves_of(self.signature, self.function(*refilled(self.signature.tree, own), **options))
        return [
            np.asarray(leaf, np.float64 if array.dtype == "float" else None)
            for leaf, array in zip(found, self.signature.results, strict=True)
        ]

    def floats(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results, of which those that are no floats are constants: zeros."""
        found = zip(self.value(arrays, dtypes, options), self.signature.results, strict=True)
        return [y if result.floating else np.zeros(y.shape) for y, result in found]

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """Their tangents, given those of some leaves; NaN where they are not known."""

        def at(step: float, number: int) -> list[np.ndarray]:
            moved = [aside(a, number) + step * tangents[i] if i in tangents else a for i, a in enumerate(arrays)]
            return self.floats(moved, dtypes, options)

        size = max((float(np.abs(t).max(initial=0)) for t in tangents.values()), default=0.0)
        return differences(at, STEP / max(size, 1.0))

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangents of some leaves, given those of the results; NaN where they are not known."""

        def weighed(at: Arrays) -> list[np.ndarray]:
            results = self.floats(at, dtypes, options)
            with np.errstate(invalid="ignore"):
                return [np.asarray(sum(np.sum(y * ct) for y, ct in zip(results, cotangents, strict=True)))]

        def at(step: float, number: int, i: int, k: int, places: Arrays, there: Sequence[Any]) -> Any:
            if step == 0:
                return there[number]
            moved = places[number].copy()
            moved.flat[k] += step
            return weighed([*arrays[:i], moved, *arrays[i + 1 :]])

        found = []
        for i in moving:
            if arrays[i].dtype.kind == "c":  # along real numbers alone nothing is known of them
                found.append(np.full(arrays[i].shape, np.nan))
                continue
            places = [aside(arrays[i].astype(np.float64), number) for number in range(1 + FEW_ASIDES)]
            there = [weighed([*arrays[:i], place, *arrays[i + 1 :]]) for place in places]
            gradient = np.full(arrays[i].size, np.nan)
            # spread over all elements
            for k in np.unique(np.linspace(0, arrays[i].size - 1, min(arrays[i].size, MOST_DIFFERENCES)).astype(int)):
                along = partial(at, i=i, k=int(k), places=places, there=there)
                gradient[k] = differences(along, STEP, FEW_ASIDES)[0]
            found.append(gradient.reshape(arrays[i].shape))
        return found

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtypes of the results: as described, and of floats that of the arguments together."""
        together = together_of(self.signature, dtypes)
        return [together if a.dtype == "float" else np.dtype(a.dtype) for a in self.signature.results]
