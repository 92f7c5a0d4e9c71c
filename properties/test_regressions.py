"""What was once wrong is right: recorded failures of this project's implementations, checked before anything else."""

import pytest

from shardproof.properties.failures.lookup import Lookup
from shardproof.properties.failures.record import Recorded, died
from shardproof.properties.failures.replay import devices_needed, regressions, run, run_isolated

RECORDED = [
    pytest.param(recorded, id=path.stem, marks=pytest.mark.needs_devices(devices_needed(recorded)))
    for path, recorded in regressions()
]

if RECORDED:

    @pytest.mark.parametrize("recorded", RECORDED)
    @pytest.mark.usefixtures("devices")
    def test_regression(recorded: Recorded) -> None:
        """The law that was broken on this case holds."""
        lookup = Lookup(recorded.implementation)
        if died(recorded.finding):
            run_isolated(recorded, lookup)
        else:
            run(recorded, lookup.load())
