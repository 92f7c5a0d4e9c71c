"""`python -m shardproof.properties.benchmark [SECTION …]`: measures, and prints one table per section."""

import argparse
from collections.abc import Callable

import jax

from shardproof.properties.benchmark import (
    agreement,
    diagnoses,
    drawing,
    losses,
    moe_growth,
    parity,
    planted,
    products,
    simulating,
    survivors,
    timelines,
    tpu,
    verdicts,
)

SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "drawing": lambda options: drawing.measure(options.devices),
    "simulate": lambda options: simulating.measure(max(options.devices, max(simulating.COMPARED))),
    "mutants": lambda options: planted.measure(range(options.first_seed, options.first_seed + options.seeds)),
    "diagnoses": lambda options: diagnoses.measure(range(options.first_seed, options.first_seed + options.seeds)),
    "verdicts": lambda options: verdicts.measure(),
    "products": lambda options: products.measure(options.devices),
    "moe": moe_growth.measure,
    "losses": lambda options: losses.measure(),
    "parity": lambda options: parity.measure(),
    "timeline": lambda options: timelines.measure(),
    "survivors": lambda options: survivors.measure(),
    "tpu": tpu.measure,
    "agreement": agreement.measure,
}


def main() -> None:
    """Runs the sections named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.benchmark", description=__doc__)
    parser.add_argument("section", nargs="*", help=f"one of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices (default: 8)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to hunt planted bugs with (default: 1)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    moe_growth.add_options(parser)
    tpu.add_options(parser)
    options = parser.parse_args()
    unknown = [name for name in options.section if name not in SECTIONS]
    if unknown:
        parser.error(f"section={unknown[0]!r}: expected one of {', '.join(SECTIONS)}")
    jax.config.update("jax_platforms", "cpu")
    sections = options.section or list(SECTIONS)
    most = max(simulating.COMPARED) if "simulate" in sections else 0
    jax.config.update("jax_num_cpu_devices", max(options.devices, most))
    for name in sections:
        SECTIONS[name](options)


if __name__ == "__main__":
    main()
