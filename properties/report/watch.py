"""A process beside a run, which writes the report if the run does not end by itself: XLA may end the process.

It reads the results of the run, a line of JSON each, until the line that ends them, or the end of the run.
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
from shardproof.properties.report.session import facts, report_paths, write_somewhere

WATCH = pytest.StashKey["Watch"]()


class Watch:
    """The process beside a run."""

    def __init__(self, config: pytest.Config) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:  # the output of a test, which pytest hides if the process dies
            capture.resume_global_capture()
        errors = os.dup(2)
        if capture is not None:
            capture.suspend_global_capture()
        command = [sys.executable, "-m", __name__, str(errors), *map(str, report_paths(config))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[errors], env=environment, text=True)
        os.close(errors)
        config.add_cleanup(self.end)
        self.send(facts=facts(config, ""))

    def send(self, **what: Any) -> None:
        """Sends the facts of the run, the test that begins, its tallies, or the end."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it was ended along with this run
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Ends it: the run writes its report itself."""
        self.send(over=True)
        self.process.communicate()


def begin(config: pytest.Config) -> None:
    """Starts a process beside a run that is to write a report, unless this is a worker of it."""
    if own(config, "report") and not hasattr(config, "workerinput"):
        config.stash[WATCH] = Watch(config)


def watch(errors: int, paths: list[str]) -> None:
    """Reads until the run is over, and writes the reports if it dies before."""
    known: dict[str, Any] = {"facts": {}, "begun": "", "verified": []}
    for line in sys.stdin:
        new = json.loads(line)
        if "over" in new:
            return
        known["verified"] += new.pop("verified", [])
        known |= new
    from shardproof.properties.report.report import record_of, report_text
    from shardproof.properties.runner.tally import Tally

    ended = f"The process ended in the middle of {known['begun'] or 'the collection of tests'}"
    last = ""
    with suppress(OSError):  # a terminal, or a file that cannot be read
        size = os.fstat(errors).st_size
        last = os.pread(errors, 2_000, max(0, size - 2_000)).decode(errors="replace").strip()
    last = last or "It wrote nothing to standard error, or not where it can be read."
    tallies = [Tally.from_json(one) for one in known["verified"]]
    record = record_of(tallies, {**known["facts"], "ended": ended}, [{"test": known["begun"], "text": last}])
    for path in paths:
        write_somewhere(Path(path), report_text(path, record), print)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2:])
