"""What all scripts of failures have in common: imports, devices, mesh, the function, and how it is put on the mesh."""

import re
from collections.abc import Sequence
from pathlib import Path

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.layout import Entries
from shardproof.properties.cases.manual import along, levels, outside, spread_axis, stacked_axes, without_outside
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.precision import is_wide
from shardproof.properties.programs.program import as_text, compiled
from shardproof.properties.programs.violation import DEATHS
from shardproof.properties.report.scripts.children import CHILD, OPEN
from shardproof.properties.report.scripts.literals import docstring, quoted, spec_text, tree_text, tuple_text
from shardproof.properties.report.scripts.options import options
from shardproof.properties.report.scripts.source import Source, source_of
from shardproof.properties.report.scripts.transformations import LISTS, called, definitions
from shardproof.properties.runner.violation import LawViolation

Leaf = tuple[Entries, int]
"""How an array enters or leaves `shard_map`: its layout, and after how many dimensions those of a batch come."""

NEEDS = "Needs JAX, NumPy and the implementation. Exits with 1 while the bug is there, with 0 once it is fixed."
SIMULATED = [
    "Found by interpreting the traced program in NumPy: a compiler that rewrites it may make the bug disappear."
]


class Script:
    """The parts of a script, put together by `whole`."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation = violation
        self.case = violation.case
        self.contract = CONTRACTS[self.case.contract]
        self.of_whole = violation.implementation.whole
        self.names = [re.sub(r"\W+", "_", name).strip("_") for name in self.contract.names(self.case)]
        if self.case.tree:
            self.names = [f"x{i}" for i in range(len(self.case.operands))]
        self.lead = stacked_axes(self.case)
        self.source: Source = source_of(violation.implementation)

    @property
    def moving(self) -> tuple[int, ...]:
        """The places of the operands that have a gradient."""
        return CONTRACTS[self.case.contract].moving(self.case)

    def of_moving(self, function: str = "program") -> str:
        """The program as a function of the operands that have a gradient."""
        if len(self.moving) == len(self.names):
            return function
        return f"lambda {', '.join(self.names[i] for i in self.moving)}: {function}({', '.join(self.names)})"

    @property
    def several(self) -> bool:
        """Whether the results are a list."""
        return self._tree or any(name in LISTS for name in self.case.chain)

    @property
    def _tree(self) -> bool:
        """Whether the function returns a tree of arrays."""
        return self.case.tree or self.contract.results is not None

    @property
    def child(self) -> bool:
        """Whether a process that runs the case does not survive it; compiled, a deadlock ends one as well."""
        return self.violation.kind in (*DEATHS, "deadlock")

    @property
    def open(self) -> list[str]:
        """What decides both ways what JAX leaves open, if the bug is that a result depends on it."""
        return OPEN.get(self.violation.kind, [])

    def whole(self, body: list[str]) -> str:
        """The text of the script, given what is specific to the law: the data, the run, and the comparison."""
        lines = [*self.head(body), *(CHILD if self.child else []), *self.functions(), *body]
        return "\n".join(lines) + "\n"

    def head(self, body: list[str]) -> list[str]:
        """The docstring, the imports, the devices and the mesh."""
        case, mesh = self.case, self.case.mesh
        text = "\n".join([*body, *self.functions()])
        packed = "base64." in text
        child = self.child
        counted = "partial_eval." in text
        imports = [*(["import base64"] if packed else []), *(["import os"] if child else [])]
        imports += ["import resource"] if child else []
        imports += ["import subprocess"] if child or self.open else []
        library = [*(["import itertools"] if "itertools." in text else []), *(["import math"] if counted else [])]
        imports = [*imports[:packed], *library, *imports[packed:]]
        imports += ["import sys", *(["import zlib"] if packed else [])]
        if counted:
            imports += ["from collections import Counter", "from fractions import Fraction", "from typing import Any"]
        devices = options(mesh.devices, in_doubles=is_wide(case) or self.violation.in_doubles)
        simulated = SIMULATED if self.violation.engine == "simulate" and not self.open else []
        imported = [n + "  # noqa: E402" * n.startswith(("from ", "import ")) for n in self.source.lines]
        names = tuple_text([quoted(name) for name in mesh.axis_names])
        types = tuple_text([f"AxisType.{kind.title()}" for kind in mesh.axis_types])
        chosen = f"[{', '.join(map(str, mesh.devices))}]" if mesh.permuted else f":{mesh.size}"
        return [
            *docstring([self.violation.headline, "", f"case: {case}", "", NEEDS, *simulated]),
            "", *imports, "", "import jax",
            *(["import jax.numpy as jnp"] if "jnp." in text or self.open else []),
            "import numpy as np",
            *(["from jax.interpreters import partial_eval"] if counted else []),
            *(["from jax import lax"] if "lax." in text else []),
            "from jax.sharding import AxisType, Mesh, NamedSharding",
            "from jax.sharding import PartitionSpec as P",
            "", *devices, *self.open, *self.where(), *imported, "",
            f"devices = np.array(jax.devices())[{chosen}].reshape({mesh.sizes})",
            f"mesh = Mesh(devices, {names}, axis_types={types})",
            "", "",
        ]  # fmt: skip

    def where(self) -> list[str]:
        """Puts the implementation's folders on the path, if it is not installed, and where its project was run from."""
        folders, here = [Path(one) for one in self.source.folders if "site-packages" not in Path(one).parts], Path.cwd()
        lines = [f"sys.path.insert(0, {quoted(folder.as_posix())})" for folder in folders]
        below = any(here in folder.parents for folder in folders)
        return [*lines, *([f"sys.path.append({quoted(here.as_posix())})"] if below else [])]

    def functions(self) -> list[str]:
        """The call on one device, and the transformation around it."""
        case = self.case
        names = ", ".join(self.names)
        given = ", ".join(tree_text(argument) for argument in self.contract.arguments(case, self.names))
        keywords = "".join(f", {name}={value!r}" for name, value in case.params)
        by_place, by_keyword = CONTRACTS[case.contract].axis(case, whole=self.of_whole)
        axis = [*map(repr, by_place), *(f"{name}={value!r}" for name, value in by_keyword.items())]
        mesh = ["mesh=mesh"] if self.of_whole else []
        call = f"{self.source.name}({', '.join([given, *axis, *mesh])}{keywords})"
        told = (
            "Global arrays in, global arrays out."
            if self.of_whole
            else "One device's part: its block in, its block out."
        )
        return [
            f"def call({names}):",
            f'    """{told}"""',
            *self._kept(f"jax.tree.leaves({call})" if self._tree else call),
            "", "", *definitions(case.chain),
        ]  # fmt: skip

    def _kept(self, call: str) -> list[str]:
        """The end of the call: what it returns, or what of that some participants alone have."""
        if self.contract.kept is None:
            return [f"    return {call}"]
        count = len(self.contract.kept(self.case))
        leaves = [as_text(self.case, i, f"y[{i}]" if self._tree else "y") for i in range(count)]
        returned = f"[{', '.join(leaves)}]" if self._tree else leaves[0]
        return [f"    y = {call}", f"    return {returned}"]

    def local(self, axes: list[tuple[str, ...]], *, spy: bool = False) -> list[str]:
        """The function that `shard_map` runs on every device, with a leading dimension for each of `axes`.

        Around a function of global arrays, what every device holds of its results.
        """
        if self.of_whole:
            taken = [f"def local({'*y' if self.several else 'y'}):", '    """A device\'s blocks of the results."""']
            return [*taken, *self._left(axes, spy=spy)]
        blocks, inner = [], without_outside(self.case)
        for i, (name, operand) in enumerate(zip(self.names, self.case.operands, strict=True)):
            if operand.placement.stacked:
                sides = (*inner.batch_of(i), *operand.block)
                name = f"{name}.reshape({tuple_text([str(n) for n in sides])})"
            blocks.append(name)
        lines = [
            f"def local({', '.join(self.names)}):",
            '    """What every device runs; leading dimensions stack the results of all devices."""',
            f"    y = {called(self.case)}({', '.join(blocks)})",
        ]
        return [*lines, *self._left(axes, spy=spy)]

    def _left(self, axes: list[tuple[str, ...]], *, spy: bool) -> list[str]:
        """The end of that function: what it returns."""
        lines = []
        if spy:
            lines.append(
                "    varying.extend(set(jax.typeof(leaf).manual_axis_type.varying) for leaf in jax.tree.leaves(y))"
            )
        if self._constants:
            lines += [
                "    # what is no float is a constant",
                "    y = [leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(jnp.float32) for leaf in y]",
            ]
        indices = ["[" + ", ".join(["None"] * len(a)) + "]" if a else "" for a in axes]
        if not self.several:
            return [*lines, f"    return y{indices[0]}", "", ""]
        if len(set(indices)) == 1:
            return [*lines, f"    return [leaf{indices[0]} for leaf in y]" if indices[0] else "    return y", "", ""]
        return [*lines, f"    return [{', '.join(f'y[{i}]{index}' for i, index in enumerate(indices))}]", "", ""]

    @property
    def _constants(self) -> bool:
        """Whether it differentiates a function of which some results have no derivative."""
        dtypes = self.contract.result_dtypes(self.case, [o.numpy_dtype for o in self.case.operands])
        return self.violation.broken.of_derivative and not all(is_float(dtype) for dtype in dtypes)

    @property
    def stacked(self) -> Entries:
        """The layout of results of which all blocks are visible."""
        return tuple((name,) for name in self.lead)

    def entry(self, index: int) -> Leaf:
        """How operand `index` enters `shard_map`, or its gradient leaves."""
        return without_outside(self.case).partition(index), len(self.case.operands[index].placement.stacked)

    def shard_map(self, out: Sequence[Entries]) -> str:
        """The lines that put `local` on the mesh, as `program`."""
        if self.of_whole:
            placed = CONTRACTS[self.case.contract].placed
            assert placed is not None
            layouts = tuple_text([spec_text(p.partition(self.case.batch)) for p in placed(self.case)])
            return "\n".join([
                f"def program({', '.join(self.names)}):",
                f"    y = {called(self.case)}({', '.join(self.names)})",
                f"    blocks = jax.shard_map(local, mesh=mesh, in_specs={layouts}, out_specs={self._specs(out)})",
                f"    return blocks({'*y' if self.several else 'y'})",
                "", "",
            ])  # fmt: skip
        leaves = [(one, len(one)) for one in out]
        if any(link.derives for link in self.case.links):
            primal = ", ".join(self.names[i] for i in self.moving)
            return "\n".join(
                self.derived("program", [], f"jax.vjp({self.of_moving('local')}, {primal})[0]", [], leaves)
            )
        entries = [self.entry(i) for i in range(len(self.names))]
        return self._on_mesh("program", "local", entries, leaves)

    def derived(self, name: str, more: list[str], text: str, entries: Sequence[Leaf], out: Sequence[Leaf]) -> list[str]:
        """The lines that put a derivative of `local` on the mesh, which takes arrays `more` besides the operands.

        Arguments:
            name: what it is called.
            more: the names of these arrays.
            text: the derivative.
            entries: how they enter.
            out: how what it gives leaves.
        """
        own = [self.entry(i) for i in range(len(self.names))]
        return [
            f"def {name}_inside({', '.join((*self.names, *more))}):",
            '    """Differentiates what every device runs."""',
            f"    return {text}",
            "", "",
            self._on_mesh(name, f"{name}_inside", [*own, *entries], out),
        ]  # fmt: skip

    def _specs(self, out: Sequence[Entries]) -> str:
        """The `out_specs`: one for all results where they are alike."""
        texts = [spec_text(one) for one in out]
        return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"

    def _on_mesh(self, name: str, function: str, entries: Sequence[Leaf], leaves: Sequence[Leaf]) -> str:
        inside = ""
        outer, *inner = levels(self.case)
        for axes in inner:
            rest = self._mapped(function, axes, entries, leaves, "")
            function = f"{name}_of_the_rest"
            inside = "\n".join([
                f"def {function}(*blocks):",
                '    """Makes the other axes manual as well."""',
                f"    return {rest}(*blocks)",
                "", "", "",
            ])  # fmt: skip
        call = self._mapped(function, outer, entries, leaves, "mesh=mesh, ")
        if outside(self.case):
            leads = [lead for _, lead in leaves]
            out = str(leads[0] if len(set(leads)) == 1 else leads)
            over = f", spmd_axis_name={spread_axis(self.case)!r}" if spread_axis(self.case) else ""
            call = f"jax.vmap({call}, in_axes={tuple(lead for _, lead in entries)}, out_axes={out}{over})"
        line = f"{name} = {call}"
        return inside + (line if len(line) <= 120 else line.replace(", out_specs", ",\n    out_specs").replace(
            f"{function}, ", f"\n    {function}, "
        ))  # fmt: skip

    def _mapped(
        self, function: str, axes: tuple[str, ...], entries: Sequence[Leaf], leaves: Sequence[Leaf], mesh: str
    ) -> str:
        """The `shard_map` of a function that makes some axes manual, all if none are named."""
        named = axes or self.case.mesh.axis_names
        ins = tuple_text([spec_text(along(one, named)) for one, _ in entries])
        options = [f"{mesh}in_specs={ins}, out_specs={self._specs([along(one, named) for one, _ in leaves])}"]
        checked = [self.violation.implementation.check_vma, *(link.checked for link in self.case.links)]
        options += [] if all(checked) else ["check_vma=False"]
        options += [f"axis_names={set(axes)!r}"] if axes else []
        return f"jax.shard_map({function}, {', '.join(options)})"

    def jitted(self, function: str) -> str:
        """The function under `jit`, unless the case is about running without it."""
        return f"jax.jit({function})" if compiled(self.case) else function
