"""The part of a script that is specific to values and gradients: data, run, and comparison."""

import numpy as np

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.manual import laid_out
from shardproof.properties.contracts.trees import names_of
from shardproof.properties.laws.gradient import pushed
from shardproof.properties.precision import numbers
from shardproof.properties.precision.expected import Reference
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.scripts import modes
from shardproof.properties.report.scripts.expectations import Gradients, data_of, result_values
from shardproof.properties.report.scripts.large import compared_at, text_of
from shardproof.properties.report.scripts.literals import (
    array_text,
    bound_text,
    comment,
    dtype_text,
    spec_text,
    tuple_text,
)
from shardproof.properties.report.scripts.parts import Script

DIFFERS = '''def differs(name, actual, expected):
    """Prints where two arrays differ, and returns whether they do."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        print(f"{name} is {actual.dtype}{list(actual.shape)}, expected {expected.dtype}{list(expected.shape)}")
        return True
    actual = np.asarray(actual) if actual.size else expected
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    for index in np.argwhere(~same)[:10]:
        at = tuple(index.tolist())
        print(f"{name}{list(at)} is {actual[at]}, expected {expected[at]}")
    return not same.all()'''
SAME = "    same = (actual == expected) | ((actual != actual) & (expected != expected))\n"
WITHIN = (
    SAME
    + """    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        same |= abs(actual.astype(wide) - exact.astype(wide)) <= abs(tolerance)
"""
)
OVERFLOWS = (
    "    same |= (tolerance < 0) & ~np.isfinite(actual.astype(wide))  # negative: some order of the sum overflows\n"
)
ROUNDED = """    with np.errstate(over="ignore"):
        expected = exact.astype(dtype)
"""
EXIT = "sys.exit(1 if wrong else 0)"


def assign(name: str, text: str) -> list[str]:
    """The lines that give a name to an expression."""
    return f"{name} = {text}".split("\n")


def operands(script: Script, arrays: list[np.ndarray], names: list[str] | None = None) -> list[str]:
    """The global arrays of all operands, or of those with `names`, placed on the mesh."""
    case, lines = script.case, []
    data = data_of(case, script.violation.data)
    places = script.moving if names else range(len(case.operands))
    for i, name, array in zip(places, names or script.names, arrays, strict=True):
        spec = spec_text(laid_out(case, i))
        seeds = [one.seed * len(case.operands) + i for one in (data, pushed(case, data))]
        lines += assign(name, text_of(array, seeds))
        lines.append(f"{name} = jax.device_put({name}, NamedSharding(mesh, {spec}))")
    return lines


def differs(*right: Reference) -> list[str]:
    """The function that compares, with the exact results, their dtype and a tolerance where one is needed."""
    text = DIFFERS
    bounds = [reference.bound for reference in right if reference.bound is not None]
    if bounds:
        within = WITHIN + (OVERFLOWS if any((bound < 0).any() for bound in bounds) else "")
        text = DIFFERS.replace("expected):", "exact, dtype, tolerance):", 1).replace(SAME, within)
        head, docstring, body = text.partition('they do."""\n')
        text = head + docstring + ROUNDED + body
    return [*text.split("\n"), "", ""]


def compared(
    names: list[str], right: list[Reference], *, tolerant: bool = False, difference: Difference | None = None
) -> list[str]:
    """Lines that give the right values and add to `wrong`; `names` are expressions of what was computed.

    `tolerant`: the function that compares takes a tolerance although these values need none. `difference`: what is
    known to be wrong; of values that would fill pages only some are compared, those among them.
    """
    lines: list[str] = []
    tolerant |= any(reference.bound is not None for reference in right)
    for i, (name, reference) in enumerate(zip(names, right, strict=True)):
        suffix = "" if len(right) == 1 else str(i)
        label = name.partition("[")[0].removesuffix("s")
        told = ("exact" if reference.bound is not None else "expected") + (f"_{label}" if label != "result" else "")
        told += suffix
        values, bound = _written(reference)
        shown, picked = f"{label}{suffix}", compared_at(values, difference)
        if picked is not None:
            lines.append(f"# {len(picked):,} of the {values.size:,} elements, by their number")
            lines += assign("at", array_text(picked))
            name, shown, values = f"np.ravel({name})[at]", f"{shown}, element number at", values.ravel()[picked]
            bound = None if bound is None else bound.ravel()[picked]
        lines += assign(told, array_text(values))
        more = f", {dtype_text(reference.dtype)}, 0" if tolerant else ""
        if bound is not None:
            lines += assign(f"tolerance{suffix}", bound_text(bound))
            more = f", {dtype_text(reference.dtype)}, tolerance{suffix}"
        lines.append(f'wrong |= differs("{shown}", {name}, {told}{more})')
    return lines


def _written(reference: Reference) -> tuple[np.ndarray, np.ndarray | None]:
    """The right values and how far off results may be, in dtypes that a script can write: long doubles are rounded."""
    exact, bound = reference.exact, reference.bound
    if bound is None:
        return reference.rounded, None
    if exact.dtype not in (np.longdouble, np.clongdouble):
        return exact, bound
    short = exact.astype(np.complex128 if exact.dtype.kind == "c" else np.float64)
    return short, np.copysign(np.abs(bound) + np.abs(exact - short).astype(np.float64), bound)


def _of_one_replica(case: Case, reference: Reference, axes: tuple[str, ...]) -> Reference:
    bound = None if reference.bound is None else _one_replica(case, reference.bound, axes)
    return Reference(_one_replica(case, reference.exact, axes), reference.dtype, bound)


