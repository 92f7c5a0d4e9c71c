"""Timelines on published chips: every form of a product over the unsharded one, and beside published figures."""

import dataclasses
from fractions import Fraction

from rich.console import Console

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.benchmark.products import form_of
from shardproof.properties.benchmark.tables import table
from shardproof.properties.contracts.products import SHAPES, whole_sides
from shardproof.properties.performance.chips import CHIPS, Chip
from shardproof.properties.performance.choosing import Choice, Forms, choice, forms
from shardproof.properties.performance.machines import flops_in
from shardproof.properties.performance.shaped import shaped

DATA = 2
"""Over how many devices the rows are divided beside the axis of the product."""

COMPARED = (
    "all_gather_matmul_lhs_contracting",
    "all_gather_matmul_lhs",
    "all_gather_matmul_rhs",
    "matmul_reduce_scatter",
)
MODEL_AXES = (4, 8)
COLUMNS = ("product", "shape", "axis", "chip", "floor", "naive", "best of ours", "form", "exposed", "transfers")

PUBLISHED = (311, 244, 224)
"""Microseconds on v5e 4x2 of A[1024_X, 2048_Y] W[2048, 8192_Y] over two devices along X and four along Y: gathered and
multiplied, a collective matmul, and unsharded ("How to Scale Your Model", part 10)."""

LEFT_OUT = (
    "Left out: what a product of few rows loses of the peak, copies of what loops carry, launches, how a compiler "
    "orders what may begin at a time, memory that transfers and arithmetic share, and what stays in on-chip memory."
)


def case_of(contract: str, shape: str, p: int) -> Forms:
    """Every form of a product of a shape among p participants, on blocks of bfloat16."""
    m, k, n = whole_sides(contract, shape)
    return forms(shaped(contract, MeshCase(("tp",), (p,)), "tp", ((m // DATA, k), (k, n))))


def row(found: Choice, shape: str) -> tuple[str, ...]:
    """A line of the table: the naive form, and the best of those that hide something."""
    plain = next(r for r in found.rows if r.implementation.name == "naive")
    ours = next(r for r in found.rows if r.implementation.name != "naive")
    share = ours.exposed / ours.total if ours.total else Fraction(0)
    return (
        found.contract,
        shape,
        str(found.case.participants),
        found.machine.name,
        f"{float(found.floor):.2f}",
        f"{float(found.ratio(plain)):.2f}",
        f"{float(found.ratio(ours)):.2f}",
        form_of(ours.implementation) + (" (naive is better)" if found.plain else ""),
        f"{float(share):.0%}",
        str(ours.transfers),
    )


def rows() -> list[tuple[str, ...]]:
    """Every product, shape and axis on every chip."""
    lines = []
    for contract in COMPARED:
        for shape in SHAPES:
            for p in MODEL_AXES if shape == "large" else MODEL_AXES[:1]:
                traced = case_of(contract, shape, p)
                lines += [row(choice(traced, one), shape) for one in CHIPS.values()]
    return lines


def published() -> list[tuple[str, ...]]:
    """The three published times as ratios, and the same three programs by their timelines."""
    gathered, collective, unsharded = PUBLISHED
    lines: list[tuple[str, ...]] = [("published", f"{gathered / unsharded:.2f}", f"{collective / unsharded:.2f}", "1")]
    for dtype in ("bfloat16", "int32"):
        traced = forms(shaped("all_gather_matmul_lhs_contracting", MeshCase(("tp",), (4,)), "tp", dtype=dtype))
        ring, line = machines(traced, dtype)
        on_ring = choice(traced, ring)
        naive = next(r for r in choice(traced, line).rows if r.implementation.name == "naive")
        ours = next(r for r in on_ring.rows if r.implementation.name.startswith("ring_"))
        best = next(r for r in on_ring.rows if r.implementation.name != "naive")
        plain = next(r for r in on_ring.rows if r.implementation.name == "naive")
        lines.append(
            (
                f"timeline, {dtype}" + (" at the rate of the published 224 us" if dtype == "int32" else ""),
                f"{float(on_ring.ratio(plain)):.2f} ({float(on_ring.ratio(naive)):.2f} on a line)",
                f"{float(on_ring.ratio(ours)):.2f} ({form_of(best.implementation)} {float(on_ring.ratio(best)):.2f})",
                "1",
            )
        )
    return lines


def machines(traced: Forms, dtype: str) -> tuple[Chip, Chip]:
    """v5e with a ring of four, and with a line, on which what is gathered has one way only: half the bandwidth.

    The published program multiplies integers of 32 bits, whose peak is not published; it follows from the third figure.
    """
    chip = CHIPS["v5e"]
    if dtype == "int32":
        flops = flops_in(next(operations for one, operations in traced.operations if one.name == "naive"))
        rate = round(flops / (PUBLISHED[2] * 1e-6))
        chip = dataclasses.replace(chip, peak={**chip.peak, dtype: rate})
    return chip, dataclasses.replace(chip, link=chip.link // 2)


def measure() -> None:
    """Prints both tables, the same on every machine and in every run."""
    console = Console(width=150)
    title = f"times over the unsharded local product, bfloat16, rows over {DATA} devices beside the axis, by timelines"
    console.print(table(title, COLUMNS, rows()))
    columns = ("A[1024_X, 2048_Y] W[2048, 8192_Y], v5e 4x2", "gathered", "collective matmul", "unsharded")
    console.print(table("published ratios", columns, published()))
    console.print(LEFT_OUT)
