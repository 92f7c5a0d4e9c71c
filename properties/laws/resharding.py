"""The law of a change of layout, compiled: the values stay, are where they were asked for, and little is sent."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardproof.oracles.layout import shard
from shardproof.properties.cases.resharding import Resharding
from shardproof.properties.communication.bounds import moved
from shardproof.properties.communication.counted import of_compiled
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.programs.mapping import partition_spec
from shardproof.properties.programs.violation import Broken, Difference, NotRun


def check_resharding(function: Callable[..., Any], case: Resharding) -> None:
    """The law, of a function of an array, the spec that it is to have, and the mesh.

    Raises:
        Broken: if values differ, or are elsewhere; if something is sent though every device has what it is to have; or
            if more passes a device than if it gathered the whole array.
        NotRun: if what is sent is not known.
    """
    mesh = device_mesh(case.mesh)
    held, wanted = partition_spec(case.held), partition_spec(case.wanted)
    x = jax.device_put(case.array, NamedSharding(mesh, held))
    program: Any = jax.jit(lambda x: function(x, wanted, mesh)).lower(x).compile()
    result = program(x)
    if result.shape != x.shape:
        raise Broken("shape", f"{case}: {result.shape}, expected {x.shape}")
    if not result.sharding.is_equivalent_to(NamedSharding(mesh, wanted), x.ndim):
        raise Broken("type", f"{case}: is laid out as {result.sharding}, expected {wanted}")
    here = {s.device: np.asarray(s.data) for s in result.addressable_shards}
    found = np.stack([here[mesh.devices[at]] for at in np.ndindex(*case.mesh.sizes)])
    blocks = shard(case.array, case.mesh, case.wanted)
    difference = Difference.between("result", "result", blocks, found.reshape(blocks.shape))
    if difference.wrong.any():
        raise Broken("values", f"{case}: a device has another part than it is to have", difference=difference)
    counted = of_compiled(program.as_text())
    sent = moved(counted.participants)
    if sent is None:
        raise NotRun(f"{case}: what is sent is not known: {counted.unknown}")
    most = Fraction(case.gathered if case.lacking else 0) * case.array.itemsize
    if sent > most:
        finding = f"{case}: sends {counted.cost}, {sent} bytes through a device, expected at most {most}"
        raise Broken("communication", finding)
