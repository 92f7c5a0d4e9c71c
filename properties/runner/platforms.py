"""The platforms to verify on, and the devices that this machine has."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache

import jax

from shardproof.properties.cases.reading import counted
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.programs.program import matmul_precision
from shardproof.properties.runner.stated import GivenError

BACKENDS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""The platforms, and what JAX calls their backends."""


DEVICE_COUNT = "xla_force_host_platform_device_count"

DEVICES = 8
"""How many virtual devices there are by default."""

COUNTING_SECONDS = 120
"""How long JAX may take to say how many devices there are; a driver that hangs never does."""


class TooFewDevices(RequestError):
    """There are fewer devices than were requested."""


def use(platform: str) -> None:
    """Lets JAX use a platform, in a run of the suite.

    By default accelerators multiply float32 in fewer bits, and no law of values would hold: products get full
    precision, unless JAX is configured otherwise. By default the first process on a GPU takes most of its memory;
    workers and scripts share it, so each takes what it needs, unless the environment is set otherwise.
    """
    jax.config.update("jax_platforms", BACKENDS[platform])
    if platform != "cpu" and matmul_precision() is None:
        jax.config.update("jax_default_matmul_precision", "highest")
    if platform == "gpu":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def check_devices(platform: str, devices: int) -> None:
    """Raises TooFewDevices if there are fewer devices than these.

    A process of its own counts them: one that has opened an accelerator may keep it from the workers.
    """
    wanted = f"--devices={devices} --platform={platform}: expected {counted(devices, 'device')}"
    count = f"import jax; jax.config.update('jax_platforms', {BACKENDS[platform]!r}); print(len(jax.devices()))"
    try:
        works, last = run_python(count)
    except subprocess.TimeoutExpired:
        raise TooFewDevices(f"{wanted}; JAX did not say within {COUNTING_SECONDS} s how many there are") from None
    found = int(last) if works else 0
    if not found:
        why = "" if last in ("", "AssertionError") else f": {last}"
        raise TooFewDevices(f"{wanted}, and JAX finds no {platform.upper()} at all{why}")
    if found < devices:
        raise TooFewDevices(f"{wanted}, found {found}; give --devices {found}, or run where there are more")


def run_python(code: str) -> tuple[bool, str]:
    """Runs code in a process of its own: True if it works, and the last line of its output, or else of its errors."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COUNTING_SECONDS)
    works = done.returncode == 0
    return works, next(reversed((done.stdout if works else done.stderr).strip().splitlines()), "")


@cache
def check_flags(flags: str) -> None:
    """Raises GivenError for flags that XLA does not know, which end the process, and pytest hides the reason.

    A process of its own tries them.
    """
    if all(DEVICE_COUNT in flag for flag in flags.split()):
        return
    tried = subprocess.run(
        [sys.executable, "-c", "import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()"],
        env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", tried.stderr)
    if tried.returncode and unknown:
        raise GivenError(
            f"XLA_FLAGS={flags!r}: expected flags that XLA knows: it ends the process for {unknown[1].strip()}"
        )


def make_devices() -> None:
    """Lets JAX make virtual devices, unless their number is set; raises GivenError for flags that XLA does not know."""
    flags = os.environ.get("XLA_FLAGS", "")
    check_flags(flags)
    if DEVICE_COUNT not in flags and jax.config.jax_num_cpu_devices < 1:  # type: ignore[attr-defined]
        with suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", DEVICES)
