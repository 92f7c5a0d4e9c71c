"""Who sends what to whom in an implementation: printed, and drawn."""

from pathlib import Path

from shardproof.properties.communication.pictures import picture, steps, text
from shardproof.properties.programs.examples import example
from shardproof.properties.report.arguments import LONGEST, find, parse_axes, parse_mesh


def draw_steps(name: str, *, mesh: str, axis: str, output: Path | None) -> None:
    """Prints the steps of an implementation on its contract's example, and writes the picture."""
    implementation, on = find(name), parse_mesh(mesh)
    axes = parse_axes(axis, on)
    case = example(implementation.contract.name, on, axes if len(axes) > 1 else axes[0])
    found = steps(implementation, case)
    print(text(implementation, case, found))
    path = output or Path(f"{implementation.contract.name}-{implementation.name[:LONGEST]}.svg")
    picture(f"{implementation} on mesh {on}, axis {case.axis_name!r}", found, on, axes).save_svg(str(path))
    print(f"wrote {path}")
