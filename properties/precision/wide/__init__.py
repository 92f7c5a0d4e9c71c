"""Wide arithmetic: a traced program in double precision, and how far off its own arithmetic may be.

Every operation has the rule that it has, on doubles. Beside each number goes how far what the program computes in the
dtypes that were traced may be from it: what its operands' errors make of it, and its own rounding. So a program's
mathematics is compared with its reference to many digits, and its roundings with a bound that nobody guessed.
"""

from shardproof.properties.precision.wide import (  # each module registers its rules
    casts,
    choices,
    elementwise,
    moving,
    sampled,
    sums,
)
from shardproof.properties.precision.wide.arithmetic import Change, ChangedArithmetic, WideArithmetic
from shardproof.properties.precision.wide.casts import FORMATS
from shardproof.properties.precision.wide.held import Wide
from shardproof.properties.precision.wide.rounding import DOUBLES, OWN, WAYS, Rounding
from shardproof.properties.precision.wide.table import WIDE, wide_rule

__all__ = [
    "DOUBLES",
    "FORMATS",
    "OWN",
    "WAYS",
    "WIDE",
    "Change",
    "ChangedArithmetic",
    "Rounding",
    "Wide",
    "WideArithmetic",
    "casts",
    "choices",
    "elementwise",
    "moving",
    "sampled",
    "sums",
    "wide_rule",
]