def _one_replica(case: Case, blocks: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
    """Blocks as the global array stacked over `axes`: along the others they are the same."""
    index = tuple(slice(None) if name in axes else 0 for name in case.mesh.axis_names)
    return np.asarray(blocks[index])


def results(script: Script, count: int) -> list[str]:
    """What the script calls its results."""
    return [f"results[{i}]" for i in range(count)] if script.several else ["result"]


def value(script: Script, data: Data) -> list[str]:
    """Every device's block equals the right one."""
    case = script.case
    right = result_values(script.violation.implementation, case, data)
    right = right.in_doubles if script.violation.in_doubles else right
    expected = [_of_one_replica(case, reference, script.lead) for reference in right.right]
    names = results(script, len(expected))
    program = script.shard_map([script.stacked])
    return [
        *script.local([script.lead] * len(expected)),
        *differs(*expected),
        *operands(script, right.operands),
        program,
        f"{names[0].partition('[')[0]} = {script.jitted('program')}({', '.join(script.names)})",
        comment(f"the blocks of all devices: [{', '.join((*script.lead, '*block'))}]"),
        "wrong = False",
        *compared(names, expected, difference=script.violation.difference),
        EXIT,
    ]


def gradient(script: Script, right: Gradients) -> list[str]:
    """Forward mode, reverse mode, or both, whichever is wrong, give the right tangents and gradients."""
    case, broken = script.case, script.violation.broken
    right = right.in_doubles if script.violation.in_doubles else right
    axes = [placement.stacked for placement in right.placements]
    forward = broken.of == "tangent" or broken.kind == "adjoint"
    reverse = not forward or broken.kind == "adjoint"
    names, cts = [script.names[i] for i in script.moving], [f"c{i}" for i in range(len(axes))]
    tangents = [f"d{n}" for n in names]
    everything = (*right.pulled, *right.tangents.right)
    tolerant = any(reference.bound is not None for reference in everything)
    lines = [*script.local(list(axes)), *differs(*everything), *operands(script, right.primal)]
    entries = [tuple((n,) for n in a) for a in axes]
    leaves, own = [(one, len(one)) for one in entries], [script.entry(i) for i in script.moving]
    inside = any(link.derives for link in case.links)
    lines += [*([] if inside else [script.shard_map(entries)]), "wrong = False"]
    if forward:
        lines += operands(script, right.tangents.operands, tangents)
        if inside:
            text = modes.pushed(case.chain, script.of_moving("local"), tuple_text(names), tuple_text(tangents))
            lines += script.derived("pushed", tangents, text, own, leaves)
            lines.append(f"tangent = {script.jitted('pushed')}({', '.join((*script.names, *tangents))})")
        else:
            run = script.jitted(f"lambda xs, ds: {modes.pushed(case.chain, script.of_moving(), 'xs', 'ds')}")
            lines.append(f"tangent = {run}({tuple_text(names)}, {tuple_text(tangents)})")
        expected = [_of_one_replica(case, r, a) for r, a in zip(right.tangents.right, axes, strict=True)]
        found = [f"tangent[{i}]" for i in range(len(axes))] if script.several else ["tangent"]
        lines += compared(found, expected, tolerant=tolerant, difference=script.violation.difference)
    if reverse:
        seed = data_of(case, script.violation.data).seed
        for i, (name, ct, placement) in enumerate(zip(cts, right.cotangents, right.placements, strict=True)):
            lines += assign(name, text_of(ct, [seed + 7919 * (i + 1)]))
            lines.append(f"{name} = jax.device_put({name}, NamedSharding(mesh, {spec_text(placement.partition())}))")
        ct_text = f"[{', '.join(cts)}]" if script.several else cts[0]
        if inside:
            text = modes.pulled(case.chain, script.of_moving("local"), tuple_text(names), ct_text)
            lines += script.derived("pulled", cts, f"list({text})", leaves, own)
            lines.append(f"gradient = {script.jitted('pulled')}({', '.join((*script.names, *cts))})")
        else:
            text = modes.pulled(case.chain, script.of_moving(), "xs", "ct")
            run = script.jitted(f"lambda xs, ct: {text}")
            lines.append(f"gradient = {run}({tuple_text(names)}, {ct_text})")
        found = [f"gradient[{i}]" for i in range(len(names))]
        lines += compared(found, right.pulled, tolerant=tolerant, difference=script.violation.difference)
    return [*lines, EXIT]


def gradient_runs(script: Script, data: Data) -> list[str]:
    """Reverse mode runs: which gradient is right depends on a type that no trace could tell."""
    of = script.of_moving()
    ones = f"jax.tree.map(jax.numpy.ones_like, {f'({of})' if ' ' in of else of}(*xs))"
    run = script.jitted(f"lambda *xs: {modes.pulled(script.case.chain, of, 'xs', ones)}")
    return [*_placed(script, data), _raises(f"{run}({', '.join(script.names[i] for i in script.moving)})")]


def value_runs(script: Script, data: Data) -> list[str]:
    """The function runs: how far off its results may be is not known of one that raises."""
    return [*_placed(script, data), _raises(f"{script.jitted('program')}({', '.join(script.names)})")]


def _placed(script: Script, data: Data) -> list[str]:
    """The lines of the program, and of its operands."""
    count = len(names_of(script.contract.returned(script.case, script.names)))
    return [
        *script.local([script.lead] * count),
        *operands(script, numbers.operands(script.case, data)),
        script.shard_map([script.stacked]),
    ]


def _raises(call: str) -> str:
    return f"print({call})  # raises while the bug is there"
