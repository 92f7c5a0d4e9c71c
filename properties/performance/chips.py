"""Published figures of accelerators, and the time of an operation by these figures.

An operation takes the larger of two times: its multiplications and additions at the peak of their dtype, and its reads
and writes at the memory's bandwidth (the roofline, Williams et al. 2009, doi 10.1145/1498765.1498785). A transfer takes
the latency of every hop and the time of its bytes over the busiest link; through a switch, the latency of every step of
a ring algorithm: p-1, or 2(p-1) if it goes round twice (https://github.com/NVIDIA/nccl, src/graph/tuning.cc). A kernel
of `operations` reads its operands and writes its results once; elementwise arithmetic is never limited by its FLOPs,
and what moves less than a vector register's bytes is index arithmetic, which takes no time.

Assumed: every mesh axis lies on a physical ring of its own, both ways usable, such as a square of four chips or a
wrapped dimension of a torus. Left out: the lower peak of products of few rows, launches, copies of a loop's carry,
memory bandwidth that transfers and arithmetic share, and results that stay in on-chip memory between two kernels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases import suggestion
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.operations import Operation
from shardproof.properties.performance.routes import Link

TERA, GIGA = 10**12, 10**9
REGISTER = 8 * 128 * 4
"""The bytes of a vector register of a TPU: 8 by 128 of 32 bits."""

SWITCH: Link = ("switch", 1)
"""The link of a device to a switch."""

BOOK = 'Austin et al., "How to Scale Your Model", https://jax-ml.github.io/scaling-book'
TPUS = f"{BOOK}/tpus (table of ICI bandwidth, one way)"
HOP = f"{BOOK}/sharding (a note on ICI latency: typically around 1 us a hop)"
PRECISION = "https://docs.jax.dev/en/latest/201/precision.html"
ONE_PASS = f"that of bfloat16, in one pass of which float32 is multiplied by default: {PRECISION}"
DOCS = "https://docs.cloud.google.com/tpu/docs"
TPU_INFO = "https://github.com/jax-ml/jax jax/_src/tpu_info.py"
H100 = "https://www.nvidia.com/en-us/data-center/h100 (SXM)"
CAST = "float8 at the rate of bfloat16, by way of which it is multiplied"
COMPILED = "estimates of libtpu 0.0.42.1 for bfloat16 8192x8192 by 8192x2048, of which this is"


@dataclass(frozen=True)
class Chip:
    """A machine of many devices of one kind."""

    name: str
    peak: Mapping[str, int]  # multiplications and additions a second, by the dtype of what is multiplied
    memory: int  # bytes a second, of the device's own memory
    link: int  # bytes a second over one link, one way; with a switch, from one device in all
    latency: Fraction  # seconds for a hop
    dimensions: int  # of the torus of its links; 0: a switch
    sources: Mapping[str, str]  # of each figure: `memory`, `link`, `latency`, `cycle`, and `peak:` with a dtype
    cycle: int | None = None  # multiplications and additions of bfloat16 in a cycle; None if not published
    assumed: frozenset[str] = frozenset()  # the figures that are published only of other chips

    @property
    def clock(self) -> Fraction:
        """Cycles a second of a TPU, which turn the compiler's estimates into times."""
        assert self.cycle is not None
        return Fraction(self.rate("bfloat16"), self.cycle)

    def seconds(self, operation: Operation) -> Fraction:
        """The time of an operation alone; raises RequestError for a product of a dtype without a published peak."""
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
        """The links of a transfer: one for every way along every axis, or that to the switch."""
        if not operation.transfers:
            return ()
        return tuple(operation.loads.bytes) if self.dimensions else (SWITCH,)

    def bandwidth(self, mesh: MeshCase, axes: Sequence[str]) -> int:
        """Bytes a second to a device over all its links along some axes; an axis of two devices has one link."""
        ways = sum(2 if mesh.shape[axis] > 2 else mesh.shape[axis] - 1 for axis in axes)
        return self.link * (ways if self.dimensions else min(ways, 1))

    def rate(self, dtype: str) -> int:
        """The peak of a dtype, in multiplications and additions a second; raises RequestError if there is none."""
        if dtype not in self.peak:
            known = ", ".join(sorted(self.peak))
            raise RequestError(f"dtype={dtype}: no published peak of it on {self.name}: expected one of {known}")
        return self.peak[dtype]

    def check(self, mesh: MeshCase) -> None:
        """Raises RequestError if the mesh has more axes than the torus has dimensions."""
        axes = [f"{name}={size}" for name, size in mesh.shape.items() if size > 1]
        if self.dimensions and len(axes) > self.dimensions:
            torus = f"a torus of {self.dimensions} dimensions: expected at most as many axes of more than one device"
            raise RequestError(f"mesh=({', '.join(axes)}): {self.name} is {torus}")


Figures = Mapping[str, tuple[int | Fraction, str]]
"""Figures with their sources: peaks by dtypes, `memory`, `link`, `latency` and `cycle`."""


def _stated(name: str, dimensions: int, figures: Figures, assumed: Sequence[str] = ()) -> Chip:
    each = {what: figure for names, figure in figures.items() for what in names.split()}
    others: dict[str, Any] = {what: each[what][0] for what in ("memory", "link", "latency", "cycle") if what in each}
    peak = {what: int(value) for what, (value, _) in each.items() if what not in others}
    sources = {f"peak:{what}" if what in peak else what: source for what, (_, source) in each.items()}
    return Chip(name, peak, dimensions=dimensions, sources=sources, assumed=frozenset(assumed), **others)


