"""Times of collectives and products on real TPUs and GPUs: correct elements, and ratios of medians, in one run each.

Skipped where there are no such devices (`--platform tpu`, `--platform gpu`), failed under `--require-tpu` and
`--require-gpu`. The same measuring code runs on virtual devices of a CPU in the suite's own tests, where its times say
nothing and only its elements count.
"""

from collections.abc import Callable

import jax
import pytest

from shardproof.properties.performance.measured import (
    COLLECTIVES,
    chip_of,
    forms,
    measure,
    mesh_of,
    table,
    tracer,
    violations,
)
from shardproof.properties.programs.examples import SHARDED

PLATFORMS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("tpu", "gpu")]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("contract", [*COLLECTIVES, *SHARDED])
def test_performance(
    contract: str, platform: str, pytestconfig: pytest.Config, record_table: Callable[[object], None]
) -> None:
    """Every element is right, and what hides its communication takes less than what waits for it."""
    devices = jax.devices()[: pytestconfig.getoption("--devices")]
    mesh = mesh_of(len(devices))
    rows = measure(forms(contract, mesh), devices, trace=tracer(pytestconfig.getoption("--profile"), contract))
    record_table(table([*rows.values()], f"{contract} on {len(devices)} {devices[0].device_kind}, mesh {mesh}"))
    failures = violations(rows, mesh, chip_of(devices[0]))
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
