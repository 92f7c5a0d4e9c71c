"""Draws which form is best for every size: `python -m shardproof.properties.performance.commands.crossover -h`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from shardproof.properties.contracts.products import SHARDED
from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.crossover import SIDES, crossover
from shardproof.properties.performance.pictures.crossover import plot
from shardproof.properties.report.arguments import (
    add_machine,
    add_mesh,
    exit_code,
    parse_axes,
    parse_dtype,
    parse_mesh,
    parse_sides,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is best for which size, and draws it; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m shardproof.properties.performance.commands.crossover"
    )
    parser.add_argument("contract", help=f"one of {', '.join(SHARDED)}")
    add_mesh(parser)
    add_machine(parser)
    parser.add_argument("--sides", default="512,2048,8192", metavar="M,K,N", help="of whole arrays (512,2048,8192)")
    parser.add_argument("--vary", default="m", choices=SIDES, help="which of them grows (default: m)")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    return exit_code(lambda: _drawn(options), options, options.contract)


def _drawn(options: argparse.Namespace) -> None:
    sides, dtype = parse_sides(options.sides), parse_dtype(options.dtype)
    machine, mesh = chip(options.machine), parse_mesh(options.mesh)
    axes = parse_axes(options.axis, mesh)
    more = {"dtype": dtype, "gradient": options.gradient}
    found = crossover(options.contract, sides, options.vary, machine, mesh, axes, **more)
    print(found.text())
    fixed = ", ".join(f"{name} = {size:,}" for name, size in zip(SIDES, sides, strict=True) if name != options.vary)
    gradient = " and its gradient" if options.gradient else ""
    title = [f"{options.contract}{gradient} on {machine.name}, mesh {mesh}", f"{fixed}, {dtype}; by timelines"]
    path = options.output or Path(f"{options.contract}-{machine.name}-crossover.svg")
    plot(found, title).save_svg(str(path))
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
