"""Programs in which a known defect may be: those that a compiler refuses, and few others."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, P, lax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.known_defects.faults import sum_of_complex_constant

Function = Callable[..., Array]

CASE = Case(CONTRACTS["all_reduce"], MeshCase(("dp",), (2,)), "dp", ())
"""A case, of which these defects need to know nothing."""


@dataclass(frozen=True)
class OfNothing:
    """A program of a, b [0] and c [1], whether it may be at fault, and whether XLA refuses it."""

    function: Function
    fault: bool = True
    refused: bool = True


OF_NOTHING = {
    "sums": OfNothing(lambda a, b, c: (a.sum() + b.sum())[None]),
    "product": OfNothing(lambda a, b, c: (a @ b)[None]),
    "places": OfNothing(lambda a, b, c: (a.sum() + b.sum())[None] + lax.axis_index("d")),
    "one operand": OfNothing(lambda a, b, c: a.sum()[None], refused=False),
    "another for its shape": OfNothing(lambda a, b, c: (a.sum() + c[:0].sum())[None], refused=False),
    "another": OfNothing(lambda a, b, c: a.sum() + b.sum() + c, fault=False, refused=False),
    "no element": OfNothing(lambda a, b, c: a + b, fault=False, refused=False),
    "constant": OfNothing(lambda a, b, c: jnp.ones(1), fault=False, refused=False),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_what_xla_refuses_of_nothing_is_at_fault(name: str) -> None:
    """A program with a result of empty operands alone is at fault, as XLA refuses some."""
    program, defect = OF_NOTHING[name], DEFECTS["empty_product"]
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    compiled = jax.jit(jax.shard_map(program.function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    operands = jnp.ones(0), jnp.ones(0), jnp.ones(2)
    assert (defect.at_fault(CASE, jax.make_jaxpr(compiled)(*operands)) is not None) == program.fault
    if program.refused and defect.in_version(jax.__version__):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            compiled(*operands)
        assert defect.shows(CASE, caught.value)
    else:
        compiled(*operands)


def two_steps(step: Function) -> Function:
    """A loop of two steps that adds up what they read."""
    return lambda x: lax.fori_loop(0, 2, lambda i, total: total + step(x, i), jnp.zeros_like(step(x, 0)))


def negated(x: Array) -> Array:
    """The rows of x with the other sign."""
    return lax.scan(lambda carry, row: (carry, -row), 0, x)[1]


OVER_ROWS: dict[str, tuple[Function, tuple[int, ...], bool]] = {
    "scan": (negated, (2, 3), True),
    "scan under vmap": (jax.vmap(negated), (1, 2, 3), True),
    "scan that writes": (lambda x: lax.scan(lambda carry, i: (carry, -x[0]), 0, jnp.arange(2))[1], (2, 3), True),
    "slice": (two_steps(lambda x, i: x[i]), (2, 3), True),
    "gather": (two_steps(lambda x, i: jnp.take(x, i, axis=0)), (2, 3), True),
    "update": (lambda x: lax.fori_loop(0, 2, lambda i, y: y.at[i].set(x[0]), x), (2, 3), True),
    "scan of bytes": (negated, (2, 2), False),
    "row that stays": (two_steps(lambda x, i: x[0]), (2, 3), False),
    "no loop": (lambda x: x[x[0, 0].astype(int)], (2, 3), False),
}


@pytest.mark.parametrize("name", OVER_ROWS)
def test_loops_that_a_gpu_refuses_are_at_fault(name: str) -> None:
    """A loop over rows of 4 bits is at fault unless they are whole bytes; XLA refuses these on a GPU."""
    (function, shape, fault), defect = OVER_ROWS[name], DEFECTS["gpu_rows_of_bits"]
    rows = jax.ShapeDtypeStruct(shape, jnp.int4)
    assert (defect.at_fault(CASE, jax.make_jaxpr(function)(rows)) is not None) == fault
    assert defect.at_fault(CASE, jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, jnp.int8))) is None
    if jax.default_backend() == defect.platform and defect.in_version(jax.__version__):
        refused = False
        try:
            jax.jit(function).lower(rows).compile()
        except jax.errors.JaxRuntimeError as error:
            if not defect.shows(CASE, error):
                raise
            refused = True
        assert refused == fault


@pytest.mark.parametrize(("start", "constant"), [(0.0, True), (1.0, False)], ids=["of nothing", "of the argument"])
def test_what_a_loop_leaves_constant_is_constant(start: float, constant: bool) -> None:
    """A sum of products without terms is constant in a loop as well."""

    def local(x: Array) -> Array:
        def step(total: Array, part: Array) -> tuple[Array, None]:
            return total + part[:, :0] @ part[:0], None

        total = jax.lax.scan(step, x * start if start else x[:, :0] @ x[:0], jnp.stack([x, x]))[0]
        return jax.lax.psum(total, "dp")

    mesh = jax.sharding.AbstractMesh((2,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))
    program = jax.shard_map(local, mesh=mesh, in_specs=P("dp"), out_specs=P())
    traced = jax.make_jaxpr(program)(jax.ShapeDtypeStruct((4, 2), np.complex64))
    assert (sum_of_complex_constant(CASE, traced) is not None) == constant
