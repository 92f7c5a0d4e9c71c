"""The law of the modes: a layer, its loss and its gradients are the same in each; layers are where they were asked for.

What is hidden is looked at in the traced program, which says on which axes each product is, and how it is laid out.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding

from shardproof.oracles import mlp as oracle
from shardproof.oracles.layout import shard, spec_entries
from shardproof.properties.cases.modes import ModesCase
from shardproof.properties.engines import Engine
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.engines.xla import abstract_mesh, device_mesh
from shardproof.properties.programs.mapping import partition_spec
from shardproof.properties.programs.program import Argument, Program
from shardproof.properties.programs.violation import Broken, Difference

Mlp = Callable[..., Any]
Loss = Callable[..., Any]

CLOSE = 1e-12
"""Tolerance for float64 results that differ only in summation order."""

NAMES = ("x", "w_in", "b_in", "w_out", "b_out", "targets")


def arguments(case: ModesCase, dtype: str) -> tuple[Argument, ...]:
    """The arrays as a program takes them."""
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return tuple(Argument(shape, numpy_dtype, spec) for shape, spec in zip(case.shapes, case.specs, strict=True))


def outputs(arrays: list[np.ndarray]) -> np.ndarray:
    """Those of the layer, of x and its parameters, in float64."""
    x, w_in, b_in, w_out, b_out = (a.astype(np.float64) for a in arrays)
    return oracle.weighted_sums([(w_in, b_in), (w_out, b_out)], x)[-1]


def check_mlp(mlp: Mlp, case: ModesCase, engine: Engine, dtype: str = "float32") -> None:
    """The layer is that of the whole arrays, bit for bit.

    Raises:
        Broken: if not.
    """
    program = Program(
        lambda mesh: lambda x, *rest: [mlp(x, rest[:4], mesh=mesh, layouts=case.layouts)], arguments(case, dtype)[:5]
    )
    arrays = case.arrays(dtype)[:5]
    (seen,) = engine.prepare(program, case.mesh)(arrays)
    _equal(outputs(arrays).astype(arrays[0].dtype), np.asarray(seen), f"{case}")


def check_loss(loss: Loss, case: ModesCase, engine: Engine) -> None:
    """In double precision the loss and its gradient by every argument are those of the whole arrays.

    Raises:
        Broken: if not.
    """

    def build(mesh: Any) -> Any:
        def both(*arrays: Any) -> list[Any]:
            def of(x: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, targets: Any) -> Any:
                return loss(x, targets, (w_in, b_in, w_out, b_out), mesh=mesh, layouts=case.layouts)

            value, gradients = jax.value_and_grad(of, argnums=tuple(range(len(arrays))))(*arrays)
            return [value, *gradients]

        return both

    arrays = case.arrays("float64")
    with jax.enable_x64(True):
        seen = engine.prepare(Program(build, arguments(case, "float64")), case.mesh)(arrays)
    leaves = in_order(arrays)
    dtypes = [a.dtype for a in leaves]
    by_name = dict(zip(in_order(NAMES), oracle.loss.pullback(leaves, [np.ones(())], range(6), dtypes, {}), strict=True))
    expected = [oracle.loss.value(leaves, dtypes, {})[0], *(by_name[name] for name in NAMES)]
    for name, one, other in zip(("the loss", *(f"the gradient by {n}" for n in NAMES)), seen, expected, strict=True):
        _near(other.astype(np.float64), np.asarray(one), CLOSE, f"{name}: {case}")


def check_narrow_loss(loss: Loss, case: ModesCase, engine: Engine, dtype: str) -> None:
    """In 16 bits the loss of integers is that of the whole arrays, bit for bit.

    Its sum is exact in float32, on a device and between devices; the quotient is rounded there, and then to 16 bits.

    Raises:
        Broken: if not.
    """

    def build(mesh: Any) -> Any:
        return lambda x, *rest: [loss(x, rest[4], rest[:4], mesh=mesh, layouts=case.layouts)]

    arrays = case.arrays(dtype)
    (seen,) = engine.prepare(Program(build, arguments(case, dtype)), case.mesh)(arrays)
    leaves = in_order(arrays)
    (right,) = oracle.loss.value(leaves, [a.dtype for a in leaves], {})
    rows = case.sides[0]
    quotient = np.float32(np.round(right * rows)) / np.float32(rows)
    _equal(np.asarray(quotient.astype(arrays[0].dtype)), np.asarray(seen), f"the loss: {case}")


def in_order(of_case: Any) -> list[Any]:
    """What a case has of x, the parameters and the targets, in the order of the oracle: inputs and targets last."""
    x, *parameters, targets = of_case
    return [*parameters, x, targets]


def check_layout(mlp: Mlp, case: ModesCase) -> None:
    """Compiled, the result is laid out as it was asked for, and every device holds its part.

    Raises:
        Broken: if not.
    """
    mesh = device_mesh(case.mesh)
    arrays = case.arrays("float32")[:5]
    placed: list[Any] = [
        jax.device_put(a, NamedSharding(mesh, partition_spec(s))) for a, s in zip(arrays, case.specs[:5], strict=True)
    ]
    result: Any = jax.jit(lambda x, *rest: mlp(x, rest, mesh=mesh, layouts=case.layouts))(*placed)
    wanted = NamedSharding(mesh, partition_spec(case.layouts.result))
    if not result.sharding.is_equivalent_to(wanted, 2):
        raise Broken("type", f"{case}: {result.sharding}, expected {wanted}")
    blocks = shard(outputs(arrays).astype(np.float32), case.mesh, case.layouts.result)
    held = {s.device: np.asarray(s.data) for s in result.addressable_shards}
    found = np.stack([held[mesh.devices[at]] for at in np.ndindex(*case.mesh.sizes)])
    _equal(blocks, found.reshape(blocks.shape), f"{case}")


MODES: dict[str, tuple[str, str]] = {
    "automatic": ("Auto", "Auto"),
    "explicit": ("Explicit", "Explicit"),
    "mixed": ("Explicit", "Auto"),
    "manual": ("Manual", "Manual"),
}
"""The type of all axes in the first product, and in the second."""


def check_mode(mlp: Mlp, mode: str, case: ModesCase) -> None:
    """Both products are on axes of the mode's types, and the first one's result is laid out as `hidden` says.

    On automatic axes there is a constraint for that, on explicit ones its type says so, and by `shard_map` its block.

    Raises:
        Broken: if not.
    """
    made = _traced(
        lambda x, *rest, mesh: mlp(x, rest, mesh=mesh, layouts=case.layouts), arguments(case, "float32")[:5], case
    )
    products = [e.outvars[0].aval for e in equations(made.jaxpr) if e.primitive.name == "dot_general"]
    kinds = tuple(kind.name for aval in products for kind in dict.fromkeys(aval.sharding.mesh.axis_types))
    if kinds != MODES[mode]:
        raise Broken("type", f"{case}: products on axes of the types {kinds}, expected {MODES[mode]}")
    hidden, shape = case.layouts.hidden, (case.sides[0], case.sides[2])
    found: Any
    wanted: Any = hidden
    if kinds[0] == "Manual":
        parts = (math.prod(case.mesh.shape[axis] for axis in entry) for entry in hidden)
        wanted, found = tuple(n // k for n, k in zip(shape, parts, strict=True)), products[0].shape
    elif kinds[0] == "Explicit":
        found = spec_entries(products[0].sharding.spec, 2, case.mesh)
    else:
        constraints = [e.params["sharding"] for e in equations(made.jaxpr) if e.primitive.name == "sharding_constraint"]
        found = spec_entries(constraints[0].spec, 2, case.mesh) if len(constraints) == len(products) else "not said"
    if found != wanted:
        raise Broken("type", f"{case}: the hidden values are laid out as {found}, expected {wanted}")


def check_dtype(loss: Loss, case: ModesCase) -> None:
    """A loss has the dtype of its targets.

    Raises:
        Broken: if not.
    """
    for one, other in (("bfloat16", "float32"), ("float32", "bfloat16")):
        given = (*arguments(case, one)[:5], arguments(case, other)[5])
        made = _traced(lambda x, *rest, mesh: loss(x, rest[4], rest[:4], mesh=mesh, layouts=case.layouts), given, case)
        if (found := made.out_avals[0].dtype.name) != other:
            raise Broken("dtype", f"the loss: {case}: {found} for x of {one} and targets of {other}, expected {other}")


def _traced(function: Callable[..., Any], given: tuple[Argument, ...], case: ModesCase) -> Any:
    program = Program(lambda mesh: lambda *arrays: [function(*arrays, mesh=mesh)], given)
    mesh = abstract_mesh(case.mesh)
    return jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))


def _equal(right: np.ndarray, found: np.ndarray, what: str) -> None:
    right, found = np.atleast_1d(right, found)
    difference = Difference.between("result", "result", right, found)
    if found.dtype != right.dtype:
        raise Broken("dtype", f"{what}: {found.dtype}, expected {right.dtype}", difference=difference)
    if difference.wrong.any() or found.shape != right.shape:
        raise Broken("values", f"{what}: expected {right}, not {found}", difference=difference)


def _near(right: np.ndarray, found: np.ndarray, part: float, what: str) -> None:
    """Equal to such a part of the largest, or of 1."""
    if found.shape != right.shape:
        raise Broken("shape", f"{what}: {found.shape}, expected {right.shape}")
    right, found = np.atleast_1d(right, found)
    off = part * max(1.0, float(np.abs(right).max(initial=0)))
    wrong = ~(np.abs(found.astype(np.float64) - right) <= off)
    if wrong.any():
        difference = Difference("result", what, right, found, wrong, np.full(right.shape, off))
        raise Broken("values", f"{what}: off by more than {off:.3g}", difference=difference)
