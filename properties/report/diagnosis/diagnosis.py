"""The diagnosis of wrong blocks, in words: the first hypothesis that survives, or one change of the program."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
from threadpoolctl import threadpool_limits

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import as_dtype, is_float, round_to, unit_roundoff, wide
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import COMPOSE
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Difference, SuiteError
from shardproof.properties.report.diagnosis.recorded import recorded
from shardproof.properties.report.diagnosis.repairs import repair_of, rounds_at, stopped_at
from shardproof.properties.report.diagnosis.runs import CLEAR, MOST, Blocks, Run, runs_of

Change = dict[str, Any]
"""Fields of a case with other values."""
Predict = Callable[[Run], Blocks | None]

LISTED = 6
"""How many devices are named one by one."""


@dataclass(frozen=True)
class Hypothesis:
    """One way to be wrong."""

    text: str  # a sentence, and indented lines below it
    predict: Predict  # the blocks that it predicts; None, or a ValueError, where it predicts none
    of: Callable[[Run], Blocks] | None = None  # what is compared with that; None: the actual blocks

    def survives(self, runs: Sequence[Run]) -> bool:
        """True if it predicts the blocks of every run, and clearly not the right ones in one of them."""
        clear = False
        for run in runs:
            try:
                with np.errstate(all="ignore"):
                    blocks, actual = self.predict(run), run.actual if self.of is None else self.of(run)
            except (ValueError, IndexError, TypeError, ZeroDivisionError, SuiteError):  # does not fit these blocks
                return False
            if blocks is None or not run.equals(blocks, actual):
                return False
            if self.of is not None:  # nor are the actual blocks what is predicted, by so much leeway
                clear |= bool(run.wrong.any()) and not run.equals(blocks, run.actual)
            else:
                clear |= not run.near(blocks, run.expected, CLEAR * run.tolerance)[run.wrong].all()
        return clear


def explain(runs: Sequence[Run]) -> list[str]:
    """The lines of the first hypothesis that survives; of blocks that only moved, those of the first cause as well."""
    run = runs[0]
    return (
        _first(runs, of_every_block(run), _partial_results(run))
        or [*_first(runs, _moves(runs), _reorderings(run)), *_first(runs, causes(run))]
        or _first(runs, _second_reductions(run), WHEREVER)
    )


def _first(runs: Sequence[Run], *tables: Iterable[Hypothesis]) -> list[str]:
    """The lines of the first hypothesis that survives; empty if none does."""
    return next((one.text.split("\n") for one in itertools.chain(*tables) if one.survives(runs)), [])


def causes(run: Run) -> Iterator[Hypothesis]:
    """Hypotheses that explain why: another argument, another dtype on the way, or a planted bug."""
    if run.inputs and run.case.mesh.size <= MOST and run.actual[0].size:
        for text, change in variants(run.case):
            yield Hypothesis(f"the blocks are the right ones {text}", partial(_blocks_with, change))
        yield from _other_inputs(run)
        yield from _conversions(run)
    yield from _mutants(run)


def _sets_of_axes(run: Run) -> Iterator[tuple[tuple[str, ...], str]]:
    """Sets of axes that something may be reduced over, and their names, or those of roles that have just these axes."""
    case = run.case
    long = case.mesh.longer(case.mesh.axis_names) if run.expected.dtype != bool else []
    its = {role: {*case.mesh.longer(as_axes(of))} for role, of in case.roles}
    for axes in (axes for n in range(1, len(long) + 1) for axes in itertools.combinations(long, n)):
        roles = [role for role, of in its.items() if of and of <= {*axes}]
        yield axes, " and ".join(roles if {*axes} == set().union(*(its[role] for role in roles)) else axes)


def _partial_results(run: Run) -> Iterator[Hypothesis]:
    """A missing sum, or mean, over any axes."""
    for axes, named in _sets_of_axes(run):
        for reduce, text in ((np.sum, "partial sums: added up"), (np.mean, "partial means: averaged")):
            text = f"{text} over {named} the blocks are right"
            yield Hypothesis(text, lambda run: run.expected, of=partial(_over, axes, reduce, lambda run: run.actual))


def _second_reductions(run: Run) -> Iterator[Hypothesis]:
    """A second reduction: of right results, or of each device's own."""
    for axes, named in _sets_of_axes(run):
        for reduce, how in ((np.sum, "added up"), (np.mean, "averaged"), (np.max, "their maximum taken")):
            text = f"reduced once more: the right results, {how} over {named}"
            yield Hypothesis(text, partial(_over, axes, reduce, lambda run: run.expected))
            if run.inputs:
                text = f"reduced at the end: the results of each participant alone, {how} over {named}"
                yield Hypothesis(text, partial(_over, axes, reduce, partial(_blocks_with, {"axis_name": ()})))


