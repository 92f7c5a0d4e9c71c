"""The dtypes that collectives carry."""

from functools import lru_cache

from hypothesis import strategies as st

from shardproof.oracles.dtypes import ALL, FAMILIES, WIDE, as_dtype, exact_limit, is_float
from shardproof.properties.cases.strategies.making import sampled


@lru_cache
def dtypes(
    *,
    floating: bool = False,
    numeric: bool = False,
    ordered: bool = False,
    terms: int = 1,
    wrapping: bool = True,
    wide: bool = False,
) -> st.SearchStrategy[str]:
    """Names of dtypes, all of `ALL` by default. Shrinks to float32.

    Arguments:
        floating: only those with gradients: real and complex floats.
        numeric: without bool.
        ordered: without complex numbers.
        terms: only those in which a sum of `terms` ones is exact.
        wrapping: whether sums of integers may wrap around, and are thus always exact.
        wide: whether 64-bit dtypes are drawn as well.
    """
    chosen = [
        name
        for name in (*ALL, *(WIDE if wide else ()))
        if (not floating or is_float(as_dtype(name)))
        and (not numeric or name != "bool")
        and (not ordered or not name.startswith("complex"))
        and (wrapping or name not in ("int64", "uint64"))  # JAX takes their mean in float64
        and (exact_limit(as_dtype(name)) >= terms or (wrapping and not is_float(as_dtype(name))))
    ]
    families = [tuple(name for name in family if name in chosen) for family in FAMILIES]
    # two choices for every family: with one for those of a single name, that would be the simplest
    return st.tuples(sampled([family for family in families if family]), st.integers(0, 59)).map(
        lambda drawn: drawn[0][drawn[1] % len(drawn[0])]
    )
