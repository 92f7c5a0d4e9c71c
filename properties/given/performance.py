"""Times of the functions given with `--impl` on real TPUs and GPUs, beside the plain form of their contract."""

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
def test_given_performance(platform: str, pytestconfig: pytest.Config, record_table: Callable[[object], None]) -> None:
    """Every element is right; of a product that claims to overlap, it takes no longer than the naive form."""
    devices = jax.devices()[: pytestconfig.getoption("--devices")]
    mesh, failures, measured = mesh_of(len(devices)), [], 0
    for contract in dict.fromkeys(one.contract.name for one in pytestconfig.stash[GIVEN]):
        given = [one for one in pytestconfig.stash[GIVEN] if one.contract.name == contract]
        if contract not in MEASURED:
            continue
        measured += 1
        trace = tracer(pytestconfig.getoption("--profile"), contract)
        try:
            rows = measure(forms(contract, mesh, more=given), devices, trace=trace)
        except NotImplementedError as error:
            pytest.skip(f"{contract}: unsupported on mesh {mesh}, at the size that is measured: {error}")
        record_table(table([*rows.values()], f"{contract} on {len(devices)} {devices[0].device_kind}, mesh {mesh}"))
        claims = all(one.overlap is not None for one in given)
        failures += violations(rows, mesh, chip_of(devices[0]), hides=claims)
    if not measured:
        pytest.skip(f"none of the given functions is measured: expected one of {', '.join(MEASURED)}")
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
