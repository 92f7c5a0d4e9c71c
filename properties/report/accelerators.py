"""Tests that need an accelerator or its compiler: skipped without, failed where that is required.

`@pytest.mark.tpu` and `@pytest.mark.gpu` are for tests that measure time, which the virtual devices of a CPU, and other
workers, would change. `@pytest.mark.tpu_compiler` needs libtpu and no TPU.
"""

import pytest

from shardproof.properties.performance import tpu_compiler

ACCELERATORS = ("tpu", "gpu")
REQUIRED = {name: f"--require-{name.replace('_', '-')}" for name in (*ACCELERATORS, "tpu_compiler")}
"""The markers, and the options that make their tests fail where they cannot run."""

MEASURED, NEEDS = "shardproof measured", "shardproof needs"
"""The properties of a test's report that hold a table, as text, and the accelerator that the test needs."""


def missing(name: str, config: pytest.Config) -> str:
    """Why a test that needs an accelerator, or its compiler, cannot run here; empty if it can."""
    if name == "tpu_compiler":
        return tpu_compiler.missing()
    platform, devices = config.getoption("--platform"), config.getoption("--devices")
    kind, workers = name.upper(), getattr(config, "workerinput", {"workercount": 1})["workercount"]
    if platform != name:
        return (
            f"this test measures time on {kind} devices, and this run is on {devices} {platform} devices: expected "
            f"pytest -m {name} --platform {name} --devices N, on a machine with N {kind} devices"
        )
    if devices < 2:
        return f"this test measures what {kind} devices send to one another: expected --devices of 2 or more"
    if workers > 1:
        return f"this test measures time, which {workers} workers at once would change: expected a run with -n 0"
    return ""
