"""What is told of failures: the text that a person reads first, and once what those of one mistake have in common."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardproof.oracles.layout import device_name, logical_index, shard
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import UNCHECKED
from shardproof.properties.laws import Law
from shardproof.properties.programs.violation import DEATHS, RAISED, Difference
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.failures.files import write_if_possible, written
from shardproof.properties.report.failures.picture import WRONG, in_letters, picture
from shardproof.properties.runner.violation import LawViolation

ROUNDING = "rounding"
VALUES = "wrong values of the {}"
RESULT, DERIVATIVES = "result", "derivatives"
FORM = ("shape", "dtype", "tree")
"""The kinds of violations of what a result is, whatever its values are: no law can go on to compare these."""
SITE = re.compile(r'File "([^"]*)", line (\d+)')

LINE = 200
"""How much of the headline of a further failure of one cause is told."""

LEFT_OUT = "not checked, since the values are wrong"
"""What is said of the laws that `Told.answers`."""


def cause(violation: LawViolation) -> str:
    """The implementation, and the kind of its mistake: where it raises, or which values are how wrong."""
    return f"{violation.implementation}: {_mistake(violation)}"


def _mistake(violation: LawViolation) -> str:
    finding, difference = violation.finding, violation.difference
    if violation.kind in RAISED:
        sites = SITE.findall("\n".join(violation.origin)) if violation.kind == "raises" else []
        return f"{finding.partition(':')[0]} at {':'.join(sites[-1]) if sites else 'no place of its own'}"
    if violation.kind in DEATHS:
        return finding
    whose = DERIVATIVES if violation.broken.of_derivative else RESULT
    if violation.kind in FORM:
        return f"form of the {whose}"
    if difference is None:
        return violation.law.name
    if difference.of == "replica":
        return "replicas differ"
    return f"{ROUNDING} of the {whose}" if difference.rounding else VALUES.format(whose)


def source(cause: str, told: Collection[str]) -> str:
    """What of those that were told a cause is, or follows from: of wrong values the derivatives are wrong; else ""."""
    implementation, _, mistake = cause.partition(": ")
    above = f"{implementation}: {VALUES.format(RESULT)}" if mistake == VALUES.format(DERIVATIVES) else ""
    return next((one for one in (cause, above) if one in told), "")


def entry(violation: LawViolation, text: str) -> dict[str, str]:
    """What is kept of a failure until all are known."""
    told = cause(violation)
    return {"headline": violation.headline, "engine": violation.engine, "cause": told, "text": text}


@dataclass
class Told:
    """What was told of a function, so that further laws need not look for it as long, nor find it once more."""

    causes: set[str] = field(default_factory=set)
    in_vain: bool = False
    """Whether a law held on nothing."""
    stuck: str = ""
    """Why nothing more is to be compiled, if so: it would not end."""

    def add(self, violation: LawViolation) -> None:
        """Notes what is told."""
        self.causes.add(cause(violation))
        if violation.kind == "deadlock":
            self.stuck = "devices would wait for one another for ever"
        elif violation.kind == "unfinished":
            self.stuck = f"it did not end on {violation.engine}"

    def before(self, violation: LawViolation) -> bool:
        """Whether the same was told, or what it follows from."""
        return bool(source(cause(violation), self.causes))

    def answers(self, law: Law) -> bool:
        """Whether a law need not be checked any more: a result's values are wrong, by more than rounding."""
        return law.between_engines and any(one.endswith(f": {VALUES.format(RESULT)}") for one in self.causes)


def by_cause(entries: Iterable[Mapping[str, str]]) -> list[list[Mapping[str, str]]]:
    """Failures of one cause with what follows from it, in their order, those of rounding alone last."""
    entries = list(entries)
    causes = {one["cause"] for one in entries}
    above = {own: source(own, causes - {own}) for own in causes}
    groups: dict[str, list[Mapping[str, str]]] = {}
    for one in sorted(entries, key=lambda one: bool(above[one["cause"]])):
        groups.setdefault(above[one["cause"]] or one["cause"], []).append(one)
    return sorted(groups.values(), key=lambda group: f": {ROUNDING} of " in group[0]["cause"])


