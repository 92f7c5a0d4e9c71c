"""The choice of a form of an operation for a shape: the fastest as XLA:TPU schedules it, or by its timeline."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.chips import Chip, chip, in_words
from shardproof.properties.performance.compiled import OWN, Known, known_of
from shardproof.properties.performance.operations import Operation, operations_of
from shardproof.properties.performance.routes import Undetermined
from shardproof.properties.performance.shaped import Shapes, shaped_case, with_layouts
from shardproof.properties.performance.timeline import timeline
from shardproof.properties.performance.tpu_compiler import COMPILER, FORWARD, WAYS
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import SHARDED, received
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, derivatives, forward, precision_of

PLAIN = ("naive", "lax")
"""The forms that hide nothing: one collective, before or after a product."""


@dataclass(frozen=True)
class Row:
    """A form on a machine."""

    implementation: Implementation
    total: Fraction  # seconds
    exposed: Fraction  # seconds in which something is sent and nothing computed

    @property
    def narrow(self) -> bool:
        """True if sums of 16-bit floats are sent in 16 bits, and so rounded at every hop."""
        return "narrow_accumulation" in self.implementation.features


@dataclass(frozen=True)
class Choice:
    """The forms of an operation with their times, and the best of them."""

    contract: str  # the operation
    case: Case  # the shapes, on their mesh
    machine: Chip
    rows: tuple[Row, ...]  # all forms, by their timelines, the fastest first; the plain form first among equals
    unsharded: Fraction  # seconds of the plain form's computation, for a product; else zero
    unsupported: tuple[tuple[Implementation, str], ...] = ()  # forms without a timeline for the case, with reasons
    gradient: bool = False  # whether the gradient is included
    compiled: tuple[Known, ...] = ()  # XLA:TPU's recorded schedules, forward and, with `gradient`, backward
    unrecorded: tuple[str, ...] = ()  # the way that is not recorded, if the other one is

    @property
    def best(self) -> Implementation:
        """The fastest form as XLA:TPU schedules it, if that is recorded, or by its timeline.

        XLA's own product is faster still if `left_to_compiler` is true.
        """
        forms = {row.implementation.name: row.implementation for row in self.rows}
        return next((forms[name] for name in self.totals if name in forms), self.timed)

    @property
    def plain(self) -> bool:
        """True if `best` is the plain form, which hides nothing."""
        return self.best.name in PLAIN

    @property
    def timed(self) -> Implementation:
        """The fastest form by its timeline."""
        return self.rows[0].implementation

    @property
    def totals(self) -> dict[str, Fraction]:
        """Seconds of each recorded form, and of XLA's own product, as `COMPILER`; both ways for a gradient.

        The fastest comes first; equally fast ones are in the order of their timelines, XLA's own last.
        """
        order = {row.implementation.name: place for place, row in enumerate(self.rows)}
        shared = [name for known in self.compiled[:1] for name in known.forms]
        totals = {
            name: sum((known.forms[name].seconds for known in self.compiled), Fraction(0))
            for name in shared
            if all(name in known.forms for known in self.compiled)
        }
        return dict(sorted(totals.items(), key=lambda one: (one[1], order.get(one[0], len(order)))))

    @property
    def left_to_compiler(self) -> bool:
        """True if XLA's own product, of global arrays under `jit`, is recorded as faster than every form."""
        return next(iter(self.totals), None) == COMPILER

    @property
    def floor(self) -> Fraction:
        """A lower bound on any form's time, relative to `unsharded`: the transfers plus 1/p of a product, or 1.

        Blocks are sent in the operands' dtype, over all links of their axes, without latency; for a gradient only those
        of the function itself count.
        """
        if not self.unsharded or self.case.participants < 2:
            return Fraction(1)
        sent = received(self.case) / self.machine.bandwidth(self.case.mesh, self.case.axes)
        products = len(self.case.operands) - 1
        alone = Fraction(0) if self.gradient else Fraction(1, products * self.case.participants)
        return max(Fraction(1), sent / self.unsharded + alone)

    def ratio(self, row: Row) -> Fraction:
        """The time of a form over `unsharded`."""
        return row.total / self.unsharded if self.unsharded else Fraction(0)

    def __str__(self) -> str:
        arrays = ", ".join(map(str, self.case.operands))
        head = f"{self.contract}({arrays}) on mesh {self.case.mesh}, {self.machine.name}: "
        head += f"{OWN}, of global arrays under jit; of these forms " if self.left_to_compiler else ""
        lines = [head + (f"{self.best.name}, the plain form" if self.plain else self.best.name)]
        if self.unsharded:
            least = f"no form takes less than {float(self.floor):.2f} times as long"
            lines.append(f"  with nothing to send: {in_words(self.unsharded)}; {least}")
        for row in self.rows:
            over = f", {float(self.ratio(row)):.2f} times as long" if self.unsharded else ""
            rounds = "; rounds sums of 16-bit floats at every hop" if row.narrow else ""
            times = f"{in_words(row.total)}{over}, {in_words(row.exposed)} exposed{rounds}"
            lines.append(f"  {row.implementation.name}: {times}")
        lines += [f"  {one.name} has no timeline: {reason}" for one, reason in self.unsupported]
        lines += [f"  as XLA:TPU schedules it: {way} is not recorded" for way in self.unrecorded]
        for known in self.compiled[:1]:
            lines.append(f"  as XLA:TPU schedules it on {known.topology}, over the product of one device alone:")
        for name, total in self.totals.items():
            parts = []
            for way, known in zip(WAYS, self.compiled, strict=False):
                ratio, share = float(known.forms[name].seconds / known.alone.seconds), known.forms[name].share
                parts.append(f"{way} {ratio:.2f}, {share:.0%} exposed")
            lines.append(f"    {OWN if name == COMPILER else name}: {in_words(total)}; {'; '.join(parts)}")
        return "\n".join(lines)


