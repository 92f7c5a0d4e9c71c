"""What the interpreter costs beside XLA, per structure, and how it grows with the number of devices."""

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

from shardproof.impl import algorithms, collective_matmul, collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines import Engine, SimulateEngine, XlaEngine
from shardproof.properties.performance.tables import table
from shardproof.properties.programs.program import Argument, Program

COMPARED = (8, 64)
GROWTH = (8, 64, 512, 4096)
STRUCTURES = 4


def measure() -> None:
    """Prints structures per second on both engines, and the growth from 8 to 4,096 devices."""
    console = Console(width=110)
    if hasattr(os, "sched_setaffinity"):  # one core for both
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console.print(compared())
    console.print(growth())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"peak memory of this process: {peak:.2f} GiB")


def over(function: Callable[[Array], Array]) -> Callable[[int, int], Program]:
    """The program that runs a function of blocks of `size` elements on p devices."""

    def program(p: int, size: int) -> Program:
        def build(mesh: jax.sharding.Mesh) -> Callable[..., object]:
            return jax.shard_map(function, mesh=mesh, in_specs=jax.P("tp"), out_specs=jax.P("tp"))

        return Program(build, (Argument((p * size,), np.float32, (("tp",),)),))

    return program


def multiplied(p: int, size: int) -> Program:
    """The ring matmul and its gradient."""

    def build(mesh: jax.sharding.Mesh) -> Callable[..., object]:
        specs = (jax.P(None, "tp"), jax.P())
        ring = collective_matmul.ring_all_gather_matmul_lhs_contracting
        function = jax.shard_map(lambda a, w: ring(a, w, "tp"), mesh=mesh, in_specs=specs, out_specs=jax.P(None, "tp"))

        def with_gradient(lhs: Array, rhs: Array) -> list[Array]:
            result, pullback = jax.vjp(function, lhs, rhs)
            return [result, *pullback(jnp.ones_like(result))]

        return with_gradient

    return Program(
        build, (Argument((2, p * size), np.float32, ((), ("tp",))), Argument((p * size, 3), np.float32, ((), ())))
    )


PROGRAMS = {
    "all_gather": over(lambda x: collectives.all_gather(x, "tp", tiled=True)),
    "ring all_gather": over(lambda x: algorithms.ring_all_gather(x, "tp", tiled=True)),
    "ring matmul and its gradient": multiplied,
}


def seconds(engine: Engine, program: Callable[[int, int], Program], p: int, sizes: Sequence[int]) -> float:
    """The median time of a structure: traced, compiled where the engine does, and run once.

    Another structure goes before, so that what all of them have in common is not counted as the first one's.
    """
    taken = []
    mesh = MeshCase(("tp",), (p,))
    jax.clear_caches()
    for size in (max(sizes) + 1, *sizes):
        made = program(p, size)
        arrays = [np.ones(a.shape, np.float32) for a in made.arguments]
        start = time.perf_counter()
        engine.prepare(made, mesh)(arrays)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def compared() -> Table:
    """Both engines, side by side."""
    columns, lines = ("program", "devices", "simulate", "xla", "times as many structures per second"), []
    for name, program in PROGRAMS.items():
        for p in COMPARED:
            sizes = range(1, STRUCTURES + 1)
            ours, theirs = (seconds(engine, program, p, sizes) for engine in (SimulateEngine(), XlaEngine()))
            lines.append((name, str(p), f"{ours * 1e3:.1f} ms", f"{theirs * 1e3:.0f} ms", f"{theirs / ours:.1f}"))
    return table("one core, per structure: traced and run once; on XLA compiled as well", columns, lines, left=1)


def growth() -> Table:
    """One case of each of three collectives, from 8 devices to 4,096."""
    functions: dict[str, Callable[[Array], Array]] = {
        "all_reduce": lambda x: collectives.cast_varying(collectives.all_reduce(x, "tp"), ("tp",)),
        "ring_shift": lambda x: collectives.ring_shift(x, "tp"),
        "all_gather": lambda x: collectives.all_gather(x, "tp", tiled=True),
    }
    lines = [
        (name, *(f"{seconds(SimulateEngine(), over(function), p, [2]) * 1e3:.0f} ms" for p in GROWTH))
        for name, function in functions.items()
    ]
    columns = ("collective", *(f"{p:,} devices" for p in GROWTH))
    return table("the interpreter alone, one case with blocks of two elements", columns, lines, left=1)