def told(group: Sequence[Mapping[str, str]]) -> str:
    """The text of the first failure of a cause, and a line for each of the others."""
    return "\n".join([group[0]["text"].rstrip(), *others(group)])


def others(group: Sequence[Mapping[str, str]]) -> list[str]:
    """A line for each failure but the first; those that follow from it come after those that are like it."""
    alike = [one for one in group[1:] if one["cause"] == group[0]["cause"]]
    following = [one for one in group[1:] if one["cause"] != group[0]["cause"]]
    lines = []
    for some, heading in ((alike, "wrong in the same way under {} more"), (following, "and its derivatives under {}")):
        if some:
            lines += ["", f"  {heading.format(len(some))} check{'s' * (len(some) > 1)}:"]
        for one in some:
            script = f": {one['script']}" if "script" in one else ""
            line = one["headline"].partition(": ")[2]
            lines.append(f"    {line if len(line) <= LINE else line[:LINE] + ' ...'} [{one['engine']}]{script}")
    return lines


RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"


def render(violation: LawViolation) -> str:
    """The headline, what the program may have left unsaid, the mesh, what is wrong where, and how to show it again."""
    lines = [violation.headline, "", *unchecked(violation)]
    difference = violation.difference
    if difference is not None:
        if difference.comparable:
            drawing = picture(violation.case.mesh, _wrong_devices(violation.case, difference))
            lines += [*(f"    {line}" for line in drawing), ""]
        lines += [f"  {line}" for line in diagnosed(violation)]
        lines += [f"  {line}" for line in first_wrong(violation)]
    else:
        lines += [f"  {line}" for line in violation.diagnosis or ()]
    lines.append(f"  case: {violation.case}")
    lines += [f"  {line}" for line in violation.stated]
    if violation.data is not None:
        lines.append(f"  data: {violation.data.kind}, seed {violation.data.seed}")
    if violation.engine != "xla":
        lines.append(f"  engine: {violation.engine}")
    if violation.kind in RAISED and violation.origin:
        lines += ["", *violation.origin]
        lines += unstated(violation)
    lanes = in_letters(violation)
    lines += ["", *lanes] if lanes else []
    files = written(violation)
    if files is not None:
        drawn = files.picture.exists()
        lines += [f"    drawn in {files.picture}"] if lanes and drawn else []
        lines += ["", *(f"  {command}" for command in files.commands)]
    return "\n".join(lines)


def unchecked(violation: LawViolation) -> list[str]:
    """What a program must say that takes gradients, where it is wrong with unchecked types."""
    program = violation.implementation.program
    unlike = violation.difference is None or not {*UNCHECKED} & {*violation.case.chain}
    if program is None or program.differentiates or unlike:
        return []
    return [
        "  the types in shard_map are not checked here (check_vma=False), so that JAX has wrong gradients of sums:",
        f"  if {program.name} takes gradients, say differentiates=True, and no such case is drawn",
        "",
    ]


REFUSALS = tuple(f"raises {name}" for name in ("ValueError", "AssertionError", "RuntimeError", "SimulationError"))
"""How a function, or JAX, refuses a case, as JAX does a `ppermute` over axes that are not in mesh order."""


def unstated(violation: LawViolation) -> list[str]:
    """How a program is said not to be meant for a case that it refuses, other than by NotImplementedError."""
    program = violation.implementation.program
    if program is None or not violation.finding.startswith(REFUSALS):
        return []
    names = ", ".join([*program.signature.parts(dict.fromkeys(program.signature.roles, 1)), *program.signature.roles])
    return [
        "",
        f"  if {program.name} is not meant for such a case, say what it needs, and no other is drawn: one_axis, sizes,",
        f"  multiples, optional, powers_of_two, most_devices, dtypes, or serves=, a predicate of any of {names}",
    ]


