"""Functions that send nothing where no formula is given: below any bound, or not compared."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array

from shardproof.properties.communication.counted import KNOWN
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.violation import NothingToCompare
from shardproof.properties.report.summary import notes
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.judging import require_held
from shardproof.properties.runner.search import find_violation
from shardproof.properties.runner.tally import Tally

SMALL = Scope(max_devices=4, available=4)


def silent_layer(tokens: Array, router_weights: Array, expert_weights: Array, axis_name: Any, **options: Any) -> Array:
    """Zeros for every token."""
    return jnp.zeros((tokens.shape[0], expert_weights.shape[-1]), tokens.dtype)


SILENT: dict[str, Callable[..., Array]] = {
    "all_gather_matmul_lhs_contracting": lambda a, w, axis_name: jnp.zeros((a.shape[0], w.shape[1]), a.dtype),
    "transformer_block": lambda x, w_in, w_out, axis_name: jnp.zeros_like(x),
    "attention": lambda q, k, v, axis_name, *, causal=False: jnp.zeros_like(q),
    "embedding_lookup": lambda table, ids, axis_name: jnp.zeros((len(ids), table.shape[1]), table.dtype),
    "global_norm": lambda x, axis_name: jnp.zeros((), x.dtype),
    "pipeline": lambda weights, x, axis_name: jnp.zeros_like(x),
    "rms_norm": lambda x, scale, axis_name, *, epsilon: jnp.zeros_like(x),
}

UNBOUNDED = {
    "load_balancing_loss",
    "mlp_loss",
    "moe_layer",
    "ragged_all_to_all",
}
"""These send what routing, metadata or the layout of the parameters decides; one expert is always balanced."""


def test_every_contract_has_a_bound_or_none_for_a_reason() -> None:
    """Every contract has a formula, a lower bound or a reason for neither."""
    bounded = {name for name, contract in CONTRACTS.items() if contract.least is not None}
    assert {*KNOWN, *bounded, *UNBOUNDED} == {*CONTRACTS}
    assert SILENT.keys() < bounded


def test_what_nothing_is_known_of_is_not_held() -> None:
    """A layer without a formula or bound is not checked and reported as unknown; nothing is compiled for that."""
    implementation = user_implementation("moe_layer", silent_layer)
    law = LAWS["communication"]
    assert not law.applies_to(implementation, "xla")
    finding = find_violation([law], implementation, engine_named("simulate"), SMALL, max_examples=4, random_seed=1)
    assert finding.violation is None
    assert (finding.tally.structures, finding.tally.uncompared > 0) == (0, True)
    assert "nothing to compare communication with" in require_held(law, implementation, finding.tally)
    (text,) = notes([finding.tally])
    assert text.startswith(
        "communication unknown: moe_layer[silent_layer]: not checked, with no expectation or lower bound; "
        "the largest case sends no communication"
    )


def test_what_is_compared_in_part_keeps_its_reasons() -> None:
    """Cases without a bound are counted as not run where others have one."""
    tally = Tally("moe_layer", "mine", "communication", "simulate", structures=10)
    tally.not_run[NothingToCompare.TEXT] = 30
    tally.communication = {"against": "lower bound", "cost": "all_gather=1", "case": "a case", "bytes": 4}
    not_run, compared = notes([tally])
    assert not_run == f"not run: moe_layer[mine]: {NothingToCompare.TEXT}: 30 structures"
    assert "checked against the lower bound only" in compared


@pytest.mark.parametrize("contract", [*sorted(SILENT)])
def test_what_sends_nothing_is_below_any_bound(contract: str) -> None:
    """A function that sends nothing is below the lower bound of its contract."""
    law, implementation = LAWS["communication"], user_implementation(contract, SILENT[contract])
    finding = find_violation(
        [law], implementation, engine_named("simulate"), SMALL, max_examples=60, random_seed=1, shrink=False
    )
    assert finding.violation is not None
    assert "no communication: 1 byte must pass every device (lower bound)" in finding.violation.broken.finding
