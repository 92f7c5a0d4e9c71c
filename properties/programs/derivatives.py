"""The derivatives of programs, in both modes: taken of the whole program, or inside of `shard_map`.

A link of the chain may say how they are taken: `linearize`, with `linear_transpose` for the other mode, `jacobian`,
which maps several directions at once, as `jacfwd` and `jacrev` do, and `grad_per_operand`, one operand after the other.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.chain import Chain
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import (
    Argument,
    Global,
    Program,
    Seen,
    arguments,
    compiled,
    entry,
    forward,
    local_of,
    on_mesh,
    stacked,
)
from shardproof.properties.programs.transformations import of_some


def derivatives(
    case: Case, implementation: Implementation, seen: Seen, *, forward_mode: bool = True, reverse_mode: bool = True
) -> tuple[Program, list[Placement]]:
    """The program `(operands, tangents, cotangents) -> (results, tangents, gradients)`, and the results' placements.

    Results that are no floats are constants, as float32. Operands that have no gradient have no tangent either. `seen`
    must come from a trace of `forward`: results leave by type, so that cotangents of invariant results are invariant.
    """
    operands = arguments(case)
    axes = [case.mesh.in_mesh_order(varying) for varying in seen.varying]
    placements = [Placement(((),) * len(shape), a) for shape, a in zip(seen.shapes, axes, strict=True)]
    cotangents = tuple(
        Argument((*(case.mesh.shape[n] for n in a), *shape), with_derivative(dtype), tuple((n,) for n in a))
        for a, shape, dtype in zip(axes, seen.shapes, seen.dtypes, strict=True)
    )
    moving = case.contract.call.moving(case)
    count = len(operands)
    own = dataclasses.replace(seen)

    def derived(function: Global) -> Global:
        def as_floats(*xs: jax.Array) -> list[jax.Array]:  # so that all results have tangents
            return [y.astype(with_derivative(y.dtype)) for y in function(*xs)]

        def run(*arrays: jax.Array) -> list[jax.Array]:
            xs, tangents, cts = arrays[:count], arrays[count:][: len(moving)], arrays[count + len(moving) :]
            of_moving, primal = of_some(as_floats, xs, moving)
            if not reverse_mode:
                return [*of_moving(*primal), *push_of(case.chain, of_moving, primal)(*tangents)]
            ys, pull = pullback_of(case.chain, of_moving, primal)
            grads = pull(*cts)
            pushed = push_of(case.chain, of_moving, primal)(*tangents) if forward_mode else []
            return [*ys, *pushed, *grads]

        return run

    given = (*operands, *(operands[i] for i in moving), *cotangents)
    if any(link.derives for link in case.links):  # inside of shard_map
        results = [stacked(a) for a in axes]
        enter = [entry(case, i) for i in (*range(count), *moving)]
        leave = [*results * (1 + forward_mode), *(entry(case, i) for i in moving if reverse_mode)]
        local = derived(local_of(case, implementation, own, "by type"))
        checked = implementation.check_vma
        inside = Program(
            lambda mesh: on_mesh(case, mesh, local, [*enter, *results], leave, checked=checked), given, compiled(case)
        )
        return inside, placements
    program = forward(case, implementation, own, out="by type")
    return Program(lambda mesh: derived(program.build(mesh)), given, compiled(case)), placements


def with_derivative(dtype: Any) -> Any:
    """The dtype of a result's tangents: its own, or float32 if it has none, and counts as a constant."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else np.dtype(np.float32)


Derivative = Callable[..., Sequence[jax.Array]]
"""Tangents to tangents, or cotangents to gradients."""


def push_of(chain: Chain, function: Global, primal: Sequence[jax.Array]) -> Derivative:
    """A function's derivative in forward mode, taken as the chain says."""
    if "linearize" in chain:
        push: Derivative = jax.linearize(function, *primal)[1]
    else:

        def push(*tangents: jax.Array) -> Sequence[jax.Array]:
            pushed: Sequence[jax.Array] = jax.jvp(function, tuple(primal), tangents)[1]
            return pushed

    return beside_zeros(push) if "jacobian" in chain else push


def pullback_of(chain: Chain, function: Global, primal: Sequence[jax.Array]) -> tuple[Sequence[jax.Array], Derivative]:
    """The results of a function, and its derivative in reverse mode, taken as the chain says."""
    transpose: Callable[[list[jax.Array]], Sequence[jax.Array]]
    if "grad_per_operand" in chain:  # each gradient that of a function of one operand
        rest = tuple(name for name in chain if name not in ("grad_per_operand", "jacobian"))
        each = [
            pullback_of(rest, lambda x, i=i: function(*primal[:i], x, *primal[i + 1 :]), [x])
            for i, x in enumerate(primal)
        ]
        ys, transpose = each[0][0], lambda cts: [pull(*cts)[0] for _, pull in each]
    elif "linearize" in chain:
        ys, push = jax.linearize(function, *primal)
        transpose = jax.linear_transpose(push, *primal)
    else:
        ys, transpose = jax.vjp(function, *primal)

    def pull(*cts: jax.Array) -> Sequence[jax.Array]:
        pulled: Sequence[jax.Array] = transpose(list(cts))
        return pulled

    return ys, beside_zeros(pull) if "jacobian" in chain else pull


def beside_zeros(derivative: Derivative) -> Derivative:
    """The derivative along a direction as the second of a batch, of which the first is none."""

    def batched(*directions: jax.Array) -> Sequence[jax.Array]:
        both = [jnp.stack([jnp.zeros_like(d), d]) for d in directions]
        return [result[1] for result in jax.vmap(derivative)(*both)]

    return batched
