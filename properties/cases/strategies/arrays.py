"""Data: arrays of the three kinds that make comparisons exact, and a fourth of awkward values."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.cases.strategies.making import Composite


def arrays(
    shape: Sequence[int], dtype: str, *, kinds: Sequence[str] = ("exact", "distinct", "real"), terms: int = 1
) -> st.SearchStrategy[np.ndarray]:
    """Arrays of a shape and dtype, of any of `kinds` (see `shardproof.properties.cases.data`).

    Shrinks to the first kind and the first seed.
    """
    data = st.builds(Data, st.sampled_from(list(kinds)), st.integers(0, 2**16))
    return data.map(lambda chosen: generate(chosen, tuple(shape), as_dtype(dtype), terms=terms))


@Composite
def data_sets(draw: st.DrawFn, kinds: Sequence[str], *, count: int = 6) -> tuple[Data, ...]:
    """Several data sets for one structure, of all kinds in turn, under one drawn seed.

    Shrinks to the first seed. Compiling a structure costs a hundred times as much as running it,
    so each is run on `count` of them.
    """
    seed = draw(st.integers(0, 2**16), label="seed")
    return tuple(Data(kinds[i % len(kinds)], seed + i) for i in range(count))


def kinds_of(dtype: str) -> tuple[str, ...]:
    """All kinds of data that suit a dtype; distinct ones first: a misplaced block is told by its values."""
    usual = ("distinct", "exact", "special")
    return (*usual[:2], "real", *usual[2:], "nan", "scaled") if is_float(as_dtype(dtype)) else usual
