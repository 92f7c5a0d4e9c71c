"""Implementations that are wrong on purpose, and right ones that look odd.

A suite that cannot fail proves nothing: each wrong one must be reported, by the law that is registered for
it and on the smallest mesh that shows it. A suite that cries wolf proves nothing either: of the right
ones, none may be. Every module of this package enters its functions into the catalogue by being there.
"""

import pkgutil
from importlib import import_module

from shardproof.properties.mutants.catalogue import MUTANTS, Mutant, mutant

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["MUTANTS", "Mutant", "mutant"]
