"""Contracts: what an operation is called, takes, means and must hold, independent of who implements it.

A module of this package that has a `CONTRACT`, or several `CONTRACTS`, adds them by being there.
"""

import copyreg
import pkgutil
from importlib import import_module
from typing import Any

from shardproof.properties.contracts.call import Call
from shardproof.properties.contracts.contract import Contract, Oracle, Scope, Violation


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


def listed(contract: Contract) -> bool:
    """Whether it is found by its name: not so what a program of a user's own means."""
    return CONTRACTS.get(contract.name) is contract


def contract_of(name: str) -> Contract:
    """The contract of that name: of a user's program, of which a file holds no more, one that says nothing."""
    return CONTRACTS.get(name) or Contract(name, _unknown, Call(), Oracle(_unknown, _unknown, _unknown))


copyreg.pickle(Contract, lambda contract: (contract_of, (contract.name,)))  # of which another process has its own


def _unknown(*given: Any) -> Any:
    raise ValueError("expected the program that this is a case of")


__all__ = ["CONTRACTS", "Contract", "Scope", "Violation", "contract_of", "listed"]
