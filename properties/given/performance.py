"""Times on real TPUs and GPUs: correct elements, and ratios of medians, in one run each.

Of the functions given with `--impl`, each beside the plain form of its contract, or else of all forms of this project.
Skipped where there are no such devices (`--platform tpu`, `--platform gpu`), failed under `--require-tpu` and
`--require-gpu`. The same measuring code runs on virtual devices of a CPU in the suite's own tests, where its times say
nothing and only its elements count.
"""

from collections.abc import Callable

import jax
import pytest

from shardproof.properties.performance.measured import (
    MEASURED,
    chip_of,
    forms,
    measure,
    mesh_of,
    table,
    tracer,
    violations,
)
from shardproof.properties.report.session import GIVEN

PLATFORMS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("tpu", "gpu")]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("contract", MEASURED)
def test_performance(
    contract: str, platform: str, pytestconfig: pytest.Config, record_table: Callable[[object], None]
) -> None:
    """Every element is right; what claims to hide its communication takes no longer than what waits for it."""
    every = pytestconfig.stash[GIVEN]
    given = [one for one in every if one.contract.name == contract]
    if every and not given:
        pytest.skip(f"none of the given functions is one of {contract}")
    devices = jax.devices()[: pytestconfig.getoption("--devices")]
    mesh, trace = mesh_of(len(devices)), tracer(pytestconfig.getoption("--profile"), contract)
    try:
        rows = measure(forms(contract, mesh, more=given), devices, trace=trace)
    except NotImplementedError as error:
        if not given:
            raise
        pytest.skip(f"{contract}: unsupported on mesh {mesh}, at the size that is measured: {error}")
    record_table(table([*rows.values()], f"{contract} on {len(devices)} {devices[0].device_kind}, mesh {mesh}"))
    claims = all(one.overlap is not None for one in given)
    if failures := violations(rows, mesh, chip_of(devices[0]), hides=claims):
        pytest.fail("\n".join(failures), pytrace=False)
