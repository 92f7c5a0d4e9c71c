"""Timelines of traced programs beside the schedules of XLA:TPU: every form of a product by both."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.choosing import choice, forms
from shardproof.properties.performance.compiled import RECORDED, UNSHARDED, Place, Records, Work
from shardproof.properties.performance.tables import form_of, table
from shardproof.properties.performance.tpu_compiler import NotCompiled, Topology, missing
from shardproof.properties.programs.examples import SHAPES

COMPARED = (
    "all_gather_matmul_lhs_contracting",
    "all_gather_matmul_lhs",
    "all_gather_matmul_rhs",
    "matmul_reduce_scatter",
)
COLUMNS = ("product", "shape", "form", "timeline", "compiler", "exposed, timeline", "exposed, compiler")


@dataclass(frozen=True)
class Pair:
    """A form by both, over the local product by the same."""

    work: tuple[str, str]  # the product and its shape
    form: str
    timeline: float  # its time by the timeline of the traced program
    compiled: float  # by the compiler's schedule
    exposed: tuple[float, float]  # the parts of that in which something is sent and nothing computed, by each


def pairs(records: Records, place: Place, shape: str) -> Iterator[Pair]:
    """Every form of every product of a shape that both know."""
    for contract in COMPARED:
        work = Work(contract, shape, place)
        alone = records.of(work, UNSHARDED).total
        traced = choice(forms(work.case()), chip(place.topology.generation))
        for one in traced.rows:
            try:
                found = records.of(work, one.implementation.name)
            except NotCompiled:
                continue
            parts = float(one.exposed / one.total), 1 - found.compute / found.total
            ratios = float(traced.ratio(one)), found.total / alone
            yield Pair((contract, shape), form_of(one.implementation) or one.implementation.name, *ratios, parts)


def summary(found: Sequence[Pair]) -> str:
    """How far the two are apart, and what it costs, by the compiler, to choose by timelines."""
    apart = sorted(max(one.timeline / one.compiled, one.compiled / one.timeline) for one in found)
    works = list(dict.fromkeys(one.work for one in found))
    same, lost = 0, []
    for work in works:
        own = [one for one in found if one.work == work]
        chosen = min(own, key=lambda one: one.timeline)
        best = min(own, key=lambda one: one.compiled)
        same += chosen.form == best.form
        lost.append(chosen.compiled / best.compiled)
    mean = math.exp(sum(map(math.log, lost)) / len(lost))
    return (
        f"{len(found)} programs: half of them within a factor of {apart[len(apart) // 2]:.2f}, all within "
        f"{apart[-1]:.2f}; the fastest form by timelines is the compiler's in {same} of {len(works)} products; by the "
        f"compiler it takes {mean:.2f} times as long as the fastest on average, {max(lost):.2f} at most"
    )


def print_agreement(*, topology: str, model: int, shape: Sequence[str], recorded: bool) -> None:
    """Prints a table of the pairs, and its summary.

    Raises:
        RequestError: if there is no such topology, or compiler where more than what is recorded is asked for.
    """
    if (reason := missing()) and not recorded:
        raise RequestError(reason)
    console, place = Console(width=140), Place(Topology.parse(topology), model)
    with Records(RECORDED if recorded else None) as records:
        found = [pair for size in shape or SHAPES for pair in pairs(records, place, size)]
    title = f"times over the local product, {place.topology}, model axis {place.model}, bfloat16"
    lines = [
        (*one.work, one.form, f"{one.timeline:.2f}", f"{one.compiled:.2f}", *(f"{part:.0%}" for part in one.exposed))
        for one in found
    ]
    console.print(table(title, COLUMNS, lines))
    console.print(summary(found))