def choose(
    contract: str,
    shapes: Shapes | None = None,
    machine: str | Chip = "v5e",
    *,
    mesh: MeshCase | int = 4,
    axis_name: str | Sequence[str] = (),
    dtype: str = "bfloat16",
    gradient: bool = False,
) -> Choice:
    """The fastest of this project's forms of an operation on a stated machine.

    Nothing is run or compiled: every form is traced, and scheduled by `performance.timeline`. If the plain form (one
    collective and one product) is best, `plain` is true. Some products were compiled for TPUs (`docs/performance.md`):
    for these XLA's schedules decide, and `left_to_compiler` is true if the shortest is that of global arrays under
    `jit`. The text of the result says both.

    Arguments:
        contract: the operation, `"all_gather_matmul_lhs"` say.
        shapes: of whole arrays, sharded along the axis tuple; None: those of a published example.
        machine: a name of `chips.CHIPS`, or a `Chip`.
        mesh: the mesh, or how many participants one axis `tp` has.
        axis_name: the axis tuple; empty: all axes of the mesh.
        dtype: of all floating operands.
        gradient: whether the gradient is included.

    Returns:
        The forms with their times; `best` is the fastest of them.

    Raises:
        RequestError: for an unknown contract, machine or axis, shapes that do not divide, or a dtype that has no
            published peak on the machine.

    Example:
        `choose("all_gather_matmul_lhs", ((512, 2048), (2048, 8192)), "v5e").best.name`
    """
    on = MeshCase(("tp",), (mesh,)) if isinstance(mesh, int) else mesh
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name) or on.axis_names
    if not {*axes} <= {*on.axis_names}:
        raise RequestError(f"axis_name={axis_name!r}: expected axes of the mesh {on}")
    stated = chip(machine) if isinstance(machine, str) else machine
    stated.check(on)
    case = shaped_case(contract, on, axes, shapes, dtype)
    ways = WAYS if gradient else (FORWARD,)
    known = {way: known_of(case, stated, way) for way in ways}
    compiled = tuple(one for one in known.values() if one is not None)
    found = choice(case, stated, gradient=gradient)
    if len(compiled) == len(ways):
        return dataclasses.replace(found, compiled=compiled)
    missing = tuple(way for way, one in known.items() if one is None)
    return dataclasses.replace(found, unrecorded=missing if compiled else ())


def choice(case: Case, machine: Chip, *, gradient: bool = False) -> Choice:
    """The choice for a case on a machine by timelines alone."""
    found, unsupported, plain = [], [], None
    for one in [i for i in IMPLEMENTATIONS if i.contract.name == case.contract.name]:
        if one.serves is not None and not one.serves(case):
            unsupported.append((one, f"it does not support {case.mesh}"))
            continue
        try:
            timed = timeline(operations_for(one, with_layouts(case, one.layouts), gradient=gradient), machine)
        except (NotImplementedError, Undetermined) as error:
            unsupported.append((one, str(error)))
            continue
        plain = timed if one.name in PLAIN else plain
        found.append(Row(one, timed.total, timed.exposed))
    rows = sorted(found, key=lambda row: (row.total, row.implementation.name not in PLAIN))
    unsharded = plain.compute if plain is not None and case.contract.name in SHARDED else Fraction(0)
    return Choice(case.contract.name, case, machine, tuple(rows), unsharded, tuple(unsupported), gradient)


def operations_for(implementation: Implementation, case: Case, *, gradient: bool = False) -> tuple[Operation, ...]:
    """The operations of a device in an implementation, or in it and its gradient."""
    seen = Seen()
    with precision_of(case):
        found = operations_of(forward(case, implementation, seen), case.mesh)  # from its trace, `seen` is known
        if gradient:
            found = operations_of(derivatives(case, implementation, seen, forward_mode=False)[0], case.mesh)
    return found
