"""Contracts: what an operation is called, takes, means and must hold, independent of who implements it."""

import copyreg
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from shardproof.properties.contracts.contract import Call, Contract, Oracle, Scope, Violation


@cache
def _by_name() -> dict[str, Contract]:
    modules = (import_module(f"{__name__}.{source.stem}") for source in sorted(Path(__file__).parent.glob("[!_]*.py")))
    return {contract.name: contract for module in modules for contract in getattr(module, "CONTRACTS", ())}


class _ByName(Mapping[str, Contract]):
    """The contracts by their names: the `CONTRACTS` of every module of this room, imported once they are needed."""

    def __getitem__(self, name: str) -> Contract:
        return _by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_by_name())

    def __len__(self) -> int:
        return len(_by_name())


CONTRACTS: Mapping[str, Contract] = _ByName()


def is_listed(contract: Contract) -> bool:
    """True if it is found by its name: not so what a program of a user's own means."""
    return CONTRACTS.get(contract.name) is contract


def contract_of(name: str) -> Contract:
    """The contract of that name: of a user's program, of which a file holds no more, one that says nothing."""
    return CONTRACTS.get(name) or Contract(name, _unknown, Call(), Oracle(_unknown, _unknown, _unknown))


copyreg.pickle(Contract, lambda contract: (contract_of, (contract.name,)))  # of which another process has its own


def _unknown(*given: Any) -> Any:
    raise ValueError("expected the program that this is a case of")


__all__ = ["CONTRACTS", "Contract", "Scope", "Violation", "contract_of", "is_listed"]