MICRO = Fraction(1, 10**6)
FLOAT8 = "float8_e4m3fn float8_e5m2"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _stated("v4", 3, {
            "bfloat16 int8": (275 * TERA, f"{DOCS}/v4"),
            "float32": (275 * TERA, ONE_PASS),
            "memory": (1200 * GIGA, f"{DOCS}/v4"),
            "link": (45 * GIGA, TPUS),
            "latency": (MICRO, HOP),
            "cycle": (2**18, f"{DOCS}/v4: 2 cores of 4 units, of 128x128 ({BOOK}/tpus)"),
        }),
        _stated("v5e", 2, {
            "bfloat16": (197 * TERA, f"{DOCS}/v5e"),
            "float32": (197 * TERA, ONE_PASS),
            "int8": (393 * TERA, f"{DOCS}/v5e"),
            "memory": (819 * GIGA, f"{DOCS}/v5e (HBM2; a later revision has 800 GiB/s, or 859)"),
            "link": (45 * GIGA, TPUS),
            "latency": (MICRO, HOP),
            "cycle": (2**17, f"{DOCS}/v5e: 4 units, of 128x128 ({BOOK}/tpus, which has their clock, 1.5 GHz)"),
        }),
        _stated("v5p", 3, {
            "bfloat16": (459 * TERA, f"{DOCS}/v5p"),
            "float32": (459 * TERA, ONE_PASS),
            "int8": (918 * TERA, f"{BOOK}/tpus"),
            FLOAT8: (459 * TERA, f"{DOCS}/v5p: {CAST}"),
            "memory": (2765 * GIGA, f"{DOCS}/v5p (2575 GiB/s)"),
            "link": (90 * GIGA, TPUS),
            "latency": (MICRO, HOP),
            "cycle": (2**18, f"{DOCS}/v5p: 2 cores of 4 units, of 128x128 ({BOOK}/tpus)"),
        }),
        _stated("v6e", 2, {
            "bfloat16": (918 * TERA, f"{DOCS}/v6e"),
            "float32": (918 * TERA, ONE_PASS),
            "int8": (1836 * TERA, f"{DOCS}/v6e"),
            FLOAT8: (918 * TERA, f"{DOCS}/tpu7x: {CAST}"),
            "memory": (1638 * GIGA, f"{DOCS}/v6e"),
            "link": (90 * GIGA, TPUS),
            "latency": (MICRO, HOP),
            "cycle": (2**19, f"{COMPILED} 1.16 times what they imply; {DOCS}/v6e has half as many, 2 units of 256x256"),
        }),
        _stated("tpu7x", 3, {
            "bfloat16": (2307 * TERA, (
                f"{DOCS}/tpu7x; of a chip, which JAX shows as two devices: what each of the two has of the links is "
                "not published, so a device here is a chip"
            )),
            "float32": (2307 * TERA, ONE_PASS),
            FLOAT8: (4614 * TERA, f"{DOCS}/tpu7x"),
            "memory": (7380 * GIGA, f"{DOCS}/tpu7x, of a chip"),
            "link": (100 * GIGA, f"{DOCS}/tpu7x: 1200 GB/s both ways over the six links of a chip; no measured figure"),
            "latency": (MICRO, f"{HOP}; none is published of this generation"),
            "cycle": (2**20, (
                f"{COMPILED} 1.18 times what they imply, for both cores of a chip; {TPU_INFO} has half as many"
            )),
        }, assumed=("latency",)),
        _stated("h100", 0, {
            "bfloat16 float16": (989 * TERA, f"{H100}, half of the figure with sparsity"),
            "float32": (494 * TERA, f"{H100}, half of that of TF32 with sparsity, which is the default: {PRECISION}"),
            "float64": (67 * TERA, f"{H100}, of tensor cores"),
            f"int8 {FLOAT8}": (1979 * TERA, f"{H100}, half of the figure with sparsity"),
            "memory": (3350 * GIGA, H100),
            "link": (450 * GIGA, f"{H100}: NVLink 900 GB/s, both ways together; in-switch reduction left out"),
            "latency": (Fraction(34, 10**7), (
                "https://github.com/NVIDIA/nccl src/graph/tuning.cc: 3.4 us a step of a ring of the Simple protocol"
            )),
        }),
    )
}  # fmt: skip
"""By name; the pages were read in November 2026. Links are one way; Google's pages have the sum of all, both ways."""


def chip(name: str) -> Chip:
    """The chip of a name; raises RequestError, with the nearest name, if there is none."""
    if name not in CHIPS:
        raise RequestError(f"machine={name!r}: no such machine; {suggestion.did_you_mean(name, CHIPS)}")
    return CHIPS[name]


def in_words(seconds: Fraction) -> str:
    """A time in a unit in which it has one to three digits before the point: `21.8 us`."""
    if not seconds:
        return "0"
    power = min(max(math.floor(math.log10(seconds)) // 3, -3), 0)
    unit = {0: "s", -1: "ms", -2: "us", -3: "ns"}[power]
    return f"{float(seconds * Fraction(1000) ** -power):.3g} {unit}"
