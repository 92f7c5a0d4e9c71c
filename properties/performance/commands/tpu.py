"""Every collective matrix product as XLA:TPU schedules it: modelled time, exposed communication, memory."""

import argparse
import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console

from shardproof.properties.performance.compiled import (
    OWN,
    RECORDED,
    UNSHARDED,
    Figures,
    Place,
    Records,
    Work,
    key_of,
    read,
)
from shardproof.properties.performance.tables import form_of, markdown, table
from shardproof.properties.performance.tpu_compiler import NotCompiled, NoTpuCompiler, Topology, TpuCompiler, missing
from shardproof.properties.performance.tpu_compiler.process import COMPILER, WAYS
from shardproof.properties.programs.built_in import OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES
from shardproof.properties.programs.implementations import Implementation

COLUMNS = (
    "product", "form", "us", "of unsharded", "compute", "exposed", "permutes", "synchronous", "others", "temporary MB",
)  # fmt: skip
FLOOR, NAIVE = "floor", "naive"
OTHERS = (UNSHARDED, NAIVE, COMPILER)
PLACE = Place(Topology.parse("v5e:2x4"), 4)
RECORDED_COLUMNS = (
    "product", "shape", "best of ours", "unsharded us", "floor", "naive", "XLA's own", "ours", "exposed", "permutes",
    "MB naive", "MB ours",
)  # fmt: skip
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

    def row(form: str, found: Found) -> tuple[str, ...]:
        if isinstance(found, str) or isinstance(alone, str):
            return (work.contract, form, str(found), *[""] * (len(COLUMNS) - 3))
        times = f"{found.total:.1f}", f"{found.total / alone.total:.2f}", f"{found.compute / alone.total:.2f}"
        counts = str(found.permutes), str(found.synchronous), str(found.others)
        return (work.contract, form, *times, f"{found.share:.0%}", *counts, f"{found.temporary_bytes / 1e6:.1f}")

    yield row(UNSHARDED, alone)
    if isinstance(alone, str):
        return
    least = float(work.floor(alone.seconds))
    yield (work.contract, FLOOR, f"{alone.total * least:.1f}", f"{least:.2f}", *[""] * (len(COLUMNS) - 4))
    yield row(OWN, found_of(records, work, COMPILER))
    for one in forms:
        yield row(form_of(one) or one.name, found_of(records, work, one.name))


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
                one, short = figures[fastest], fastest.removesuffix(contract).rstrip("_")
                least = f"{float(Work(contract, shape, PLACE, way).floor(alone.seconds)):.2f}"
                times = (f"{figures[form].total / alone.total:.2f}" for form in (NAIVE, COMPILER, fastest))
                sizes = (f"{figures[form].temporary_bytes / 1e6:.1f}" for form in (NAIVE, fastest))
                counts = f"{one.share:.0%}", str(one.permutes)
                lines.append((contract, f"{shape} {way}", short, f"{alone.total:.0f}", least, *times, *counts, *sizes))
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
        known = ", ".join(map(form_of, forms_of(work.contract)))
        console.print(f"{work.contract} has no form {form}: expected {known}")
        return
    with TpuCompiler() as compiler:
        try:
            found, _ = work.compiled(compiler, one.name)
        except (NotCompiled, ValueError) as error:
            console.print(f"{one}: {error}")
        else:
            console.print(f"{one}, {work.shape} {work.way}\n{found}", soft_wrap=True, highlight=False, markup=False)


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
    place = Place(Topology.parse(options.topology), options.model)
    contracts = options.contract or [one.contract.name for one in PRODUCTS]
    if options.steps:
        for contract, shape, way in itertools.product(contracts, options.shape or SHAPES, options.way or WAYS):
            print_steps(console, Work(contract, shape, place, way), options.steps)
        return
    with Records(RECORDED if options.recorded else None) as records:
        for shape, way in itertools.product(options.shape or SHAPES, options.way or WAYS):
            works = [Work(contract, shape, place, way) for contract in contracts]
            lines = [line for work in works for line in rows(records, work, forms_of(work.contract))]
            title = f"{shape} {SHAPES[shape]}, {way}, bfloat16, {place.topology}, model axis {place.model}"
            console.print(table(title, COLUMNS, lines))


if __name__ == "__main__":
    main()
