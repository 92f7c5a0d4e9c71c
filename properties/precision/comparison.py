"""When the blocks of an implementation equal those of the oracle."""

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.programs.violation import Broken, Difference, Of


def compare(
    case: Case,
    data: Data,
    of: Of,
    what: str,
    *,
    expected: np.ndarray,
    actual: np.ndarray,
    bound: np.ndarray | None = None,
    exact: np.ndarray | None = None,
    off_in_doubles: np.ndarray | None = None,
    leaf: int = 0,
) -> None:
    """Blocks agree: in shape, in dtype, and bit for bit, or within `bound` of `exact`.

    `expected` is what `exact` is rounded to, and always right. Where the bound is negative, a sum may overflow on
    its way: what is not finite is right as well, but where `exact` is infinite not the other infinity. `off_in_doubles`
    says where double precision does not help. `leaf` is which of the results, or operands, the blocks belong to.

    Raises:
        Broken: if they do not.
    """
    if actual.shape != expected.shape:
        lead = len(case.mesh.sizes)
        raise Broken(
            "shape",
            f"{what} has blocks of shape {actual.shape[lead:]}: expected {expected.shape[lead:]}",
            data=data,
            difference=Difference.between(of, what, expected, actual, leaf=leaf),
        )
    if actual.dtype != expected.dtype:
        raise Broken(
            "dtype",
            f"{what} has dtype {actual.dtype}: expected {expected.dtype}",
            data=data,
            difference=Difference.between(of, what, expected, actual, leaf=leaf),
        )
    same = nan_equal(actual, expected)
    if bound is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            right = (expected if exact is None else exact).astype(wide(expected.dtype))
            found = actual.astype(wide(actual.dtype))
            same |= np.abs(found - right) <= np.abs(bound)
            same |= (bound < 0) & ~np.isfinite(found) & (np.isnan(found) | ~np.isinf(right))
    if not same.all():
        sizes = case.mesh.sizes
        wrong = ~same.reshape(*sizes, -1).all(axis=-1)
        count = f"{int(wrong.sum())} of {case.mesh.size} blocks wrong"
        finding = count if what == "result" else f"{what}: {count}"
        unrounded = None if bound is None else exact
        difference = Difference(of, what, expected, actual, ~same, bound, leaf, off_in_doubles, unrounded)
        raise Broken("values", finding, data=data, difference=difference)
