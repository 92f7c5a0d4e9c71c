"""How much a program multiplies, from what was traced: the products of all equations, loops as often as they run."""

import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.programs.program import Program


def equations(jaxpr: Jaxpr, times: int = 1) -> list[tuple[Any, int]]:
    """All equations of a program, and how often each is executed."""
    found = []
    for eqn in jaxpr.eqns:
        found.append((eqn, times))
        inner = times * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)
        for value in eqn.params.values():
            inside = value.jaxpr if isinstance(value, ClosedJaxpr) else value
            if isinstance(inside, Jaxpr):
                found += equations(inside, inner)
    return found


def flops_of(program: Program, on: MeshCase) -> int:
    """Multiplications and additions of all products in the traced program, per device."""
    mesh = abstract_mesh(on)
    traced = jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))
    total = 0
    for eqn, times in equations(traced.jaxpr):
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
            total += times * 2 * inner * math.prod(eqn.outvars[0].aval.shape)
    return total