def _over(axes: Sequence[str], reduce: Callable[..., np.ndarray], of: Callable[[Run], Blocks], run: Run) -> Blocks:
    """Blocks reduced over axes of the mesh, for all devices."""
    mesh, blocks = run.case.mesh, of(run)
    spread = blocks.astype(wide(blocks.dtype)).reshape(*mesh.sizes, *blocks.shape[1:])
    at = tuple(mesh.axis_names.index(axis) for axis in axes)
    total = np.broadcast_to(reduce(spread, axis=at, keepdims=True), spread.shape)
    return round_to(total.reshape(blocks.shape), run.expected.dtype)


def _where_wrong(make: Predict, run: Run) -> Blocks | None:
    """Predicted blocks on the devices that are wrong on one of the data sets, and right ones elsewhere."""
    made, blocks, places = make(run), run.expected.copy(), list(run.places)
    if made is None or made.shape != blocks.shape:
        return None
    blocks[places] = round_to(made, blocks.dtype)[places]
    return blocks


def of_every_block(run: Run) -> Iterator[Hypothesis]:
    """One mistake in all wrong blocks: nothing arrived or left, or too much was added up."""
    who = run.name(run.places[0]) if len(run.places) == 1 else "every wrong block"
    found: dict[str, Predict] = {
        f"missing: {who} holds zeros": lambda run: np.zeros_like(run.expected),
        f"multiple: {who} has the wrong sign": partial(_times, -1),
        f"conjugate: {who} holds the complex conjugate of the right values": lambda run: run.expected.conj(),
    }
    for k in sorted({2, 3, 4, run.case.participants, *run.case.mesh.sizes, run.case.mesh.size} - {1}):
        axes = " or ".join(axis for axis, size in run.case.mesh.shape.items() if size == k)
        size = f", {k} being the size of {axes}" if axes else ""
        found[f"multiple: {who} holds {k} times the right values{size}"] = partial(_times, k)
        found[f"multiple: {who} holds 1/{k} of the right values{size}"] = partial(_times, 1, parts=k)
    if run.case.keywords.get("op") == "max":
        found["starts from zero: as if that were one of the values"] = lambda run: np.maximum(run.expected, 0)
    yield from (Hypothesis(text, partial(_where_wrong, make)) for text, make in found.items())


def _times(times: int, run: Run, parts: int = 1) -> Blocks | None:
    right = run.expected.astype(wide(run.expected.dtype))
    return None if run.expected.dtype == bool else right * times / parts if parts > 1 else right * times


