"""The command that draws who sends what to whom."""

import re
from collections.abc import Iterator
from pathlib import Path

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.pictures import picture, steps, text
from shardproof.properties.performance.commands.timeline import check_trace, users_program
from shardproof.properties.performance.shaped import KNOWN, parse_shapes, shaped_case
from shardproof.properties.programs.examples import EXAMPLES, example
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.report.arguments import LONGEST, find


def draw_steps(name: str, mesh: MeshCase, axes: tuple[str, ...], shape: str, output: Path | None) -> Iterator[str]:
    """Yields the collectives of an implementation, a function or a Program in words, then where their picture lies.

    Arguments:
        name: as `shardproof draw` takes it.
        mesh: the mesh.
        axes: the axes that the collectives run over.
        shape: the arrays, as `--shape` takes them, which a function or a Program needs; empty: those of an example.
        output: the file of the picture; None: one in this folder with the name of what is drawn.

    Raises:
        RequestError: if there is no such function, or it cannot be traced with such arrays.
    """
    axis_name = axes if len(axes) > 1 else axes[0]
    if ":" in name and "=" not in name:
        program, arrays = users_program(name, mesh, axes, shape, "float32")
        subject, file = name, re.sub(r"[^A-Za-z0-9_]+", "-", name)
    else:
        implementation = find(name, KNOWN if shape else EXAMPLES)
        contract = implementation.contract.name
        shapes = parse_shapes(shape) if shape else None
        case = (
            shaped_case(contract, mesh, axis_name, shapes, "float32") if shapes else example(contract, mesh, axis_name)
        )
        program, arrays = forward(case, implementation, Seen()), f"block {case.operands[0]}"
        check_trace(name, program, mesh)
        subject, file = str(implementation), f"{contract}-{implementation.name}"
    title, found = f"{subject} on mesh {mesh}, axis {axis_name!r}", steps(program, mesh)
    yield text(f"{title}, {arrays}", found)
    path = output or Path(f"{file[:LONGEST]}.svg")
    picture(title, found, mesh, axes).save_svg(str(path))
    yield f"wrote {path}"