def report(violation: LawViolation) -> dict[str, str]:
    """Writes the files of a violation; gives its cause, and its text with their commands or why there are none."""
    files, reason = write_if_possible(violation)
    text = render(violation) if files is not None else f"{render(violation)}\n\n  {reason}"
    told = entry(violation, text)
    if files is not None:
        told |= {"script": os.fspath(files.script)} | {"json": os.fspath(files.case)}
    return told


def briefly(violation: LawViolation) -> dict[str, str]:
    """The cause and the headline of a violation, for one whose cause was told before."""
    return entry(violation, "")


def coloured(text: str) -> str:
    """The text with its headline bold and the wrong devices of the picture red, for a terminal that has colour."""
    lines = text.split("\n")
    lines[0] = f"{BOLD}{RED}{lines[0]}{PLAIN}"
    return "\n".join(lines).replace(WRONG, f"{RED}{WRONG}{PLAIN}")


def diagnosed(violation: LawViolation) -> Sequence[str]:
    """What is wrong, in words, if it is not known yet: that takes further runs of the function."""
    if violation.diagnosis is not None:
        return violation.diagnosis
    try:
        return diagnose(violation)
    except Exception as error:  # a failure is reported even where its explanation fails
        first = str(error).partition("\n")[0]
        return [f"other values (the diagnosis raises {type(error).__name__}: {first})"]


def _wrong_devices(case: Case, difference: Difference) -> np.ndarray:
    """Which devices hold what is wrong: of an array that `out_specs` puts together, a part of it."""
    sizes, wrong = case.mesh.sizes, difference.wrong
    if difference.of == "array" and case.out is not None:
        wrong = shard(wrong[(0,) * len(sizes)], case.mesh, case.out[difference.leaf].partition())
    return np.asarray(wrong.reshape(*sizes, -1).any(axis=-1))


def first_wrong(violation: LawViolation) -> list[str]:
    """The first element that differs: its global index, its value, the right one, and who owns it."""
    difference, case = violation.difference, violation.case
    if difference is None or not difference.comparable or not difference.wrong.any():
        return []
    where = tuple(int(i) for i in np.argwhere(difference.wrong)[0])
    lead = len(case.mesh.sizes)
    place, local = where[:lead], where[lead:]
    values = f"is {difference.actual[where]}, expected {difference.expected[where]}"
    if difference.of == "array":  # every device shows the whole array
        return [f"first wrong element: result[{_index(local)}] {values}"]
    device = case.mesh.devices[int(np.ravel_multi_index(place, case.mesh.sizes))]
    owner = f"device {device}, {device_name(case.mesh, place)}"
    if difference.of == "gradient":
        name, index = "gradient", _operand_index(violation, place, local)
    else:
        name, index = difference.what.partition(" ")[0], where
    return [
        f"first wrong element: {name}[{_index(index)}] {values}",
        f"  it is element [{_index(local)}] of the block of {owner}",
    ]


def _index(index: tuple[int, ...]) -> str:
    return ", ".join(map(str, index))


def _operand_index(violation: LawViolation, place: tuple[int, ...], local: tuple[int, ...]) -> tuple[int, ...]:
    """Where an element of a block is in the global array that the operand (and thus its gradient) is."""
    case = violation.case
    index = violation.difference.leaf if violation.difference is not None else 0
    operand, dimensions = case.operands[index], len(case.batch_of(index))
    stacked = tuple(place[case.mesh.axis_names.index(name)] for name in operand.placement.stacked)
    batch, inner = local[:dimensions], local[dimensions:]
    inside = tuple(
        i + n * logical_index(case.mesh, place, axes)
        for i, n, axes in zip(inner, operand.block, operand.placement.spec, strict=True)
    )
    return (*stacked, *batch, *inside)