def _moves(runs: Sequence[Run]) -> Iterator[Hypothesis]:
    """Blocks, or inputs, of other devices: at a distance in the tuple of axes, or any."""
    run, axes, p = runs[0], runs[0].case.axes, runs[0].case.participants
    number, mesh = axis_index(run.case.mesh, axes).ravel(), run.case.mesh
    group = axis_index(mesh, [name for name in mesh.axis_names if name not in axes]).ravel()
    for text, own, words in (
        ("permuted: each wrong block is the right one of another device", False, "the block that belongs to"),
        ("unchanged: each wrong block is the input of a device", True, "unchanged what was put in by"),
    ):
        sources = {d: _source(runs, d, group, own=own) for d in run.places}
        if not all(s in range(len(number)) for s in sources.values()):
            continue
        lines = [f"  {run.name(d)} holds {words} {run.name(s)}" for d, s in [*sources.items()][:LISTED]]
        lines += [f"  … and {len(sources) - LISTED} more"] if len(sources) > LISTED else []
        near = len(sources) > 2 and all(group[d] == group[s] for d, s in sources.items())
        steps = {int(number[s] - number[d]) % p for d, s in sources.items()}
        if near and len(steps) == 1:
            lines = [f"  each holds {words} the participant {steps.pop()} after it along {axes}, wrapping round"]
        elif near and all(number[s] + number[d] == p - 1 for d, s in sources.items()):
            lines = [f"  the participants along {axes} are in the reverse order"]
        source = [sources.get(d, d) for d in range(len(number))]

        def move(run: Run, own: bool = own, source: Sequence[int] = source) -> Blocks | None:
            blocks = run.own if own else run.expected
            return None if blocks is None else blocks[source]

        yield Hypothesis("\n".join([text, *lines]), partial(_where_wrong, move))


def _source(runs: Sequence[Run], device: int, group: np.ndarray, *, own: bool) -> int:
    """The device whose block this one holds in all runs, preferably one in its group; -1 if there is none."""
    fits = np.ones(len(group), bool)
    fits[device] = own
    for run in runs:
        blocks = run.own if own else run.expected
        if blocks is None:
            return -1
        same = run.near(blocks, np.broadcast_to(run.actual[device], blocks.shape), run.tolerance)
        fits &= same.reshape(len(group), -1).all(axis=1)
    found = sorted(np.flatnonzero(fits).tolist(), key=lambda d: bool(group[d] != group[device]))
    return found[0] if found else -1


def _reorderings(run: Run) -> Iterator[Hypothesis]:
    """The elements of each block in another order."""
    shape = run.expected.shape
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    for i in (i for i in range(1, len(shape)) if shape[i] > 1):
        changes[f"reversed along dimension {i - 1}"] = partial(np.flip, axis=i)
        for by in (1, -1):
            changes[f"shifted along dimension {i - 1} by {by}, wrapping round"] = partial(np.roll, shift=by, axis=i)
    for order in [*itertools.permutations(range(1, len(shape)))][1:25]:
        names = ", ".join(str(i - 1) for i in order)
        changes[f"transposed, its dimensions in the order {names}"] = partial(np.transpose, axes=(0, *order))
    for text, change in changes.items():
        turned = partial(_where_wrong, lambda run, change=change: change(run.expected))  # type: ignore[misc]
        yield Hypothesis(f"permuted: every wrong block is {text}", turned)
    for i in range(1, len(shape)):
        yield _in_another_order(f"along dimension {i - 1} of each block", (i,))
    yield _in_another_order("of each block", tuple(range(1, len(shape))))
    yield _in_another_order("of all devices", tuple(range(len(shape))))


def _in_another_order(where: str, dimensions: tuple[int, ...]) -> Hypothesis:
    """The right values, sorted along dimensions of the blocks, of which the first is that of the devices."""

    def sort(blocks: Blocks) -> Blocks:
        rows = np.moveaxis(blocks.astype(wide(blocks.dtype)), dimensions, range(-len(dimensions), 0))
        return np.sort(rows.reshape(*rows.shape[: blocks.ndim - len(dimensions)], -1), axis=-1)

    text = f"permuted: the values {where} are the right ones, in another order"
    return Hypothesis(text, lambda run: sort(run.expected), of=lambda run: sort(run.actual))


def _blocks_with(change: Change, run: Run) -> Blocks:
    """The right blocks of a changed case."""
    return _right(dataclasses.replace(run.case, **change), run, run.inputs)


