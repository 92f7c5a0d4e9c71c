"""Contracts: what an operation is called, takes, means and must hold, independent of who implements it.

A module of this package that has a `CONTRACT`, or several `CONTRACTS`, adds them by being there.
"""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from shardproof.properties.contracts.contract import Contract, Scope, Violation


def _found() -> dict[str, Contract]:
    found: dict[str, Contract] = {}
    for name in ORDER + sorted({module.name for module in pkgutil.iter_modules(__path__)} - {*ORDER}):
        module = import_module(f"{__name__}.{name}")
        own = getattr(module, "CONTRACTS", ()) or [c for c in [getattr(module, "CONTRACT", None)] if c is not None]
        found |= {contract.name: contract for contract in own}
    return found


ORDER = ["collectives", "matmul"]
"""What comes first in every table."""

CONTRACTS: dict[str, Contract] = _found()


@contextmanager
def added(contract: Contract) -> Iterator[None]:
    """One contract more, for a while, in place of another that was added under its name.

    Raises:
        ValueError: if there is one of its name that is always there.
    """
    before = CONTRACTS.get(contract.name)
    if before is not None and before.listed:
        raise ValueError(f"contract={contract.name!r}: there is one of that name already")
    CONTRACTS[contract.name] = contract
    try:
        yield
    finally:
        del CONTRACTS[contract.name]
        CONTRACTS.update({} if before is None else {before.name: before})


__all__ = ["CONTRACTS", "Contract", "Scope", "Violation", "added"]
