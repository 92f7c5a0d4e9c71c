"""Stated machines: what is published of accelerators, and how long an operation takes on one by that alone.

An operation takes the larger of two times: its multiplications and additions at the peak of their dtype, and what it
reads and writes at the memory's bandwidth (the roofline, Williams et al. 2009, doi 10.1145/1498765.1498785). A transfer
takes the latency of every hop and the time of its bytes over the busiest link. What `operations` folds into one kernel
reads and writes once, its result included; element by element arithmetic beside that is never limited by its FLOPs, and
less than a vector register's bytes are index arithmetic, which takes no time.

Assumed: every mesh axis lies on a physical ring of its own, both ways usable, as a square of four chips or a wrapped
dimension of a torus has it. Left out: what a product of few rows loses of the peak, launches, copies of what a loop
carries, memory that transfers and arithmetic share, and what stays in on-chip memory between two kernels.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.counting.operations import Operation
from shardproof.properties.counting.routes import Link

TERA, GIGA = 10**12, 10**9
REGISTER = 8 * 128 * 4
"""The bytes of a vector register of a TPU: 8 by 128 of 32 bits."""

SWITCH: Link = ("switch", 1)
"""The one link of a device that a switch connects with all others."""

SCALING_BOOK = 'Austin et al., "How to Scale Your Model", https://jax-ml.github.io/scaling-book'
TPUS = f"{SCALING_BOOK}/tpus (table of ICI bandwidth, one way)"
HOP = f"{SCALING_BOOK}/sharding (a note on ICI latency: typically around 1 us a hop)"
DEFAULT = "https://docs.jax.dev/en/latest/_autosummary/jax.default_matmul_precision.html"


class Unpublished(ValueError):
    """Nobody says how fast a chip is at what is asked; the message names both."""


@dataclass(frozen=True)
class Chip:
    """A machine of many devices of one kind.

    Arguments:
        name: what it is called.
        peak: multiplications and additions a second, by the dtype of what is multiplied.
        memory: bytes a second, of the device's own memory.
        link: bytes a second over one link, one way; of a switch, what a device sends in all.
        latency: seconds for a hop.
        dimensions: of the torus of its links, on which mesh axes lie; 0: a switch.
        sources: where each figure is published.
    """

    name: str
    peak: Mapping[str, int]
    memory: int
    link: int
    latency: Fraction
    dimensions: int
    sources: Mapping[str, str]

    def seconds(self, operation: Operation) -> Fraction:
        """How long an operation takes alone.

        Raises:
            Unpublished: for a product of a dtype that has no published peak.
        """
        loads = operation.loads
        if operation.transfers:
            hops, busiest = loads.hops, max(loads.bytes.values())
            if not self.dimensions:
                hops, busiest = loads.stages, loads.sent
            return hops * self.latency + busiest / self.link
        moved = operation.bytes if operation.bytes >= REGISTER else 0
        arithmetic = sum((Fraction(n, self.rate(dtype)) for dtype, n in operation.flops.items() if n), Fraction(0))
        return max(arithmetic, Fraction(moved, self.memory))

    def links(self, operation: Operation) -> tuple[Link, ...]:
        """The links that it takes: one for every way along every axis, or that to the switch."""
        if not operation.transfers:
            return ()
        return tuple(operation.loads.bytes) if self.dimensions else (SWITCH,)

    def bandwidth(self, mesh: MeshCase, axes: Sequence[str]) -> int:
        """Bytes a second that a device gets over all its links along some axes; of two devices, each has one."""
        ways = sum(2 if mesh.shape[axis] > 2 else mesh.shape[axis] - 1 for axis in axes)
        return self.link * (ways if self.dimensions else min(ways, 1))

    def rate(self, dtype: str) -> int:
        """The peak of a dtype, in multiplications and additions a second.

        Raises:
            Unpublished: if there is none.
        """
        if dtype not in self.peak:
            known = ", ".join(sorted(self.peak))
            raise Unpublished(f"dtype={dtype}: no published peak of it on {self.name}: expected one of {known}")
        return self.peak[dtype]

    def check(self, mesh: MeshCase) -> None:
        """The mesh's axes have a dimension of the torus each.

        Raises:
            ValueError: if there are more axes.
        """
        axes = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
        if self.dimensions and len(axes) > self.dimensions:
            told = f"a torus of {self.dimensions} dimensions: expected at most as many axes of more than one device"
            raise ValueError(f"mesh=({', '.join(axes)}): {self.name} is {told}")


def _peaks(bfloat16: int, **more: int) -> dict[str, int]:
    """Peaks by dtype; a TPU multiplies float32 in one pass of bfloat16, unless a higher precision is asked for."""
    return {**dict.fromkeys(("bfloat16", "float16", "float32"), bfloat16), **more}


def _eights(rate: int) -> dict[str, int]:
    return dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), rate)


_DOCS = "https://docs.cloud.google.com/tpu/docs"
_ONE_PASS = f"; float32 in one bfloat16 pass, {DEFAULT}"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            "v4",
            _peaks(275 * TERA, int8=275 * TERA),
            1200 * GIGA,
            45 * GIGA,
            Fraction(1, 10**6),
            3,
            {"peak": f"{_DOCS}/v4{_ONE_PASS}", "memory": f"{_DOCS}/v4", "link": TPUS, "latency": HOP},
        ),
        Chip(
            "v5e",
            _peaks(197 * TERA, int8=393 * TERA),
            819 * GIGA,
            45 * GIGA,
            Fraction(1, 10**6),
            2,
            {"peak": f"{_DOCS}/v5e{_ONE_PASS}", "memory": f"{_DOCS}/v5e", "link": TPUS, "latency": HOP},
        ),
        Chip(
            "v5p",
            _peaks(459 * TERA, int8=918 * TERA, **_eights(459 * TERA)),
            2765 * GIGA,
            90 * GIGA,
            Fraction(1, 10**6),
            3,
            {
                "peak": f"{_DOCS}/v5p{_ONE_PASS}; int8: {SCALING_BOOK}/tpus",
                "memory": f"{_DOCS}/v5p",
                "link": TPUS,
                "latency": HOP,
            },
        ),
        Chip(
            "v6e",
            _peaks(918 * TERA, int8=1836 * TERA, **_eights(918 * TERA)),
            1638 * GIGA,
            90 * GIGA,
            Fraction(1, 10**6),
            2,
            {
                "peak": f"{_DOCS}/v6e{_ONE_PASS}; float8: {_DOCS}/tpu7x",
                "memory": f"{_DOCS}/v6e",
                "link": TPUS,
                "latency": HOP,
            },
        ),
        Chip(
            "tpu7x",
            _peaks(2307 * TERA, **_eights(4614 * TERA)),
            7380 * GIGA,
            100 * GIGA,
            Fraction(1, 10**6),
            3,
            {
                "peak": f"{_DOCS}/tpu7x{_ONE_PASS}; of a chip, which JAX shows as two devices: what each of the two "
                "has of the links is not published, so a device here is a chip",
                "memory": f"{_DOCS}/tpu7x, of a chip",
                "link": f"{_DOCS}/tpu7x: 1200 GB/s both ways over the six links of a chip; no measured figure",
                "latency": f"{HOP}; none is published for this generation",
            },
        ),
        Chip(
            "h100",
            {
                **dict.fromkeys(("bfloat16", "float16"), 989 * TERA),
                "float32": 494 * TERA,
                "float64": 67 * TERA,
                "int8": 1979 * TERA,
                **_eights(1979 * TERA),
            },
            3350 * GIGA,
            450 * GIGA,
            Fraction(34, 10**7),
            0,
            {
                "peak": "NVIDIA H100 datasheet, SXM, half of the figures with sparsity; float32 as TF32, " + DEFAULT,
                "memory": "NVIDIA H100 datasheet, SXM: 3.35 TB/s",
                "link": "NVIDIA H100 datasheet: NVLink 900 GB/s, both ways together; in-switch reduction left out",
                "latency": "https://github.com/NVIDIA/nccl src/graph/tuning.cc: 3.4 us for a step of a ring of the "
                "Simple protocol over NVLink",
            },
        ),
    )
}
"""By name. What is published of links, one way: Google's pages have the sum of all links, both ways."""


def chip(name: str) -> Chip:
    """The chip of a name.

    Raises:
        ValueError: if there is none; the message suggests the nearest one.
    """
    if name not in CHIPS:
        near = difflib.get_close_matches(name.lower(), CHIPS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(CHIPS)}"
        raise ValueError(f"machine={name!r}: no such machine; {hint}")
    return CHIPS[name]


def in_words(seconds: Fraction) -> str:
    """A time in a unit in which it has one to three digits before the point: `21.8 us`."""
    if not seconds:
        return "0"
    power = min(max(math.floor(math.log10(seconds)) // 3, -3), 0)
    unit = {0: "s", -1: "ms", -2: "us", -3: "ns"}[power]
    return f"{float(seconds * Fraction(1000) ** -power):.3g} {unit}"