def _right(case: Case, run: Run, inputs: Sequence[np.ndarray]) -> Blocks:
    """The right blocks of a case, given its inputs."""
    return round_to(run.flat(run.oracle(case, inputs)), run.expected.dtype)


def variants(case: Case) -> Iterator[tuple[str, Change]]:
    """The same case with one argument changed, the likeliest mistakes first."""

    def params(**values: object) -> Change:
        return {"params": case.with_params(**values).params}

    long, given = case.mesh.longer(case.axes), case.keywords  # axes of one device make no difference
    in_order = list(case.mesh.in_mesh_order(long))
    orders = [o for o in map(list, itertools.permutations(long)) if o != long]
    for order in sorted(orders, key=lambda o: o != in_order):
        left = iter(order)
        axes = tuple(next(left) if name in long else name for name in case.axes)
        yield f"for axis_name={axes}{' (the order of the mesh)' if order == in_order else ''}", {"axis_name": axes}
    if COMPOSE in case.chain:
        first = tuple(name for name in case.chain if name != COMPOSE)
        yield "of the first call, which feeds the second", {"chain": first}
    for name, value in _other_values(case):
        yield f"for {name}={value!r}", params(**{name: value})
    for (name, value), (other, its) in itertools.combinations(given.items(), 2):
        if type(value) is type(its) is int and value != its:
            yield f"for {name}={its}, {other}={value}", params(**{name: its, other: value})
    if "perm" in given:
        turned = tuple((to, source) for source, to in given["perm"])
        yield "for perm with source and destination swapped", params(perm=turned)
        yield "for perm without its last pair", params(perm=given["perm"][:-1])
        yield "for perm without its first pair", params(perm=given["perm"][1:])
    if {"perm", "root", "axis_index_groups"} & {*given}:  # whose numbers mean other devices over other axes
        if given.get("axis_index_groups") is not None:
            yield "for no axis_index_groups", params(axis_index_groups=None)
        return
    for n in range(len(long) - 1, 0, -1):
        yield from ((f"for axis_name={axes}", {"axis_name": axes}) for axes in itertools.combinations(long, n))
    more = [name for name in case.mesh.longer(case.mesh.axis_names) if name not in case.axes]
    yield from ((f"for axis_name={(*case.axes, name)}", {"axis_name": (*case.axes, name)}) for name in more)
    if long:
        yield "of each participant alone", {"axis_name": ()}


def _other_values(case: Case) -> Iterator[tuple[str, object]]:
    for name, value in case.params:
        option, others = case.contract.call.options.get(name), tuple[Any, ...]()
        if name == "op":
            others = "sum", "mean", "max", "min"
        elif type(value) is bool:
            others = (not value,)
        elif type(value) is float:
            others = (0.0,)
        elif type(value) is int:
            others = 1, value - 1, value + 1, *range(min(case.participants, MOST)), -1, -value
        for other in dict.fromkeys(others):
            if other != value and (option is None or option.accepts(case, other)):
                yield name, other


def _other_inputs(run: Run) -> Iterator[Hypothesis]:
    """The right results of another operand: a mask that is ignored, or what another participant holds of it."""
    mesh = run.case.mesh
    long = [(at, axis) for at, axis in enumerate(mesh.axis_names) if mesh.shape[axis] > 1]
    for i, (name, x) in enumerate(zip(run.case.contract.call.names(run.case), run.inputs, strict=False)):
        changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {f"if {name} were ones everywhere": np.ones_like}
        for at, axis in long:
            first = partial(lambda at, x: np.broadcast_to(x.take([0], axis=at), x.shape), at)
            changes[f"for {name} of the first along {axis}"] = first
            changes[f"for {name} of the participant before, along {axis}"] = partial(np.roll, shift=1, axis=at)
            changes[f"for {name} of the participant after, along {axis}"] = partial(np.roll, shift=-1, axis=at)
        for (at, axis), (other, second) in itertools.combinations(long, 2):
            swap = partial(lambda at, other, x: x.swapaxes(at, other).reshape(x.shape), at, other)
            changes[f"for {name} with {axis} and {second} in the other order"] = swap
        for d in range(len(mesh.sizes), x.ndim):
            which = f"dimension {d - len(mesh.sizes)} of {name}"
            for at, axis in long:
                changes[f"for {which} dealt out cyclically along {axis}, not in blocks"] = partial(_cyclic, at, d)
        for text, change in changes.items():
            yield Hypothesis(f"the blocks are the right ones {text}", partial(_with_input, i, change))


