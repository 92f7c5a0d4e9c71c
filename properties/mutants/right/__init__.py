"""Right implementations that look odd: other algorithms, other types, loops, maps, gradients of their own."""

from properties.mutants.right import (  # each module enters its functions into the catalogue
    exchanges,
    gathers,
    products,
    reductions,
    scatters,
    shifts,
)
from properties.mutants.right.catalogue import RIGHT_ONES, RightOne, right

__all__ = ["RIGHT_ONES", "RightOne", "exchanges", "gathers", "products", "reductions", "right", "scatters", "shifts"]
