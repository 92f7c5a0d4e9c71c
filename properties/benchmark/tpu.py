"""What XLA:TPU makes of every product: modelled time over the local product's, what is exposed, and what is held."""

import argparse
from collections.abc import Iterator, Sequence

from rich.console import Console

from shardproof.properties.benchmark.products import form_of
from shardproof.properties.benchmark.tables import markdown, table
from shardproof.properties.counting.modelled import Modelled, Place, Work
from shardproof.properties.counting.products import SHAPES
from shardproof.properties.engines.tpu_compiler import NotCompiled, Topology, TpuCompiler, missing
from shardproof.properties.engines.tpu_compiler.request import WAYS
from shardproof.properties.programs.implementations import OVERLAPPED, PRODUCTS, Implementation

COLUMNS = (
    "product",
    "form",
    "us",
    "of unsharded",
    "compute",
    "exposed",
    "permutes",
    "synchronous",
    "others",
    "temporary MB",
)
UNSHARDED, FLOOR = "unsharded", "floor"


def rows(compiler: TpuCompiler, work: Work, forms: Sequence[Implementation]) -> Iterator[tuple[str, ...]]:
    """The local product, the floor, the naive form, and every form of a product."""
    alone = work.unsharded(compiler)
    least = alone.schedule.total
    yield row(work, UNSHARDED, alone, alone)
    yield (work.contract, FLOOR, f"{1e6 * float(work.floor(least) * least):.1f}", f"{float(work.floor(least)):.2f}") + (
        "",
    ) * 6
    for one in forms:
        try:
            yield row(work, form_of(one) or one.name, work.of(compiler, one.name), alone)
        except NotCompiled as error:
            yield (work.contract, form_of(one), str(error), *[""] * 7)


def row(work: Work, form: str, found: Modelled, alone: Modelled) -> tuple[str, ...]:
    """One line of the table."""
    timed, least = found.schedule, alone.schedule.total
    return (
        work.contract,
        form,
        f"{1e6 * float(timed.total):.1f}",
        f"{float(timed.total / least):.2f}",
        f"{float(timed.compute / least):.2f}",
        f"{float(timed.share):.0%}",
        str(timed.permutes),
        str(len(timed.synchronous)),
        str(len(timed.monolithic)),
        f"{found.temporary_bytes / 1e6:.1f}",
    )


def forms_of(contract: str) -> list[Implementation]:
    """The naive form and those that overlap, over one axis."""
    return [one for one in (*PRODUCTS, *OVERLAPPED) if one.contract == contract and not one.name.startswith("nested")]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `measure` is told."""
    group = parser.add_argument_group("tpu", "what is compiled for a TPU topology; needs libtpu, and no TPU")
    group.add_argument("--topology", default="v5e:2x4", help="the chips, as in v5e:2x4 (default), v5p:2x2x1, v6e:2x4")
    group.add_argument("--model", type=int, default=4, metavar="P", help="the size of the model axis (default: 4)")
    group.add_argument("--shape", action="append", choices=tuple(SHAPES), help="which shape (default: all)")
    group.add_argument("--way", action="append", choices=WAYS, help="forward or backward (default: both)")
    group.add_argument("--contract", action="append", help="which product (default: all)")
    group.add_argument("--markdown", action="store_true", help="print it as Markdown")


def measure(options: argparse.Namespace) -> None:
    """Prints a table for every shape and way."""
    console = Console(width=140)
    if reason := missing():
        console.print(reason)
        return
    topology = Topology.parse(options.topology)
    place = Place(topology, options.model)
    contracts = options.contract or [one.contract for one in PRODUCTS]
    with TpuCompiler() as compiler:
        for shape in options.shape or SHAPES:
            for way in options.way or WAYS:
                lines = []
                for contract in contracts:
                    lines += list(rows(compiler, Work(contract, shape, place, way), forms_of(contract)))
                title = f"{shape} {SHAPES[shape]}, {way}, bfloat16, {topology}, model axis {place.model}"
                console.print(markdown(COLUMNS, lines, left=2) if options.markdown else table(title, COLUMNS, lines))
                if options.markdown:
                    console.print(title)
