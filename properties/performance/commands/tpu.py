"""Tables of XLA:TPU's schedules of collective matrix products: time, exposed communication, memory."""

import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console

from shardproof.properties.cases import suggestion
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.compiled import (
    OWN,
    RECORDED,
    UNSHARDED,
    Figures,
    Place,
    Records,
    Work,
)
from shardproof.properties.performance.tables import form_of, table
from shardproof.properties.performance.tpu_compiler import (
    COMPILER,
    WAYS,
    NotCompiled,
    TpuCompiler,
    missing,
)
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.programs.built_in import OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES
from shardproof.properties.programs.implementations import Implementation

COLUMNS = (
    "product", "form", "us", "of unsharded", "compute", "exposed", "permutes", "synchronous", "others", "temporary MB",
)  # fmt: skip
FLOOR = "floor"


def rows(records: Records, work: Work, forms: Sequence[Implementation]) -> Iterator[tuple[str, ...]]:
    """The rows of the local product, the floor, XLA's own product, the naive form, and all other forms."""
    alone = records.of(work, UNSHARDED)

    def row(form: str, found: Figures | str) -> tuple[str, ...]:
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
    yield row(OWN, records.of(work, COMPILER))
    for one in forms:
        yield row(form_of(one), records.of(work, one.name))


def forms_of(contract: str) -> list[Implementation]:
    """The naive form of a product and those that overlap, over one axis."""
    return [one for one in (*PRODUCTS, *OVERLAPPED) if one.contract.name == contract]


def print_steps(console: Console, work: Work, form: str) -> None:
    """Prints the schedule of a form of a product, or why it cannot be compiled."""
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


def print_schedules(
    *,
    topology: str,
    model: int,
    shape: Sequence[str],
    way: Sequence[str],
    contract: Sequence[str],
    recorded: bool,
    steps: str,
) -> None:
    """Prints a table for every shape and way; with `steps`, the schedule of this form instead."""
    place, products = Place(Topology.parse(topology), model), [one.contract.name for one in PRODUCTS]
    for name in contract:
        if name not in products:
            raise RequestError(f"--contract={name}: expected a product; {suggestion.did_you_mean(name, products)}")
    if (reason := missing()) and (steps or not recorded):
        raise RequestError(reason)
    console, contracts = Console(width=140), contract or products
    if steps:
        for name, size, direction in itertools.product(contracts, shape or SHAPES, way or WAYS):
            print_steps(console, Work(name, size, place, direction), steps)
        return
    with Records(RECORDED if recorded else None) as records:
        for size, direction in itertools.product(shape or SHAPES, way or WAYS):
            works = [Work(name, size, place, direction) for name in contracts]
            lines = [line for work in works for line in rows(records, work, forms_of(work.contract))]
            title = f"{size} {SHAPES[size]}, {direction}, bfloat16, {place.topology}, model axis {place.model}"
            console.print(table(title, COLUMNS, lines))
