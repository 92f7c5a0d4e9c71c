"""The platforms to verify on, and whether this machine has them."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache

import jax

from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.programs.program import matmul_precision
from shardproof.properties.runner.stated import GivenError

BACKENDS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""The platforms, and what JAX calls their backends."""


DEVICE_COUNT = "xla_force_host_platform_device_count"

DEVICES = 8
"""How many virtual devices there are where nobody says how many."""

COUNTING_SECONDS = 120
"""How long JAX may take to say how many devices there are; a driver that hangs never does."""


class TooFewDevices(RequestError):
    """There are not as many devices as were asked for; the message says so in one line."""


def use(platform: str) -> None:
    """Lets JAX use a platform, in a run of the suite.

    By default accelerators multiply float32 in fewer bits, and no law of values would hold: there products have all of
    theirs, unless JAX was told otherwise. By default the first process on a GPU takes most of its memory; workers and
    the scripts of failures are on it as well, so that each takes what it needs, unless the environment says otherwise.
    """
    jax.config.update("jax_platforms", BACKENDS[platform])
    if platform != "cpu" and matmul_precision() is None:
        jax.config.update("jax_default_matmul_precision", "highest")
    if platform == "gpu":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def check_devices(platform: str, devices: int) -> None:
    """There are as many devices as were asked for.

    A process of its own counts them: one that has opened an accelerator may keep it from the workers.

    Raises:
        TooFewDevices: if there are fewer, in one line.
    """
    count = f"import jax; jax.config.update('jax_platforms', {BACKENDS[platform]!r}); print(len(jax.devices()))"
    command = [sys.executable, "-c", count]
    try:
        counted = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COUNTING_SECONDS)
    except subprocess.TimeoutExpired:
        raise TooFewDevices(
            f"--devices={devices} --platform={platform}: expected {devices} devices; "
            f"JAX did not say within {COUNTING_SECONDS} s how many there are"
        ) from None
    found = int(counted.stdout.split()[-1]) if counted.returncode == 0 else 0
    if found < devices:
        reason = f"give --devices {found}, or run where there are more"
        if not found:
            last = next(reversed(counted.stderr.strip().splitlines()), "")
            reason = "JAX sees no such device" if last in ("", "AssertionError") else last
        raise TooFewDevices(
            f"--devices={devices} --platform={platform}: expected {devices} devices, found {found}; {reason}"
        )


@cache
def check_flags(flags: str) -> None:
    """XLA knows the flags of the environment: of an unknown one it ends the process, and pytest hides what it says.

    A process of its own tries them.

    Raises:
        GivenError: if it does not, in one line.
    """
    if all(DEVICE_COUNT in flag for flag in flags.split()):
        return
    tried = subprocess.run(
        [sys.executable, "-c", "import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()"],
        env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", tried.stderr)
    if tried.returncode and unknown:
        told = unknown[1].strip()
        raise GivenError(f"XLA_FLAGS={flags!r}: expected flags that XLA knows: it ends the process for {told}")


def make_devices() -> None:
    """Lets JAX make virtual devices, if that is not settled; raises GivenError for flags that XLA does not know."""
    flags = os.environ.get("XLA_FLAGS", "")
    check_flags(flags)
    flag = DEVICE_COUNT in flags
    if not flag and jax.config.jax_num_cpu_devices < 1:  # type: ignore[attr-defined] # its config has what it was told
        with suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", DEVICES)
