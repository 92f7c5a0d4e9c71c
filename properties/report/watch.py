"""A process beside a run, which writes the report if the run does not end by itself: XLA may end the process.

It reads what the run has so far, a line of JSON each, until a line says that it has ended, or there is no more.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardproof.plugin import own
from shardproof.properties.report.session import facts, report_paths

WATCH = pytest.StashKey["Watch"]()
LAST = 2_000
"""How many bytes are reported of what the process wrote to standard error at last."""


class Watch:
    """The process beside a run, and what it is told."""

    def __init__(self, config: pytest.Config) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:  # what a test writes, which pytest hides if the process dies
            capture.resume_global_capture()
        errors = os.dup(2)
        if capture is not None:
            capture.suspend_global_capture()
        command = [sys.executable, "-m", __name__, str(errors), *map(str, report_paths(config))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[errors], env=environment, text=True)
        os.close(errors)
        config.add_cleanup(self.end)
        self.tell(facts=facts(config, ""))

    def tell(self, **what: Any) -> None:
        """Says what is begun, counted, or over."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it was ended by whoever ends this run
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Ends it: the run writes its report itself, or says why there is none."""
        self.tell(over=True)
        self.process.communicate()


def begin(config: pytest.Config) -> None:
    """Has a process beside a run that is to write a report, unless this is a worker of it."""
    if own(config, "report") and not hasattr(config, "workerinput"):
        config.stash[WATCH] = Watch(config)


def watch(errors: int, paths: list[str]) -> None:
    """Reads until the run is over; writes the reports if it never is."""
    known: dict[str, Any] = {"facts": {}, "begun": "", "verified": []}
    for line in sys.stdin:
        told = json.loads(line)
        if "over" in told:
            return
        known["verified"] += told.pop("verified", [])
        known |= told
    from shardproof.properties.report.report import record_of, write_report
    from shardproof.properties.runner.tally import Tally

    ended = f"The process ended in the middle of {known['begun'] or 'the collection of tests'}"
    last = ""
    with suppress(OSError):  # a terminal, or a file that is not to be read
        last = os.pread(errors, LAST, max(0, os.fstat(errors).st_size - LAST)).decode(errors="replace").strip()
    told = [
        {"test": known["begun"], "text": last or "It wrote nothing to standard error, or not where it can be read."}
    ]
    tallies = [Tally.from_json(one) for one in known["verified"]]
    record = record_of(tallies, {**known["facts"], "ended": ended}, told)
    for path in paths:
        write_report(Path(path), record, print)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2:])
