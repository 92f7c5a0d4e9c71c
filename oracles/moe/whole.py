"""What a mixture of experts means on whole arrays: the layer of one participant, which has all of them."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.layer import moe_layer
from shardproof.oracles.whole import Arrays, Dtypes, OfWholes, Options, Tangents

ALONE = MeshCase(("x",), (1,))


class WholeMoeLayer(OfWholes):
    """`tokens [T, D]`, `router [D, E]`, `experts [E, D, F]` (or three arrays, of a gated MLP) to `[T, F]`.

    The capacity is that of all tokens, which are numbered as they stand.
    """

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results; see `oracles.moe.layer`."""
        return _whole(moe_layer.value(_alone(arrays), ALONE, ALONE.axis_names, **options))

    def pushforward(self, arrays: Arrays, tangents: Tangents, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """Their tangents."""
        along = [tangents.get(i, np.zeros_like(a)) for i, a in enumerate(arrays)]
        return _whole(moe_layer.pushforward(_alone(arrays), _alone(along), ALONE, ALONE.axis_names, **options))

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangents of the arrays."""
        pulled = _whole(moe_layer.pullback(_alone(arrays), _alone(cotangents), ALONE, ALONE.axis_names, **options))
        return [pulled[i] for i in moving]


def _alone(arrays: Arrays) -> list[np.ndarray]:
    """Blocks of the only device."""
    return [a[None] for a in arrays]


def _whole(blocks: Arrays) -> list[np.ndarray]:
    return [b[0] for b in blocks]


whole_moe_layer = WholeMoeLayer()
