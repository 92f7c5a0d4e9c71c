"""The command `shardproof doctor`: what is installed, which devices there are, and what cannot run here and why."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired

from shardproof.properties.performance.tpu_compiler import missing
from shardproof.properties.runner.platforms import (
    BACKENDS,
    COUNTING_SECONDS,
    DEVICES,
    TooFewDevices,
    check_devices,
    check_flags,
    run_python,
)
from shardproof.properties.runner.stated import GivenError

PROBE = "import jax; d = jax.devices(); print(jax.default_backend(), f'{len(d)} x {d[0].device_kind}', sep=', ')"
"""Prints JAX's default devices, in a process of its own: it may not come back."""


def version(package: str) -> str:
    """The version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout that is on the path
        return "not installed"


def devices() -> str:
    """The platform and devices that JAX chooses, or why there are none."""
    try:
        works, last = run_python(PROBE)
    except TimeoutExpired:
        return f"none: JAX did not answer within {COUNTING_SECONDS} s"
    return f"{'' if works else 'none: '}{last or 'no answer'}"


def unable() -> Iterator[tuple[str, str]]:
    """The parts that cannot run here, and why."""
    for name in BACKENDS:
        try:
            check_devices(name, 1)
        except TooFewDevices as error:
            yield f"--platform {name}", str(error).partition("found 0; ")[2] or str(error)
    if not find_spec("drawsvg"):
        yield "pictures", "drawsvg is not installed: pip install 'shardproof[draw]'"
    if reason := missing():
        yield "tpu, unless --recorded", reason
    if not (Path(__file__).parents[1] / "suite").exists():
        yield "all of the suite", "this is no checkout: `shardproof suite` checks the implementations alone"


def examine() -> tuple[list[str], bool]:
    """Lines on this machine, and whether JAX runs here."""
    flags = os.environ.get("XLA_FLAGS", "")
    plugins = {one.dist.name for one in metadata.entry_points(group="pytest11") if one.dist}
    packages = ("shardproof", "jax", "jaxlib", "numpy", "hypothesis", "pytest")
    facts = {
        "Python": f"{platform.python_version()}, {sys.executable}, {platform.platform()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
        "pytest plugins": ", ".join(sorted(plugins)),
        "XLA_FLAGS": flags or "none",
    }
    try:
        check_flags(flags)
    except GivenError as error:
        cannot, works = [("JAX", str(error))], False
    else:
        facts["devices"] = devices()
        facts["checks"] = f"on {DEVICES} virtual devices, where the platform is cpu and no other number is configured"
        cannot, works = [*unable()], not facts["devices"].startswith("none")
    width = max(map(len, facts))
    lines = [f"{name:{width}}  {text}" for name, text in facts.items()]
    return [*lines, *(f"cannot run: {name}: {reason}" for name, reason in cannot)], works