def _cyclic(at: int, d: int, x: np.ndarray) -> np.ndarray:
    """Deals out a dimension cyclically: of p participants along an axis, the i-th gets the elements i, i + p, …."""
    spread = np.moveaxis(x, (at, d), (0, 1))
    return np.moveaxis(spread.swapaxes(0, 1).reshape(spread.shape), (0, 1), (at, d))


def _with_input(i: int | None, change: Callable[[np.ndarray], np.ndarray], run: Run) -> Blocks:
    """The right blocks if an input, or each of them, is changed."""
    return _right(run.case, run, [change(x) if i in (at, None) else x for at, x in enumerate(run.inputs)])


def _conversions(run: Run) -> Iterator[Hypothesis]:
    """Floats that are rounded to a coarser dtype on their way in, or out."""
    floats = all(x.dtype.kind != "c" and is_float(x.dtype) for x in [run.expected, *run.inputs])
    coarse = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32")
    for dtype in map(as_dtype, coarse if floats else ()):
        text = f"rounded too much: the blocks are the right ones with its value in {dtype} in place of each"
        change = partial(lambda to, x: x.astype(to).astype(x.dtype), dtype)
        yield Hypothesis(f"{text} number that goes in", partial(_with_input, None, change))
        yield Hypothesis(f"{text} result", partial(lambda change, run: change(run.expected), change))


def _mutants(run: Run) -> Iterator[Hypothesis]:
    """The planted bugs of the contract, in a checkout: a wheel has none.

    This project's own functions are left out: many bugs call them, and are wrong in the same way.
    """
    if run.violation.implementation.built_in or find_spec("shardproof.properties.mutants") is None:
        return
    from shardproof.properties.mutants import MUTANTS  # takes a second, and only failures need it

    given, law = run.violation.implementation.function, "value" if run.difference.of == "result" else "gradient"
    contract = run.case.contract.name
    for bug in [bug for bug in MUTANTS.values() if (bug.contract, bug.law) == (contract, law)]:
        if bug.runs != "isolated" and bug.function is not given:
            claims = frozenset(bug.claims)
            own = Implementation(CONTRACTS[contract], bug.name, bug.function, claims, whole=bug.whole)
            text = f"as the planted bug {bug.name} has it: {bug.sentence}"
            yield Hypothesis(text, partial(Run.observe, implementation=own))


def _instead(value: float, run: Run) -> Blocks | None:
    if not (np.isfinite(value) or is_float(run.expected.dtype)):
        return None
    return np.where(run.wrong, np.array(value, run.expected.dtype), run.expected)


def _saturate(run: Run) -> Blocks | None:
    """The actual values at the ends of the range of whole numbers, and the right values elsewhere."""
    if is_float(run.expected.dtype) or run.expected.dtype == bool:
        return None
    limits, actual = ml_dtypes.iinfo(run.expected.dtype), run.actual.astype(wide(run.actual.dtype))
    return np.where((actual == int(limits.min)) | (actual == int(limits.max)), run.actual, run.expected)


