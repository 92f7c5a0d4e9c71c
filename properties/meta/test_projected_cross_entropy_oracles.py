"""The loss of a projection: the memory of both implementations."""

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardproof.impl import cross_entropy as forms
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.meta.blockwise import simulated
from shardproof.properties.performance.operations import peak_in
from shardproof.properties.programs.program import Argument, Program

TOKENS, FEATURES, CLASSES, CHUNK = 512, 4, 256, 16
"""Of the memory's test: a participant's logits are far more than everything else."""

PARTICIPANTS = MeshCase(("tp",), (4,))


def test_a_chunk_has_a_class() -> None:
    """A chunk of no class is refused."""
    x, w, labels = np.zeros((4, 1, 2)), np.zeros((4, 2, 3)), np.zeros((4, 1), int)
    with pytest.raises(ValueError, match="chunk=0: expected a number of classes of at least 1"):
        simulated(
            functools.partial(forms.chunked_projected_cross_entropy, axis_name="tp", chunk=0),
            PARTICIPANTS,
            x,
            w,
            labels,
        )


def program(form: Any, dtype: str) -> Program:
    """The mean of the losses, with the gradients of x and w."""

    def build(mesh: Any) -> Any:
        specs = (P(), P(None, "tp"), P())
        local: Any = functools.partial(form, axis_name="tp", label_smoothing=0.1)
        losses = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())

        def both(x: Any, w: Any, labels: Any) -> Any:
            return jax.value_and_grad(lambda x, w: losses(x, w, labels).mean(), argnums=(0, 1))(x, w)

        return both

    classes = CLASSES * PARTICIPANTS.size
    return Program(
        build,
        (
            Argument((TOKENS, FEATURES), dtype, ((), ())),
            Argument((FEATURES, classes), dtype, ((), ("tp",))),
            Argument((TOKENS,), "int32", ((),)),
        ),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logits_are_never_there(dtype: str) -> None:
    """The chunked form has no array of a quarter of the logits, forward or backward."""
    mesh, logits = abstract_mesh(PARTICIPANTS), TOKENS * CLASSES
    for form, has_them in (
        (forms.projected_cross_entropy, True),
        (functools.partial(forms.chunked_projected_cross_entropy, chunk=CHUNK), False),
        (functools.partial(forms.chunked_projected_cross_entropy, chunk=CLASSES), True),
    ):
        one = program(form, dtype)
        traced = jax.make_jaxpr(one.build(mesh))(*one.abstract_arguments(mesh))
        bodies = [e.params["jaxpr"] for e in equations(traced) if e.primitive.name == "shard_map"]
        assert len(bodies) >= 2
        sizes = [math.prod(v.aval.shape) for body in bodies for e in equations(body) for v in e.outvars]
        assert (max(sizes) >= logits) == has_them
        assert has_them or max(sizes) < logits / 4
        assert (peak_in(traced) >= 4 * logits) == has_them
