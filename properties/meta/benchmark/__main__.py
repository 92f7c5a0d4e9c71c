"""`python -m shardproof.properties.meta.benchmark SECTION`: measures, and prints a table."""

import argparse

import jax

from shardproof.properties.meta.benchmark import planted, roundings


def main() -> None:
    """Runs the section named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.meta.benchmark", description=__doc__)
    sections = parser.add_subparsers(dest="section", required=True)
    planted.add_options(sections.add_parser("mutants", help="the rate at which planted bugs are caught"))
    roundings.add_options(
        sections.add_parser("roundings", help="how near to the bounds of sampled roundings XLA comes")
    )
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 64)
    if options.section == "roundings":
        roundings.measure(options)
    else:
        planted.measure(options)


if __name__ == "__main__":
    main()
