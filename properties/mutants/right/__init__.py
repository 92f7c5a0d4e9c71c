"""Right implementations that look odd: other algorithms, other types, loops, maps, gradients of their own.

Every module of this package enters its functions into the catalogue by being there.
"""

import pkgutil
from importlib import import_module

from shardproof.properties.mutants.catalogue import RIGHT_ONES, RightOne, right

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["RIGHT_ONES", "RightOne", "right"]
