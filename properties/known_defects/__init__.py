"""Defects of JAX and XLA that the laws found, each with a script, and some with the condition under which they excuse.

A law is never adapted to a backend. A case that fails because of a defect with an entry in `registry` is excused, and
counted as such, if the law holds on this very case without the defect; everything else that fails is a failure. A
script in plain JAX exits with 1, or aborts, while its defect is there, and exits with 0 once it is fixed; a test runs
them all, and so notices the day of the repair.
"""

from shardproof.properties.known_defects.excuses import (
    at_fault,
    excuse,
    excuse_without_compiling,
    find_fatal,
)
from shardproof.properties.known_defects.registry import DEFECTS, Defect, find_aborting, release

__all__ = [
    "DEFECTS",
    "Defect",
    "at_fault",
    "excuse",
    "excuse_without_compiling",
    "find_aborting",
    "find_fatal",
    "release",
]
