"""The Hypothesis profiles: how much is explored, and whether a run can be repeated."""

import hashlib
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

STRUCTURES = {"dev": 20, "ci": 12, "matrix": 8, "few": 4, "thorough": 400, "debug": 8}
"""The profiles of this project, and how many structures of each implementation they draw for the interpreter."""

DATABASE = Path(".hypothesis")
"""Where Hypothesis keeps what failed."""


def compiled_of(structures: int) -> int:
    """How many structures are drawn for XLA where so many are for the interpreter: compiling one costs much more."""
    return max(2, structures // 6)  # the first that Hypothesis draws is the simplest


def structures_in_force() -> int:
    """How many structures of each implementation the profile in force draws for the interpreter."""
    return STRUCTURES.get(settings.get_current_profile_name(), STRUCTURES["dev"])


def seed_of(run: str | int, *names: object) -> int:
    """The seed of one test, by its names, in a run with `--hypothesis-seed`: each draws other cases, always the same.

    Without a seed there is a new one for every test, or, where a profile is derandomized, the same in every run.
    """
    return int.from_bytes(hashlib.sha256(repr((str(run), *map(str, names))).encode()).digest()[:8])


def register(devices: int) -> None:
    """Registers the profiles, with one example database for each number of devices.

    A failure that was saved on 8 devices passes on 2, where its mesh cannot be drawn; a shared
    database would then delete it.
    """
    database = DirectoryBasedExampleDatabase(DATABASE / f"devices-{devices}")
    # a case compiles programs, so how long it takes says nothing about the code under test; whether it can be repeated
    # is said here, because Hypothesis repeats everything where it sees continuous integration
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    # `explain` traces every line that runs, to name parts of a case that do not matter: minutes for one failure, and
    # what a report says of a case has its own checks
    phases = [phase for phase in Phase if phase is not Phase.explain]
    slow = settings(deadline=None, suppress_health_check=quiet, derandomize=False, phases=phases)
    # while developing: enough to find most things, in a coffee's time
    settings.register_profile("dev", slow, max_examples=200, database=database)
    # in continuous integration: the same cases for everyone, nothing remembered
    settings.register_profile("ci", slow, max_examples=200, derandomize=True, database=None, print_blob=True)
    # the same for every number of devices in turn, where one number has already run in full
    settings.register_profile("matrix", slow, max_examples=40, derandomize=True, database=None, print_blob=True)
    # the fewest of everything, for what every case meets, such as annotations that are checked
    settings.register_profile("few", slow, max_examples=10, derandomize=True, database=None, print_blob=True)
    # at night: new cases every time, and those that failed before come first
    settings.register_profile("thorough", slow, max_examples=5000, database=database, print_blob=True)
    # while looking for the cause of a failure: few cases, no shrinking, everything said
    once = [Phase.explicit, Phase.reuse, Phase.generate]
    settings.register_profile(
        "debug", slow, max_examples=10, database=database, phases=once, verbosity=Verbosity.verbose
    )
