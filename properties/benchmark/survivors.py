"""In what each overlapped form of a product is the best: by XLA:TPU's schedules, by timelines, in steps, in load."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from rich.console import Console

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.benchmark import tables
from shardproof.properties.benchmark.products import SMALL, form_of, traced_ways
from shardproof.properties.benchmark.timelines import DATA
from shardproof.properties.communication.steps import steps
from shardproof.properties.contracts.products import SHAPES, product_case, whole_sides
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.choosing import Choice, choice, forms, scheduled
from shardproof.properties.performance.compiled import RECORDED, UNSHARDED, Figures, Key, read
from shardproof.properties.performance.crossover import shapes_of
from shardproof.properties.performance.machines import Balanced, loads_in
from shardproof.properties.performance.shaped import shaped
from shardproof.properties.performance.timeline import timeline
from shardproof.properties.performance.tpu_compiler.request import COMPILER, FORWARD
from shardproof.properties.programs.implementations import FORMS, OVERLAPPED, Implementation

NEAR = Fraction(102, 100)
"""What is as good as the best."""

NAMES = {one.name: one for one in OVERLAPPED}
MODEL_AXES = (4, 8)
COLUMNS = (
    "product",
    "form",
    "fastest as compiled",
    "fastest by timelines",
    "steps",
    "exposed",
    "load of the first axis",
)


@dataclass(frozen=True)
class Merits:
    """What speaks for a form.

    Arguments:
        compiled: the chips, shapes and ways at which it is the fastest as XLA:TPU schedules it.
        timed: the chips on which it is the fastest by timelines, with how often.
        steps: permutes on the critical path among 8 participants; over two axes, None.
        exposed: the larger part of what it sends, forward or with its gradient, that is exposed on the law's balanced
            machine, among 8 over one axis.
        load: the most bytes on a link of the tuple's first axis, of 4x4, over those of the ring or the first form.
    """

    compiled: tuple[str, ...]
    timed: Counter[str]
    steps: int | None
    exposed: Fraction | None
    load: Fraction

    def best_in(self, others: "list[Merits]") -> list[str]:
        """In what it is the best of all: the fastest within 2%, or alone with the least."""
        found = ["compiled"] * bool(self.compiled) + ["timelines"] * bool(self.timed)
        for name in ("steps", "exposed", "load"):
            mine, theirs = getattr(self, name), [getattr(one, name) for one in others]
            if mine is not None and all(mine < one for one in theirs if one is not None):
                found.append(name)
        return found


def merits(contract: str, known: Mapping[Key, Figures | str] | None = None) -> dict[str, Merits]:
    """Those of every form of a product, by its name."""
    ours = [NAMES[f"{way}_{contract}"] for way in FORMS[contract]]
    compiled, timed = compiled_best(read(RECORDED) if known is None else known), timed_best(contract)
    loads = [first_axis(one) for one in ours]
    most = max(loads)
    return {
        one.name: Merits(
            tuple(compiled.get(one.name, ())),
            timed.get(one.name, Counter()),
            steps_of(one),
            exposed_by(one),
            load / most,
        )
        for one, load in zip(ours, loads, strict=True)
    }


def compiled_best(known: Mapping[Key, Figures | str]) -> dict[str, list[str]]:
    """By the form's name, the shapes and ways at which it is the fastest, within 2%, of all forms of a product.

    Where the naive form is the fastest, or what XLA makes of the product by itself, none is named.
    """
    works: dict[tuple[str, int, str, str, str], dict[str, float]] = {}
    for (topology, p, shape, way, contract, form), found in known.items():
        if isinstance(found, Figures) and form != UNSHARDED:
            works.setdefault((topology, p, shape, way, contract), {})[form] = found.total
    named: dict[str, list[str]] = {}
    for (topology, p, shape, way, _), totals in works.items():
        ours = {form: total for form, total in totals.items() if form in NAMES}
        others = [total for form, total in totals.items() if form in ("naive", COMPILER)]
        for form, total in ours.items():
            if total <= NEAR * min(ours.values()) and total < min(others):
                place = topology.partition(":")[0] + (f" over {p}" if p != MODEL_AXES[0] else "")
                named.setdefault(form, []).append(f"{place} {shape}" + f" {way}" * (way != FORWARD))
    return named


EIGHT = MeshCase(("x",), (8,))


def choices(contract: str) -> Iterator[Choice]:
    """A product of every shape over every axis, on every chip."""
    for shape in SHAPES:
        m, k, n = whole_sides(contract, shape)
        for p in MODEL_AXES:
            traced = forms(
                shaped(contract, MeshCase(("tp",), (p,)), "tp", shapes_of(contract, m // DATA, k, n), "bfloat16")
            )
            yield from (choice(traced, chip) for chip in CHIPS.values())


def timed_best(contract: str) -> dict[str, Counter[str]]:
    """By the form's name, on which chips it is the fastest, and faster than the naive form, and how often."""
    named: dict[str, Counter[str]] = {}
    for found in choices(contract):
        best = found.rows[0].total
        if found.plain:
            continue
        for one in found.rows:
            if one.total <= NEAR * best and one.implementation.name in NAMES:
                named.setdefault(one.implementation.name, Counter())[found.machine.name] += 1
    return named


def steps_of(one: Implementation) -> int:
    """The length of the critical path among 8 participants, in permutes."""
    return max(step.round for step in steps(one, product_case(one.contract, EIGHT, "x", SMALL)))


def exposed_by(one: Implementation) -> Fraction:
    """What it exposes among 8 participants where a link takes as long as the products.

    That is the larger part, forward or with its gradient, on the machine for which the forward pass is balanced.
    """
    alone, both = traced_ways(one, product_case(one.contract, EIGHT, "x", SMALL))
    machine = Balanced.of(alone, EIGHT, ("x",))
    return max(timeline(operations, machine).share for operations in (alone, both))


def first_axis(one: Implementation) -> Fraction:
    """The most bytes on a link of the tuple's first axis, of a torus of 4x4, whatever the sides."""
    case = product_case(one.contract, MeshCase(("x", "y"), (4, 4)), ("x", "y"), SMALL)
    loads = loads_in(scheduled(one, case))
    outer = [size for (axis, _), size in loads.items() if axis == "x"]
    return max(outer, default=Fraction(0))


def rows(known: Mapping[Key, Figures | str] | None = None) -> list[tuple[str, ...]]:
    """Every form with what speaks for it."""
    lines: list[tuple[str, ...]] = []
    for contract in FORMS:
        for name, found in merits(contract, known).items():
            lines.append(
                (
                    contract,
                    form_of(NAMES[name]),
                    ", ".join(found.compiled),
                    ", ".join(f"{chip} {count}" for chip, count in found.timed.items()),
                    "" if found.steps is None else str(found.steps),
                    "" if found.exposed is None else f"{float(found.exposed):.0%}",
                    f"{float(found.load):.2f}",
                )
            )
    return lines


def markdown() -> str:
    """The table as `impl/README.md` has it."""
    return tables.markdown(COLUMNS, rows(), left=4)


def measure() -> None:
    """Prints the table, the same in every run."""
    title = f"in what each form is the best; timelines: of {len(SHAPES) * len(MODEL_AXES)} on each chip"
    Console(width=170).print(tables.table(title, COLUMNS, rows()))
