"""Contracts: what an operation is called, takes, means and must hold, independent of who implements it."""

import copyreg
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from shardproof.properties.contracts.contract import Call, Contract, Oracle, Scope, Violation

SOURCES = sorted(Path(__file__).parent.glob("[!_]*.py"))


def _contracts_in(source: Path) -> tuple[Contract, ...]:
    return getattr(import_module(f"{__name__}.{source.stem}"), "CONTRACTS", ())


@cache
def _named(name: str) -> Contract | None:
    # most programs have a name that is no contract's: only what has it in quotes is imported, with its functions
    sources = (source for source in SOURCES if f'"{name}"' in source.read_text(encoding="utf-8"))
    return next((one for source in sources for one in _contracts_in(source) if one.name == name), None)


class _ByName(Mapping[str, Contract]):
    """The contracts by their names: the `CONTRACTS` of every module of this room, which is imported if it is needed."""

    def __getitem__(self, name: str) -> Contract:
        contract = _named(name)
        if contract is None:
            raise KeyError(name)
        return contract

    def __iter__(self) -> Iterator[str]:
        return (contract.name for source in SOURCES for contract in _contracts_in(source))

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
