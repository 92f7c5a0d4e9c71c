"""Implementations that are wrong on purpose, and right ones that look odd.

A suite that cannot fail proves nothing: each wrong one must be reported, by the law that is meant for
it and on the smallest mesh that shows it. A suite that cries wolf proves nothing either: of the right
ones, none may be.
"""

from properties.mutants import (  # each module enters its functions into the catalogue
    claims,
    communication,
    conditions,
    doublings,
    exchanges,
    gathers,
    gradients,
    large,
    large_blocks,
    not_finite,
    products,
    products_both_ways,
    reductions,
    rings,
    rounding,
    runtime,
    scatters,
    shifts,
    types,
)
from properties.mutants.catalogue import MUTANTS, Mutant, mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "claims",
    "communication",
    "conditions",
    "doublings",
    "exchanges",
    "gathers",
    "gradients",
    "large",
    "large_blocks",
    "mutant",
    "not_finite",
    "products",
    "products_both_ways",
    "reductions",
    "rings",
    "rounding",
    "runtime",
    "scatters",
    "shifts",
    "types",
]
