"""The profiles of a run: how many structures are drawn and compiled, from which seeds, and what is remembered."""

import hashlib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

STRUCTURES = {"dev": 10, "ci": 10, "matrix": 6, "few": 2, "thorough": 100, "debug": 4}
"""On how many structures each law has to hold in the interpreter, by profile; at most twice as many are drawn."""

DATABASE = Path(".hypothesis")


def compiled_of(structures: int) -> int:
    """The number of structures on which each law has to hold when compiled, which costs much more than interpreting."""
    return max(min(structures, 3), structures // 6)


def drawn_on(engine: str, structures: int) -> int:
    """The number of structures on which each law has to hold on an engine, given that for the interpreter."""
    return structures if engine == "simulate" else compiled_of(structures)


def structures_in_force() -> int:
    """The number of structures on which each law has to hold in the interpreter, by the profile in force."""
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
    # is stated here, because Hypothesis repeats everything where it sees continuous integration
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    # `explain` traces every line that runs, which takes minutes for one failure; reports have their own explanations
    phases = [phase for phase in Phase if phase is not Phase.explain]
    slow = settings(deadline=None, suppress_health_check=quiet, derandomize=False, phases=phases)
    saved: dict[str, Any] = {"database": database}
    fixed: dict[str, Any] = {"derandomize": True, "database": None, "print_blob": True}
    printed = {"phases": [Phase.explicit, Phase.reuse, Phase.generate], "verbosity": Verbosity.verbose}
    for name, count, more in (
        ("dev", 200, saved),  # while developing: enough to find most things, in a coffee's time
        ("ci", 200, fixed),  # in continuous integration: the same cases for everyone, nothing remembered
        ("matrix", 40, fixed),  # the same for every number of devices in turn, where one number has already run in full
        ("few", 10, fixed),  # the fewest of everything, for what every case meets, such as annotations that are checked
        ("thorough", 5000, saved | {"print_blob": True}),  # at night: new cases, those that failed before first
        ("debug", 10, saved | printed),  # looking for the cause of a failure: no shrinking, everything printed
    ):
        settings.register_profile(name, slow, max_examples=count, **more)
