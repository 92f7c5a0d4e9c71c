"""Contracts: what an operation is called, takes, means and must hold, independent of who implements it."""

import copyreg
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from shardproof.properties.contracts.call import Call
from shardproof.properties.contracts.contract import Contract, Oracle, Scope, Violation

MODULES = {
    "collectives": "all_reduce all_gather all_gather_invariant reduce_scatter all_to_all permute ring_shift broadcast",
    "matmul": "all_gather_matmul_lhs_contracting all_gather_matmul_lhs all_gather_matmul_rhs "
    "matmul_reduce_scatter matmul_all_reduce transformer_block",
    "attention": "attention",
    "baselines": "sharded_matmul two_matmuls",
    "cross_entropy": "vocab_parallel_cross_entropy",
    "embedding": "embedding_lookup",
    "halo": "halo_exchange",
    "local": "shard_mean shard_roll",
    "means": "masked_mean weighted_mean",
    "mlp_loss": "mlp_loss",
    "moe": "moe_layer gated_moe_layer expert_choice_layer global_moe_layer",
    "norms": "global_norm rms_norm",
    "pipeline": "pipeline",
    "projected_cross_entropy": "projected_cross_entropy",
    "ragged": "ragged_all_to_all",
    "reshard": "reshard",
    "router_losses": "load_balancing_loss router_z_loss shard_load_balancing_loss shard_router_z_loss",
    "sequence_parallel": "sequence_parallel_mlp normalised_sequence_parallel_mlp",
}
"""The modules that have a `CONTRACT`, or several `CONTRACTS`, and the names of these, as every table lists them."""


class _ByName(Mapping[str, Contract]):
    """The contracts by their names, each of a module that is imported when it is asked for."""

    def __init__(self) -> None:
        self.modules = {name: module for module, names in MODULES.items() for name in names.split()}

    def __getitem__(self, name: str) -> Contract:
        module = import_module(f"{__name__}.{self.modules[name]}")
        return next(one for one in getattr(module, "CONTRACTS", None) or [module.CONTRACT] if one.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


CONTRACTS: Mapping[str, Contract] = _ByName()


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
