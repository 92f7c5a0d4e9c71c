"""`python -m shardproof.properties.report.draw NAME --mesh tp=4`: prints and draws who sends what to whom."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shardproof.properties.communication.pictures import picture, steps, text
from shardproof.properties.programs.examples import example
from shardproof.properties.report.arguments import LONGEST, add_mesh, exit_code, find, parse_axes, parse_mesh

NAME = (
    "the implementation: its name, contract[name], a contract that has only one, or a function of yours as "
    "CONTRACT=MODULE:FUNCTION"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the steps and writes the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.report.draw", description=__doc__)
    parser.add_argument("name", help=NAME)
    add_mesh(parser)
    options = parser.parse_args(arguments)
    return exit_code(_drawn, options, options.name)


def _drawn(options: argparse.Namespace) -> None:
    implementation, mesh = find(options.name), parse_mesh(options.mesh)
    axes = parse_axes(options.axis, mesh)
    case = example(implementation.contract.name, mesh, axes if len(axes) > 1 else axes[0])
    found = steps(implementation, case)
    print(text(implementation, case, found))
    path = options.output or Path(f"{implementation.contract.name}-{implementation.name[:LONGEST]}.svg")
    picture(f"{implementation} on mesh {mesh}, axis {case.axis_name!r}", found, mesh, axes).save_svg(str(path))
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
