"""Tests that need an accelerator or its compiler: skipped without, failed where that is forbidden.

`@pytest.mark.tpu` and `@pytest.mark.gpu` are for what measures time: on virtual devices of a CPU that says nothing of
either, and what other workers do meanwhile is in every number. `@pytest.mark.tpu_compiler` needs libtpu and no TPU.
"""

import pytest

from shardproof.properties.performance import tpu_compiler

ACCELERATORS = ("tpu", "gpu")
REQUIRED = {name: f"--require-{name.replace('_', '-')}" for name in (*ACCELERATORS, "tpu_compiler")}
"""The markers, and the options that forbid to leave their tests out."""

MEASURED, NEEDS = "shardproof measured", "shardproof needs"
"""The properties of a test's report that hold a table, as text, and the accelerator that the test needs."""


def missing(name: str, config: pytest.Config) -> str:
    """Why nothing can be measured on an accelerator or compiled for it in this run, as a sentence; empty if it can."""
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
