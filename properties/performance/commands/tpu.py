"""Every collective matrix product as XLA:TPU schedules it: modelled time, exposed communication, memory."""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from rich.console import Console

from shardproof.properties.performance.compiled import (
    MICRO,
    OWN,
    RECORDED,
    UNSHARDED,
    Figures,
    Records,
    key_of,
    read,
)
from shardproof.properties.performance.modelled import Place, Work, modelled
from shardproof.properties.performance.tables import form_of, markdown, table
from shardproof.properties.performance.tpu_compiler import NotCompiled, NoTpuCompiler, Topology, TpuCompiler, missing
from shardproof.properties.performance.tpu_compiler.process import COMPILER, WAYS
from shardproof.properties.programs.built_in import OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES
from shardproof.properties.programs.implementations import Implementation

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
FLOOR, NAIVE = "floor", "naive"
OTHERS = (UNSHARDED, NAIVE, COMPILER)
PLACE = Place(Topology.parse("v5e:2x4"), 4)
RECORDED_COLUMNS = (
    "product",
    "shape",
    "best of ours",
    "unsharded us",
    "floor",
    "naive",
    "XLA's own",
    "ours",
    "exposed",
    "permutes",
    "MB naive",
    "MB ours",
)
Found = Figures | str
"""The figures of a program, or a sentence on why there are none."""


def found_of(records: Records, work: Work, form: str) -> Found:
    """What is known of a form of a product once it is compiled."""
    try:
        return records.of(work, form)
    except (NotCompiled, NoTpuCompiler, ValueError) as error:  # the row says so, and the others follow
        return str(error)


def rows(records: Records, work: Work, forms: Sequence[Implementation]) -> Iterator[tuple[str, ...]]:
    """The local product, the floor, what XLA makes of the product by itself, the naive form, and every form of it."""
    alone = found_of(records, work, UNSHARDED)
    if isinstance(alone, str):
        yield (work.contract, UNSHARDED, alone, *[""] * (len(COLUMNS) - 3))
        return
    yield row(work, UNSHARDED, alone, alone)
    yield floor(work, alone)
    yield row(work, OWN, found_of(records, work, COMPILER), alone)
    for one in forms:
        yield row(work, form_of(one) or one.name, found_of(records, work, one.name), alone)


def floor(work: Work, alone: Figures) -> tuple[str, ...]:
    """The line of the least time that there can be."""
    least = work.floor(Fraction(alone.total) / int(MICRO))
    return (
        work.contract,
        FLOOR,
        f"{alone.total * float(least):.1f}",
        f"{float(least):.2f}",
        *[""] * (len(COLUMNS) - 4),
    )


def row(work: Work, form: str, found: Found, alone: Figures) -> tuple[str, ...]:
    """One line of the table."""
    if isinstance(found, str):
        return (work.contract, form, found, *[""] * (len(COLUMNS) - 3))
    return (
        work.contract,
        form,
        f"{found.total:.1f}",
        f"{found.total / alone.total:.2f}",
        f"{found.compute / alone.total:.2f}",
        f"{found.share:.0%}",
        str(found.permutes),
        str(found.synchronous),
        str(found.others),
        f"{found.temporary_bytes / 1e6:.1f}",
    )


def recorded() -> str:
    """A Markdown table of the products that are recorded in full: the fastest form and those that do not overlap."""
    known, lines = read(RECORDED), []
    for way in WAYS:
        for contract in [one.contract.name for one in PRODUCTS]:
            for shape in SHAPES:
                forms = (UNSHARDED, COMPILER, *(one.name for one in forms_of(contract)))
                found = {form: known.get(key_of(Work(contract, shape, PLACE, way), form)) for form in forms}
                figures = {form: one for form, one in found.items() if isinstance(one, Figures)}
                ours = [form for form in figures if form not in OTHERS]
                if None in found.values() or not ours or not figures.keys() >= {*OTHERS}:
                    continue
                alone, fastest = figures[UNSHARDED], min(ours, key=lambda form: figures[form].total)
                least = Work(contract, shape, PLACE, way).floor(Fraction(alone.total) / int(MICRO))
                one = figures[fastest]
                lines.append(
                    (
                        contract,
                        f"{shape} {way}",
                        fastest.removesuffix(contract).rstrip("_"),
                        f"{alone.total:.0f}",
                        f"{float(least):.2f}",
                        *(f"{figures[form].total / alone.total:.2f}" for form in (NAIVE, COMPILER, fastest)),
                        f"{one.share:.0%}",
                        str(one.permutes),
                        *(f"{figures[form].temporary_bytes / 1e6:.1f}" for form in (NAIVE, fastest)),
                    )
                )
    return markdown(RECORDED_COLUMNS, lines, left=3)


def forms_of(contract: str) -> list[Implementation]:
    """The naive form and those that overlap, over one axis."""
    return [one for one in (*PRODUCTS, *OVERLAPPED) if one.contract.name == contract]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which products are compiled for which chips."""
    parser.add_argument("--topology", default="v5e:2x4", help="the chips, as in v5e:2x4 (default), v5p:2x2x1, v6e:2x4")
    parser.add_argument("--model", type=int, default=4, metavar="P", help="the size of the model axis (default: 4)")
    parser.add_argument("--shape", action="append", choices=tuple(SHAPES), help="which shape (default: all)")
    parser.add_argument("--recorded", action="store_true", help=f"from {RECORDED.name}, which gets what is new")


def print_steps(console: Console, work: Work, form: str) -> None:
    """Prints what a form of a product becomes, or why it cannot be compiled."""
    one = next((one for one in forms_of(work.contract) if form_of(one) == form), None)
    if one is None:
        console.print(
            f"{work.contract} has no form {form}: expected {', '.join(map(form_of, forms_of(work.contract)))}"
        )
        return
    with TpuCompiler() as compiler:
        try:
            found = modelled(compiler, work.place, work.case(), str(one), work.way)
        except (NotCompiled, ValueError) as error:
            console.print(f"{one}: {error}")
        else:
            console.print(
                f"{one}, {work.shape} {work.way}\n{found.schedule}", soft_wrap=True, highlight=False, markup=False
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for every shape and way."""
    parser = argparse.ArgumentParser(
        prog="python -m shardproof.properties.performance.commands.tpu",
        description=f"{__doc__} Needs libtpu, and no TPU.",
    )
    add_options(parser)
    parser.add_argument("--way", action="append", choices=WAYS, help="forward or backward (default: both)")
    parser.add_argument("--contract", action="append", help="which product (default: all)")
    parser.add_argument(
        "--steps", metavar="FORM", help="the schedule of one form instead, such as paired, step by step"
    )
    options = parser.parse_args(arguments)
    console = Console(width=140)
    if (reason := missing()) and (options.steps or not options.recorded):
        console.print(reason)
        return
    topology = Topology.parse(options.topology)
    place = Place(topology, options.model)
    contracts = options.contract or [one.contract.name for one in PRODUCTS]
    if options.steps:
        for contract, shape, way in itertools.product(contracts, options.shape or SHAPES, options.way or WAYS):
            print_steps(console, Work(contract, shape, place, way), options.steps)
        return
    with Records(RECORDED if options.recorded else None) as records:
        for shape in options.shape or SHAPES:
            for way in options.way or WAYS:
                lines: list[tuple[str, ...]] = []
                for contract in contracts:
                    lines += rows(records, Work(contract, shape, place, way), forms_of(contract))
                title = f"{shape} {SHAPES[shape]}, {way}, bfloat16, {topology}, model axis {place.model}"
                console.print(table(title, COLUMNS, lines))


if __name__ == "__main__":
    main()
