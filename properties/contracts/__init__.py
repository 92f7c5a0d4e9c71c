"""Contracts: what an operation is called, takes, means and must hold, independent of who implements it."""

from properties.contracts.collectives import COLLECTIVES
from properties.contracts.contract import Contract, Scope, Violation
from properties.contracts.matmul import MATMULS

CONTRACTS: dict[str, Contract] = {contract.name: contract for contract in (*COLLECTIVES, *MATMULS)}

__all__ = ["CONTRACTS", "Contract", "Scope", "Violation"]
