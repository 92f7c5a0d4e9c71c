"""Defects of JAX and XLA that the laws found, each with the exact condition under which it shows.

A law is never bent to what a backend happens to do. A case that fails because of a defect listed
here is counted and reported as such, if without the defect the law holds on this very case; everything
else that fails is a failure. Each entry has a script of the same name in plain JAX that exits with 1
while the defect is there and with 0 once it is fixed; a test runs them all, so the day of the repair is noticed.
"""

from shardproof.properties.known_defects.excuses import aborting, at_fault, excused, fatal, spared
from shardproof.properties.known_defects.registry import DEFECTS, Defect, release

__all__ = ["DEFECTS", "Defect", "aborting", "at_fault", "excused", "fatal", "release", "spared"]
