"""What all scripts of failures have in common: imports, devices, mesh, the function, and how it is put on the mesh."""

import re
from pathlib import Path

import jax

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws.violation import DEATHS
from shardproof.properties.programs.precision import is_wide
from shardproof.properties.programs.program import manual_axes
from shardproof.properties.programs.transformations import TRANSFORMATIONS
from shardproof.properties.reports.scripts.literals import docstring, quoted, spec_text, tree_text, tuple_text
from shardproof.properties.reports.scripts.source import Source, source_of
from shardproof.properties.reports.scripts.surroundings import LISTS, called, definitions
from shardproof.properties.runner.stuck import GAVE_UP, patience
from shardproof.properties.runner.violation import LawViolation

NEEDS = "Needs JAX, NumPy and the implementation. Exits with 1 while the bug is there, with 0 once it is fixed."
SIMULATED = [
    "Found by interpreting the traced program in NumPy: a compiler that rewrites it may make the bug disappear.",
]
WAIT = (3, 6)
"""Seconds after which XLA:CPU warns of a collective that some devices never reach, and then gives up."""
CHILD = [
    "if len(sys.argv) == 1:  # what follows may abort, hang or eat memory: a child runs it, and has half a minute",
    "    flags = (",
    *(f'        " {flag}"' for flag in patience(WAIT).split()),
    "    )",
    '    environment = {**os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + flags}',
    '    command = [sys.executable, __file__, "child"]',
    "    try:",
    "        child = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=30, check=False)",
    "    except subprocess.TimeoutExpired:",
    '        print("does not finish within 30 s")',
    "        sys.exit(1)",
    f'    if b"{GAVE_UP.decode()}" in child.stderr:',
    f'        print("does not finish: devices wait for one another, and XLA gave up after {sum(WAIT)} s")',
    "    elif child.returncode:",
    '        sys.stderr.write(child.stderr.decode(errors="replace")[-2000:])',
    '        print(f"exit code: {child.returncode}")',
    "    sys.exit(1 if child.returncode else 0)",
    "resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30, 8 * 2**30))",
    "", "",
]  # fmt: skip
MEMORY = [
    "if len(sys.argv) == 1:  # memory that was never written may hold anything: a child for each of two contents",
    '    children = [subprocess.run([sys.executable, __file__, held], check=False) for held in ("lowest", "highest")]',
    "    sys.exit(1 if any(child.returncode for child in children) else 0)",
    "", "",
    "def empty(shape, dtype=np.float32, **_):",
    '    """Memory that nothing was written to."""',
    "    if dtype == bool:",
    '        return jnp.full(shape, sys.argv[1] == "highest")',
    "    info = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype)",
    '    return jnp.full(shape, info.max if sys.argv[1] == "highest" else info.min, dtype)',
    "", "",
    "jax.lax.empty = jnp.empty = empty",
]  # fmt: skip