WHEREVER = (
    Hypothesis(
        "NaN: wrong only where the right value is NaN",
        lambda run: np.where(run.expected != run.expected, run.actual, run.expected),
    ),
    Hypothesis(
        "infinities: wrong only where the right value is infinite",
        lambda run: np.where(np.isinf(run.expected), run.actual, run.expected),
    ),
    Hypothesis("missing: the blocks hold zeros wherever they are wrong", partial(_instead, 0.0)),
    Hypothesis("NaN: the blocks hold NaN where the right value is none", partial(_instead, np.nan)),
    Hypothesis("overflow: the blocks hold infinity where the right value is finite", partial(_instead, np.inf)),
    Hypothesis(
        "saturated: the blocks hold the smallest or largest whole number of the dtype, not one that wraps", _saturate
    ),
    Hypothesis(
        "unchanged: the blocks hold the device's own input wherever they are wrong",
        lambda run: None if run.own is None else np.where(run.wrong, run.own, run.expected),
    ),
)
"""One mistake in all wrong elements."""


@threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]  # as in the search
def diagnose(violation: LawViolation) -> list[str]:
    """The diagnosis, with its details indented; empty where blocks were not compared."""
    difference, case = violation.difference, violation.case
    if difference is None:
        return []
    if difference.of == "replica":
        return ["replicas disagree: devices that are typed to hold the same block hold different ones"]
    if not difference.comparable:
        return [_not_comparable(difference, len(case.mesh.sizes))]
    if difference.of == "array":
        return ["other values in the array that out_specs puts together"]
    if line := rounds_at(violation):
        return [f"rounded too much: in double precision the values are right; {line}"]
    runs, by_formula = runs_of(violation), difference.by_formula or violation.in_doubles
    if not by_formula and all(map(_is_rounding, runs)):
        small = "rounded too much: off by no more than a small part of the numbers about"
        return _first(runs, causes(runs[0])) or [small]
    lines, repair = explain(runs), repair_of(violation)
    change = stopped_at(violation) if repair is None else repair[0]
    names = [*map(runs[0].name, runs[0].places[:LISTED]), *(["others"] if len(runs[0].places) > LISTED else [])]
    other = f"{'another formula: in double precision too, ' * by_formula}other values: on {', '.join(names)}"
    if not lines or lines[0].startswith(("missing: ", "NaN: ")):  # which say little of the cause
        record = recorded(violation)
        seen = (record.numbers if lines and lines[0].startswith("NaN: ") else record.lines)[:1] if record else []
        lines = [*(lines or [other] * (not change or bool(seen))), *seen]
    if change:
        lines.append(f"one change makes it right: {change}")
    return lines


def _is_rounding(run: Run) -> bool:
    """True if all errors are at most a sixteenth of the values; a small whole number is never rounded."""
    right, actual = (x[run.wrong].astype(wide(x.dtype)) for x in (run.expected, run.actual))
    if not is_float(run.expected.dtype) or ((right == np.round(right)) & (np.abs(right) <= 64)).any():
        return False
    with np.errstate(all="ignore"):
        usual = np.median(np.abs(run.expected)) if run.expected.size else 0
        scale = np.maximum(np.abs(right), max(run.tolerance, usual))
        off = np.abs(actual - right)
        return bool((np.isfinite(off) & (off <= scale / 16)).all())


def _not_comparable(difference: Difference, lead: int) -> str:
    expected, actual = difference.expected, difference.actual
    if actual.shape == expected.shape:
        found, exact = (x.astype(np.result_type(wide(expected.dtype), wide(actual.dtype))) for x in (actual, expected))
        unit = max((unit_roundoff(x.dtype) for x in (actual, expected) if is_float(x.dtype)), default=0.0)
        with np.errstate(all="ignore"):  # as nearly as the shorter of both dtypes has them
            largest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
            right = np.allclose(found, exact, rtol=0, atol=4 * unit * largest, equal_nan=True)
        values = "the values are right" if right else "the values are wrong as well"
        return f"wrong dtype: {actual.dtype} where {expected.dtype} is right; {values}"
    return f"wrong shape: {actual.shape[lead:]} where {expected.shape[lead:]} is right"
