"""The base of oracles of whole arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray]
Tangents = Mapping[int, np.ndarray]
"""Those of some of the arrays, by their places."""

Dtypes = Sequence[np.dtype]
Options = Mapping[str, Any]


class OfWholes:
    """An oracle that is exact, whose results have the dtype of its first array."""

    doubt = (0.0, 0.0)

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtype of the first array."""
        return [dtypes[0]]
