"""The script of a failure: plain JAX for values and gradients; for other laws a few lines that call shardproof."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import laid_out, stacked_axes
from shardproof.properties.contracts.described import Array
from shardproof.properties.contracts.numbers import is_moved, operands
from shardproof.properties.engines.engine import derived
from shardproof.properties.laws.gradient import at_kinks, cotangents, oracle_derivatives, tangents_of
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.comparison import Reference, size_of
from shardproof.properties.precision.judge import ANY_FINITE, is_a_number, value_references
from shardproof.properties.precision.runs import INTERPRETER
from shardproof.properties.programs.program import compiled, precision_of
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.scripts.source import (
    Source,
    array_text,
    bound_text,
    classes_of,
    docstring,
    dtype_text,
    import_of,
    join,
    options,
    path_lines,
    quote,
    source_of,
    spec_text,
    tree_text,
    tuple_text,
)
from shardproof.properties.runner.named import held_by_a_module, is_built_in, said_of
from shardproof.properties.runner.programs import Program

LARGEST = 1_000
"""The most elements of an array that is written out; larger cases are checked by shardproof."""

LINKS = {
    "inner_jit": "jax.jit({})",
    "checkpoint": "jax.checkpoint({})",
    "vmap": "jax.vmap({})",
    "vmap_named": 'jax.vmap({}, axis_name="batch")',
    "scan": "(lambda *batch: lax.scan(lambda carry, xs: (carry, {}(*xs)), 0, batch)[1])",
    "eager": "{}",
}
"""The transformations that a script writes out, as expressions of what they are around."""

IMPORTS = """import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
"""
CANNOT_RUN = '''

def cannot_run(kind, error, trace):
    """An exception says nothing about the bug."""
    traceback.print_exception(kind, error, trace)
    if isinstance(error, ModuleNotFoundError):
        print(f"to have {error.name} found: PYTHONPATH=FOLDER python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)


sys.excepthook = cannot_run
'''
DIFFERS = '''def differs(name, actual, exact, dtype, axes, tolerance=0):
    """Prints where an array differs from the exact one by more than the tolerance, and returns whether it does.

    Its leading dimensions are these axes of the mesh.
    """
    with np.errstate(over="ignore"):
        expected = exact.astype(dtype)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        print(f"{name} is {actual.dtype}{list(actual.shape)}, expected {expected.dtype}{list(expected.shape)}")
        return True
    actual = np.asarray(actual) if actual.size else expected
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    if np.any(tolerance):
        wide = np.complex128 if actual.dtype.kind == "c" else np.float64
        with np.errstate(invalid="ignore"):
            same |= abs(actual.astype(wide) - exact.astype(wide)) <= abs(tolerance)
        same |= np.isinf(tolerance) & np.isnan(exact)  # nothing is known, as beside a kink
        same |= (tolerance < 0) & ~np.isfinite(actual.astype(wide))  # negative: some order of the sum overflows
    for index in np.argwhere(~same)[:10]:
        at = tuple(index.tolist())
        where = ", ".join(f"{axis}={i}" for axis, i in zip(axes, at))
        place = f" on ({where})" if axes else ""
        print(f"{name}{list(at[len(axes):]) or ''}{place} is {actual[at]}, expected {expected[at]}")
    return not same.all()


'''
NEEDS = (
    "Needs JAX, NumPy and the implementation. Exits with 1 while the bug shows, with 0 once it is fixed, and with 2 if "
    "it cannot be run."
)
SIMULATED = "Found by interpreting the traced program in NumPy: a compiler that rewrites it may make the bug disappear."


def can_stand_alone(violation: LawViolation) -> bool:
    """True if a script needs no shardproof: wrong values of a small case under simple transformations."""
    case, contract = violation.case, violation.case.contract
    shown = violation.law.stands_alone and (violation.difference is not None or violation.kind == "adjoint")
    simple = set(case.chain) <= set(LINKS) and not case.manual and contract.call.kept is None and case.out is None
    sizes = [math.prod(case.global_shape(i)) for i in range(len(case.operands))]
    if violation.difference is not None:
        sizes.append(violation.difference.expected.size)
    dtypes = contract.oracle.result_dtypes(case, [o.numpy_dtype for o in case.operands]) if shown else []
    derivable = not violation.broken.of_derivative or all(map(is_float, dtypes))
    # double precision shows what a function's own casts to fewer bits hide: those are left out by the interpreter alone
    return shown and simple and derivable and not violation.in_doubles and max(sizes) <= LARGEST


class Script:
    """The parts of a script."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation, self.case = violation, violation.case
        self.contract = self.case.contract
        self.names = [f"x{i}" for i in range(len(self.case.operands))]
        self.several = self.case.tree or self.contract.call.results is not None
        self.data = violation.data or self.case.data[0]
        self.jit = "jax.jit" if compiled(self.case) else ""

    def text(self) -> str:
        """The whole script."""
        given = classes_of(self.contract.call.arguments(self.case, self.names))
        source = join("implementation", [given, source_of(self.violation.implementation.function)])
        simulated = [SIMULATED] if self.violation.engine == "simulate" else []
        mesh = self.case.mesh
        names = tuple_text([quote(name) for name in mesh.axis_names])
        types = tuple_text([f"AxisType.{kind.title()}" for kind in mesh.axis_types])
        chosen = f"[{', '.join(map(str, mesh.devices))}]" if mesh.permuted else f":{mesh.size}"
        devices = f"np.array(jax.devices())[{chosen}].reshape({mesh.sizes})"
        lines = [
            *_head(self.violation, NEEDS, *simulated),
            *IMPORTS.split("\n"),
            *options(mesh.devices, in_doubles=self.case.is_wide), "",
            *path_lines(source.lines), *_load_lines(source), "",
            f"mesh = Mesh({devices}, {names}, axis_types={types})", "", "",
            *self._call(), DIFFERS,
            *(self._gradient() if self.violation.broken.of_derivative else self._value()),
            "sys.exit(1 if wrong else 0)",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _call(self) -> list[str]:
        """The call of the function, on one device's blocks or on global arrays."""
        whole = self.violation.implementation.whole
        given = [tree_text(argument) for argument in self.contract.call.arguments(self.case, self.names)]
        by_place, by_keyword = self.contract.call.axis(self.case)
        given += [*map(repr, by_place), *(f"{name}={value!r}" for name, value in by_keyword.items())]
        given += [*(["mesh=mesh"] if whole else []), *(f"{name}={value!r}" for name, value in self.case.params)]
        call = f"implementation({', '.join(given)})"
        result = f"jax.tree.leaves({call})" if self.several else call
        return [f"def call({', '.join(self.names)}):", f"    return {result}", "", ""]

    def _program(self, axes: list[tuple[str, ...]]) -> list[str]:
        """The function on the mesh, whose results are stacked over `axes`."""
        case, names = self.case, ", ".join(self.names)
        expression = "call"
        for name in reversed(case.chain):
            expression = LINKS[name].format(expression)
        whole = self.violation.implementation.whole
        blocks = [
            f"{name}.reshape({tuple_text([str(n) for n in (*case.batch_of(i), *operand.block)])})"
            if operand.placement.stacked
            else name
            for i, (name, operand) in enumerate(zip(self.names, case.operands, strict=True))
        ]
        leads = ["[" + ", ".join(["None"] * len(a)) + "]" if a else "" for a in axes]
        results = f"[{', '.join(f'y[{i}]{lead}' for i, lead in enumerate(leads))}]" if self.several else f"y{leads[0]}"
        local = [f"    y = {expression}({', '.join(blocks)})"] if not whole else []
        outs = [spec_text(tuple((name,) for name in a)) for a in axes]
        out = f"[{', '.join(outs)}]" if self.several else outs[0]
        checked = "" if self.violation.implementation.check_vma else ", check_vma=False"
        placed = self.contract.call.placed
        if whole and placed is not None:
            ins = "[" + ", ".join(spec_text(p.partition(case.batch)) for p in placed(case)) + "]"
            ins = f"({ins},)" if self.several else ins[1:-1]
        else:
            ins = tuple_text([spec_text(case.partition(i)) for i in range(len(self.names))])
        mapped = f"jax.shard_map(local, mesh=mesh, in_specs={ins}, out_specs={out}{checked})"
        lines = [
            f"def local({'y' if whole else names}):",
            '    """Runs on every device; leading dimensions stack the results of all devices."""',
            *local,
            f"    return {results}",
            "", "",
        ]  # fmt: skip
        call = [f"def program({names}):", f"    return {mapped}({expression}({names}))", "", ""]
        return [*lines, *(call if whole else [f"program = {mapped}"])]

    def _put(self, names: list[str], arrays: list[np.ndarray], specs: list[Entries]) -> list[str]:
        """The lines that put arrays on the mesh."""
        lines = []
        for name, array, spec in zip(names, arrays, specs, strict=True):
            sharding = f"NamedSharding(mesh, {spec_text(spec)})"
            lines += [f"{name} = {array_text(array)}", f"{name} = jax.device_put({name}, {sharding})"]
        return lines

    def _compare(self, name: str, right: list[Reference], axes: list[tuple[str, ...]]) -> list[str]:
        """The lines that compare arrays, stacked over `axes`: along others results are the same."""
        lines, gradients = [], name == "gradient"
        for i, reference in enumerate(right):
            found = f"{name}[{i}]" if self.several or gradients else name
            exact, bound = _round_for_script(reference)
            if not gradients:
                at = tuple(slice(None) if axis in axes[i] else 0 for axis in self.case.mesh.axis_names)
                exact, bound = exact[at], None if bound is None else bound[at]
            least = self._least(reference)
            if least:
                bound = np.asarray(0.0 if bound is None else bound)
                bound = np.copysign(np.maximum(np.abs(bound), least), bound)
                bound = bound if np.any(bound != least) else np.asarray(least)
            given = [quote(f"{name}{i}" if len(right) > 1 else name), found, f"exact_{name}{i}"]
            given += [dtype_text(reference.dtype), tuple_text([*map(quote, axes[i])])]
            given += [bound_text(np.asarray(bound))] if bound is not None and np.any(bound) else []
            lines.append(f"exact_{name}{i} = {array_text(np.asarray(exact))}")
            lines.append(f"wrong |= differs({', '.join(given)})")
        return lines

    def _least(self, reference: Reference) -> float:
        """The least that a result may be off by, as a function without the mistake may round where this one does not.

        It is halfway, in digits, from a rounding of the largest number to the mistake, but at most half of the mistake
        and a quarter of that number; 0 if the mistake is itself one of rounding, or nothing is computed.
        """
        case, difference = self.case, self.violation.difference
        if difference is None or difference.rounding:
            return 0.0
        if not self.violation.broken.of_derivative and is_moved(case.structure):
            return 0.0
        apart, largest = _distance(difference)
        dtypes = [reference.dtype, *(o.numpy_dtype for o in case.operands), *self.contract.oracle.casts]
        rounding = max(map(unit_roundoff, dtypes)) if is_float(reference.dtype) else 0.0
        size = float(size_of(reference.exact).max(initial=0)) or largest
        return min((rounding * apart) ** 0.5, apart / 2, 1 / 4) * size

    def _value(self) -> list[str]:
        """The lines that compare every device's block with the right one."""
        arrays = operands(self.case, self.data)
        right = next(value_references(self.violation.implementation, self.case, [arrays]))
        lead = stacked_axes(self.case)
        axes = [lead] * len(jax.tree.leaves(self.contract.call.returned(self.case, self.names)))
        specs = [laid_out(self.case, i) for i in range(len(self.names))]
        return [
            *self._program(axes),
            *self._put(self.names, arrays, specs),
            f"result = {self.jit}(program)({', '.join(self.names)})",
            f"# the blocks of all devices: [{', '.join((*lead, '*block'))}]",
            "wrong = False",
            *self._compare("result", right, axes),
        ]

    def _gradient(self) -> list[str]:
        """The lines that compare tangents and gradients, in whichever mode is wrong."""
        broken, case, moving = self.violation.broken, self.case, self.contract.call.moving(self.case)
        implementation = self.violation.implementation
        kind, made = derived(implementation, case, INTERPRETER)
        primal, tangent = operands(case, self.data), tangents_of(case, self.data)
        cotangent = cotangents(case, made, self.data)
        given = [(primal, tangent, cotangent)]
        pushed, pulled = next(oracle_derivatives(kind, implementation, case, made.placements, given))
        if at_kinks(case, self.data):
            pushed, pulled = list(map(is_a_number, pushed)), list(map(is_a_number, pulled))
        axes = [placement.stacked for placement in made.placements]
        names, specs = [self.names[i] for i in moving], [laid_out(case, i) for i in range(len(self.names))]
        of = f"lambda {', '.join(names)}: program({', '.join(self.names)})"
        lines = [*self._program(axes), *self._put(self.names, primal, specs), "wrong = False"]
        if broken.of == "tangent" or broken.kind == "adjoint":
            tangents = [f"d{name}" for name in names]
            lines += self._put(tangents, tangent, [specs[i] for i in moving])
            call = f"lambda xs, ds: jax.jvp({of}, xs, ds)[1]"
            lines.append(f"tangent = {self.jit}({call})({tuple_text(names)}, {tuple_text(tangents)})")
            lines += self._compare("tangent", pushed, axes)
        if broken.of != "tangent" or broken.kind == "adjoint":
            cts = [f"ct{i}" for i in range(len(axes))]
            lines += self._put(cts, cotangent, [placed.partition() for placed in made.placements])
            run = f"{self.jit}(lambda xs, ct: jax.vjp({of}, *xs)[1](ct))"
            ct = f"[{', '.join(cts)}]" if self.several else cts[0]
            lines.append(f"gradient = {run}({tuple_text(names)}, {ct})")
            lines += self._compare("gradient", pulled, [case.operands[i].placement.stacked for i in moving])
        return lines


def _distance(difference: Difference) -> tuple[float, float]:
    """The largest error of what is wrong, relative to the largest right number, and that number."""
    largest = off = float(size_of(difference.expected).max(initial=0))
    if difference.comparable and is_float(difference.expected.dtype):
        actual, expected = (x.astype(wide(x.dtype)) for x in (difference.actual, difference.expected))
        with np.errstate(invalid="ignore", over="ignore"):
            found = float(np.max(np.abs(actual - expected), where=difference.wrong, initial=0))
        off = found if np.isfinite(found) else largest
    size = largest or off
    return (off / size if size else 0.0), size


def _head(violation: LawViolation, *needs: str) -> list[str]:
    """The docstring of a script, and an empty line."""
    return [*docstring([violation.headline, "", f"case: {violation.case}", *violation.stated, "", *needs]), ""]


def _load_lines(source: Source) -> list[str]:
    """The lines that import or define a function; the script exits with 2 if it lacks something."""
    lacks = f"this script lacks {', '.join(source.missing)}"
    stop = [f"print({quote(lacks)})", "sys.exit(2)"] if source.missing else []
    return [*CANNOT_RUN.split("\n"), *source.lines, *stop]


def _round_for_script(reference: Reference) -> tuple[np.ndarray, np.ndarray | None]:
    """The right values and their bound, in dtypes that a script can write: long doubles are rounded."""
    bound, exact = reference.bound, reference.centre
    if bound is None:
        return reference.rounded, None
    bound = np.where(reference.undecided, np.copysign(np.maximum(np.abs(bound), ANY_FINITE), bound), bound)
    if exact.dtype not in (np.longdouble, np.clongdouble):
        return exact, bound
    short = exact.astype(np.complex128 if exact.dtype.kind == "c" else np.float64)
    return short, np.copysign(np.abs(bound) + np.abs(exact - short).astype(np.float64), bound)


NEEDS_SHARDPROOF = (
    "Needs shardproof, the implementation, and the file of the failure beside this one. Exits with 1 while the bug "
    "shows, with 0 once it is fixed, and with 2 if it cannot be run."
)
IMPORTS_OF_CALLS = """import sys
import traceback
from pathlib import Path

import jax
"""
ALSO = "from shardproof.properties.report.failures.replay import recheck"


def script(violation: LawViolation) -> str:
    """The source of the script that shows a violation again."""
    with precision_of(violation.case):
        return Script(violation).text() if can_stand_alone(violation) else _calling_shardproof(violation)


def _calling_shardproof(violation: LawViolation) -> str:
    """The script that has shardproof check the recorded case."""
    implementation, source, said = violation.implementation, Source("", []), ""
    if implementation.program is not None:
        source = _program(implementation.program)
    elif not is_built_in(implementation):
        source = source_of(implementation.function)
        said = "".join(f", {name}={value!r}" for name, value in said_of(implementation).items())
    given = f", {source.name}{said}" if source.name else ""
    source = join("", [Source("", [ALSO]), source])
    lines = [
        *_head(violation, NEEDS_SHARDPROOF),
        *IMPORTS_OF_CALLS.split("\n"), *path_lines(source.lines), *_load_lines(source), "",
        'if __name__ == "__main__":',
        *(f"    {line}" for line in options(violation.case.mesh.devices, in_doubles=False)),
        f'    sys.exit(recheck(Path(__file__).with_suffix(".json"){given}))',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _program(program: Program) -> Source:
    """The import of a program, or the program written out with its functions."""
    name = held_by_a_module(program)
    if name is not None:
        return import_of(name, "PROGRAM")
    sources, given = [Source("", ["from shardproof import Array, Program"])], []
    for one in dataclasses.fields(program):
        value = getattr(program, one.name)
        if one.name == "_" or (one.default is not dataclasses.MISSING and value == one.default):
            continue
        if callable(value):
            sources.append(source_of(value, one.name))
            text = sources[-1].name
        elif one.name in ("arguments", "results"):
            sources.append(classes_of(value))
            text = tree_text(jax.tree.map(_text, value))
        else:
            text = _text(value)
        given.append(text if one.name in ("function", "reference") else f"{one.name}={text}")
    return join("PROGRAM", [*sources, Source("", [f"PROGRAM = Program({', '.join(given)})"])])


def _text(value: Any) -> str:
    """A field of a program, as an expression."""
    if isinstance(value, dict | list | tuple):
        return tree_text(jax.tree.map(_text, value))
    if isinstance(value, Array):
        fields = {"upto" if value.last else "below": value.below, "also": value.also, "only": dict(value.only)}
        given = [repr(" ".join("@".join([d.name, *d.roles]) for d in value.dimensions)), repr(value.dtype)]
        given += [f"{name}={stated!r}" for name, stated in fields.items() if stated]
        given += [f"least={value.least!r}"] if value.least is not None else []
        return f"Array({', '.join([*given, *(['gradient=False'] if value.floating and not value.gradient else [])])})"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, frozenset | set | range):
        return _text(tuple(value))
    raise ValueError(f"{value!r} of a Program cannot be written into a script: give the Program a name in a module")
