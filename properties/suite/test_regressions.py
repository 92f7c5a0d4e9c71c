"""Recorded failures of this project's implementations stay repaired; they are checked before anything else."""

import pytest

from shardproof.properties.report.failures.files import Recorded
from shardproof.properties.report.failures.replay import REGRESSIONS, devices_needed, read, repeat
from shardproof.properties.runner.named import BuiltIn

RECORDED = [
    pytest.param(recorded, id=path.stem, marks=pytest.mark.needs_devices(devices_needed(recorded)))
    for path, recorded in [(path, read(path)) for path in sorted(REGRESSIONS.glob("*.json"))]
]

if RECORDED:

    @pytest.mark.parametrize("recorded", RECORDED)
    @pytest.mark.usefixtures("devices")
    def test_regression(recorded: Recorded) -> None:
        """The law that was broken on this case holds."""
        source = BuiltIn(recorded.case.contract.name, recorded.name)
        repeat(recorded, source, source.load())