class Script:
    """The parts of a script, put together by `whole`."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation = violation
        self.case = violation.case
        self.transformation = TRANSFORMATIONS[self.case.around]
        self.contract = CONTRACTS[self.case.contract]
        self.of_whole = violation.implementation.whole
        self.names = [re.sub(r"\W+", "_", name).strip("_") for name in self.contract.operands]
        if self.case.tree:
            self.names = [f"x{i}" for i in range(len(self.case.operands))]
        self.lead = manual_axes(self.case)
        self.source: Source = source_of(violation.implementation)

    @property
    def moving(self) -> tuple[int, ...]:
        """The places of the operands that have a gradient."""
        return CONTRACTS[self.case.contract].moving(self.case)

    def of_moving(self) -> str:
        """The program as a function of the operands that have a gradient."""
        if len(self.moving) == len(self.names):
            return "program"
        return f"lambda {', '.join(self.names[i] for i in self.moving)}: program({', '.join(self.names)})"

    @property
    def several(self) -> bool:
        """Whether the results are a list."""
        return self._tree or self.case.around in LISTS

    @property
    def _tree(self) -> bool:
        """Whether the function returns a tree of arrays."""
        return self.case.tree or self.contract.results is not None

    @property
    def child(self) -> bool:
        """Whether a process that runs the case does not survive it; compiled, a deadlock ends one as well."""
        return self.violation.kind in (*DEATHS, "deadlock")

    @property
    def unwritten(self) -> bool:
        """Whether the bug is that the program reads memory that it never wrote."""
        return self.violation.kind == "unwritten"

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
        imports += ["import subprocess"] if child or self.unwritten else []
        imports = [*imports[:packed], *(["import math"] if counted else []), *imports[packed:]]
        imports += ["import sys", *(["import zlib"] if packed else [])]
        if counted:
            imports += ["from collections import Counter", "from fractions import Fraction", "from typing import Any"]
        platform = getattr(jax.config, "jax_platforms", None) or "cpu"
        devices = ['jax.config.update("jax_platforms", "cpu")'] if platform == "cpu" else []
        if platform == "cpu":
            devices.append(f'jax.config.update("jax_num_cpu_devices", {max(mesh.devices) + 1})')
        if is_wide(case) or self.violation.in_doubles:
            devices.append('jax.config.update("jax_enable_x64", True)')
        simulated = SIMULATED if self.violation.engine == "simulate" and not self.unwritten else []
        imported = [n + "  # noqa: E402" * n.startswith(("from ", "import ")) for n in self.source.lines]
        names = tuple_text([quoted(name) for name in mesh.axis_names])
        types = tuple_text([f"AxisType.{kind.title()}" for kind in mesh.axis_types])
        chosen = f"[{', '.join(map(str, mesh.devices))}]" if mesh.permuted else f":{mesh.size}"
        return [
            *docstring([self.violation.headline, "", f"case: {case}", "", NEEDS, *simulated]),
            "", *imports, "", "import jax",
            *(["import jax.numpy as jnp"] if "jnp." in text or self.unwritten else []),
            "import numpy as np",
            *(["from jax.interpreters import partial_eval"] if counted else []),
            *(["from jax import lax"] if "lax." in text else []),
            "from jax.sharding import AxisType, Mesh, NamedSharding",
            "from jax.sharding import PartitionSpec as P",
            "", *devices, *(MEMORY if self.unwritten else []), *self.where(), *imported, "",
            f"devices = np.array(jax.devices())[{chosen}].reshape({mesh.sizes})",
            f"mesh = Mesh(devices, {names}, axis_types={types})",
            "", "",
        ]  # fmt: skip

    def where(self) -> list[str]:
        """Puts the implementation's folder on the path, if it is not installed."""
        folder = self.source.folder
        if not folder or "site-packages" in Path(folder).parts:
            return []
        return [f"sys.path.insert(0, {quoted(Path(folder).as_posix())})"]

    def functions(self) -> list[str]:
        """The call on one device, and the transformation around it."""
        case, around = self.case, self.case.around
        names = ", ".join(self.names)
        given = ", ".join(tree_text(argument) for argument in self.contract.arguments(case, self.names))
        keywords = "".join(f", {name}={value!r}" for name, value in case.params)
        by_place, by_keyword = CONTRACTS[case.contract].axis(case)
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
            f"    return {f'jax.tree.leaves({call})' if self._tree else call}",
            "", "", *definitions(around),
        ]  # fmt: skip

    def local(self, axes: list[tuple[str, ...]], *, spy: bool = False) -> list[str]:
        """The function that `shard_map` runs on every device, with a leading dimension for each of `axes`.

        Around a function of global arrays, what every device holds of its results.
        """
        if self.of_whole:
            taken = [f"def local({'*y' if self.several else 'y'}):", '    """A device\'s blocks of the results."""']
            return [*taken, *self._left(axes, spy=spy)]
        blocks = []
        for name, operand in zip(self.names, self.case.operands, strict=True):
            if operand.placement.stacked:
                batch = (2,) if self.transformation.batched else ()
                name = f"{name}.reshape({tuple_text([str(n) for n in (*batch, *operand.block)])})"
            blocks.append(name)
        lines = [
            f"def local({', '.join(self.names)}):",
            '    """What every device runs; leading dimensions stack the results of all devices."""',
            f"    y = {called(self.case.around)}({', '.join(blocks)})",
        ]
        return [*lines, *self._left(axes, spy=spy)]

    def _left(self, axes: list[tuple[str, ...]], *, spy: bool) -> list[str]:
        """The end of that function: what it returns."""
        lines = []
        if spy:
            lines.append(
                "    varying.extend(set(jax.typeof(leaf).manual_axis_type.varying) for leaf in jax.tree.leaves(y))"
            )
        indices = ["[" + ", ".join(["None"] * len(a)) + "]" if a else "" for a in axes]
        if not self.several:
            return [*lines, f"    return y{indices[0]}", "", ""]
        if len(set(indices)) == 1:
            return [*lines, f"    return [leaf{indices[0]} for leaf in y]" if indices[0] else "    return y", "", ""]
        return [*lines, f"    return [{', '.join(f'y[{i}]{index}' for i, index in enumerate(indices))}]", "", ""]

    def shard_map(self, out: list[str], *, name: str = "program") -> str:
        """The line that puts `local` on the mesh."""
        batched = self.transformation.batched
        outs = out[0] if not self.several or len(set(out)) == 1 else f"[{', '.join(out)}]"
        if self.of_whole:
            placed = CONTRACTS[self.case.contract].placed
            assert placed is not None
            layouts = tuple_text([spec_text(p.partition(batched=batched)) for p in placed(self.case)])
            return "\n".join([
                f"def {name}({', '.join(self.names)}):",
                f"    y = {called(self.case.around)}({', '.join(self.names)})",
                f"    blocks = jax.shard_map(local, mesh=mesh, in_specs={layouts}, out_specs={outs})",
                f"    return blocks({'*y' if self.several else 'y'})",
                "", "",
            ])  # fmt: skip
        specs = [spec_text(o.placement.partition(batched=batched)) for o in self.case.operands]
        options = "" if self.transformation.checked else ", check_vma=False"
        if self.case.manual:
            options += f", axis_names={set(self.case.manual)!r}"
        line = f"{name} = jax.shard_map(local, mesh=mesh, in_specs={tuple_text(specs)}, out_specs={outs}{options})"
        if len(line) <= 120:
            return line
        return line.replace("(local, ", "(\n    local,\n    ").replace(", in_specs", ",\n    in_specs").replace(
            ", out_specs", ",\n    out_specs"
        ).replace(options, options.replace(", ", ",\n    ", 1) if options else options)[:-1] + ",\n)"  # fmt: skip

    def jitted(self, function: str) -> str:
        """The function under `jit`, unless the case is about running without it."""
        return f"jax.jit({function})" if self.transformation.compiled else function
