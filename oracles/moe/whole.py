"""What a mixture of experts means on whole arrays: the layer of one participant, which has all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.layer import moe_layer

Arrays = Sequence[np.ndarray]

ALONE = MeshCase(("x",), (1,))


class WholeMoeLayer:
    """`tokens [T, D]`, `router [D, E]`, `experts [E, D, F]` (or three arrays, of a gated MLP) to `[T, F]`.

    The capacity is that of all tokens, which are numbered as they stand.
    """

    doubt = (0.0, 0.0)

    def value(self, arrays: Arrays, dtypes: Sequence[np.dtype], options: Mapping[str, Any]) -> list[np.ndarray]:
        """The results; see `oracles.moe.layer`."""
        return _whole(moe_layer.value(_alone(arrays), ALONE, ALONE.axis_names, **options))

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Their tangents."""
        along = [tangents.get(i, np.zeros_like(a)) for i, a in enumerate(arrays)]
        return _whole(moe_layer.pushforward(_alone(arrays), _alone(along), ALONE, ALONE.axis_names, **options))

    def pullback(
        self,
        arrays: Arrays,
        cotangents: Arrays,
        moving: Sequence[int],
        dtypes: Sequence[np.dtype],
        options: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """The cotangents of the arrays."""
        pulled = _whole(moe_layer.pullback(_alone(arrays), _alone(cotangents), ALONE, ALONE.axis_names, **options))
        return [pulled[i] for i in moving]

    def result_dtypes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.dtype]:
        """That of the arrays."""
        return [dtypes[0]]


def _alone(arrays: Arrays) -> list[np.ndarray]:
    """Blocks of the only device."""
    return [a[None] for a in arrays]


def _whole(blocks: Arrays) -> list[np.ndarray]:
    return [b[0] for b in blocks]


whole_moe_layer = WholeMoeLayer()
