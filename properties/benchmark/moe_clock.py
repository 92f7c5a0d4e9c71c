"""How long dispatches of a mixture of experts take: compiled for CPU devices, and per drawn case of the suite."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from rich.table import Table

from shardproof.properties.benchmark.moe import Layer, names_of
from shardproof.properties.benchmark.tables import table
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws.law import LAWS
from shardproof.properties.performance.measured.medians import medians
from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.search import find_violation

AGAINST = "all_to_all"
NOT_COMPILED = ("ragged",)
"""What XLA compiles for no CPU."""

EXAMPLES: Mapping[str, int] = MappingProxyType({"value": 20, "gradient": 4})
"""How many examples of a law are drawn; each is a few cases."""


def clock(layer: Layer) -> Table:
    """The time of every dispatch that is compiled, as a multiple of that of `all_to_all`, measured in turns."""
    mesh = jax.make_mesh((layer.participants,), ("ep",), (AxisType.Auto,), devices=jax.devices()[: layer.participants])
    names = [name for name in names_of(layer) if name not in NOT_COMPILED]
    ways = {
        "forward, even": (False, False),
        "forward, skewed": (False, True),
        "gradient, even": (True, False),
        "gradient, skewed": (True, True),
    }
    taken = {}
    for way, (gradient, skewed) in ways.items():
        taken[way] = medians({name: _run(layer, name, mesh, gradient=gradient, skewed=skewed) for name in names})
    against = tuple(f"{taken[way][AGAINST] * 1e3:.2f} ms" for way in ways)
    lines = [(name, *(f"{taken[way][name] / taken[way][AGAINST]:.2f}" for way in ways)) for name in names]
    title = (
        f"time on {layer.participants} CPU devices against {AGAINST} ({', '.join(against)}); {layer.tokens} tokens of "
        f"{layer.features} float32 features each, {layer.experts} experts, top {layer.top_k}"
    )
    return table(title, ("dispatch", *ways), lines)


def _run(layer: Layer, name: str, mesh: jax.sharding.Mesh, *, gradient: bool, skewed: bool) -> Callable[[], Any]:
    program = layer.program(name, gradient=gradient)
    function = jax.jit(program.build(mesh))
    arrays = [
        jax.device_put(array, NamedSharding(mesh, argument.partition_spec))
        for array, argument in zip(layer.arrays(skewed=skewed), program.arguments, strict=True)
    ]
    return lambda: function(*arrays)


def cases(examples: Mapping[str, int] = EXAMPLES) -> Table:
    """How many drawn cases of each dispatch are checked in a second, drawing, tracing and the oracle among it.

    Arguments:
        examples: how many are drawn, by law.
    """
    lines = []
    for one in (each for each in OPERATIONS if each.form == "routed"):
        found = {
            law: find_violation(LAWS[law], one, SimulateEngine(), Scope(), max_examples=number)
            for law, number in examples.items()
        }
        for finding in found.values():
            if finding.violation is not None:
                raise finding.violation
        lines.append((one.name, *(f"{finding.tally.cases / finding.seconds:.1f}" for finding in found.values())))
    return table("drawn cases per second, interpreted, in one process", ("dispatch", *examples), lines)
