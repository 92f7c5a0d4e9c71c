"""Right implementations that look odd: other algorithms, other types, loops, maps, gradients of their own."""

from properties.mutants.right import (  # each module enters its functions into the catalogue
    exchanges,
    gathers,
    products,
    reductions,
    rounding,
    scatters,
    shifts,
    unusual,
)
from properties.mutants.right.catalogue import RIGHT_ONES, RightOne, right

__all__ = [
    "RIGHT_ONES",
    "RightOne",
    "exchanges",
    "gathers",
    "products",
    "reductions",
    "right",
    "rounding",
    "scatters",
    "shifts",
    "unusual",
]
