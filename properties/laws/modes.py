"""The law of the modes: a layer, its loss and its gradients are the same in each, and where they were asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from shardproof.impl.modes import Layouts
from shardproof.oracles import modes as oracle
from shardproof.oracles.layout import Entries, shard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies import meshes, specs
from shardproof.properties.engines import Engine
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.programs.mapping import partition_spec
from shardproof.properties.programs.program import Argument, Program

Mlp = Callable[..., Any]
Loss = Callable[..., Any]

CLOSE = 1e-12
"""How near two computations in double precision are that do the same sums of products in another order."""


@dataclass(frozen=True)
class ModesCase:
    """A layer on a mesh of automatic axes: sizes B, D, F and E, and every layout."""

    mesh: MeshCase
    sides: tuple[int, int, int, int]
    layouts: Layouts
    seed: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of x, the parameters, and the targets."""
        b, d, f, e = self.sides
        return (b, d), (d, f), (f,), (f, e), (e,), (b, e)

    @property
    def specs(self) -> tuple[Entries, ...]:
        """Their layouts."""
        return (*self.layouts.operands, self.layouts.result)

    def arrays(self, dtype: str) -> list[np.ndarray]:
        """Small integers: every intermediate of the layer is exact, also in 16 bits if the sides are short."""
        return [
            generate(Data("exact", self.seed + i), shape, np.dtype("int8"), terms=64).clip(-2, 2).astype(dtype)
            for i, shape in enumerate(self.shapes)
        ]

    def arguments(self, dtype: str) -> tuple[Argument, ...]:
        """The arrays as a program takes them."""
        return tuple(
            Argument(shape, np.dtype(dtype), spec) for shape, spec in zip(self.shapes, self.specs, strict=True)
        )


@st.composite
def modes_cases(draw: Any, *, max_devices: int = 8, available: int = 8) -> ModesCase:
    """Layers. Shrinks to one device, to arrays that nothing shards, and to sides of one."""
    mesh = draw(meshes(max_devices=max_devices, available=available, explicit=False))
    ranks = {"x": 2, "w_in": 2, "b_in": 1, "w_out": 2, "b_out": 1, "hidden": 2, "result": 2}
    layouts = Layouts(**{name: draw(specs(mesh, rank), label=name) for name, rank in ranks.items()})
    at = {
        "b": (layouts.x[0], layouts.hidden[0], layouts.result[0]),
        "d": (layouts.x[1], layouts.w_in[0]),
        "f": (layouts.w_in[1], layouts.b_in[0], layouts.hidden[1], layouts.w_out[0]),
        "e": (layouts.w_out[1], layouts.b_out[0], layouts.result[1]),
    }
    parts = [np.lcm.reduce([mesh.axis_size(axes) for axes in entries]) for entries in at.values()]
    b, d, f, e = (int(part) * draw(st.integers(1, 2), label="factor") for part in parts)
    return ModesCase(mesh, (b, d, f, e), layouts, draw(st.integers(0, 2**16), label="seed"))


def check_mlp(mlp: Mlp, case: ModesCase, engine: Engine, dtype: str = "float32") -> None:
    """The layer is that of the whole arrays, bit for bit.

    Raises:
        AssertionError: if not.
    """
    program = Program(
        lambda mesh: lambda x, *rest: [mlp(x, rest[:4], mesh=mesh, layouts=case.layouts)], case.arguments(dtype)[:5]
    )
    x, *parameters = case.arrays(dtype)[:5]
    (seen,) = engine.prepare(program, case.mesh)([x, *parameters])
    w_in, b_in, w_out, b_out = (a.astype(np.float64) for a in parameters)
    expected = oracle.mlp(x.astype(np.float64), (w_in, b_in, w_out, b_out)).astype(dtype)
    np.testing.assert_array_equal(seen, expected, err_msg=str(case), strict=True)


def check_loss(loss: Loss, case: ModesCase, engine: Engine) -> None:
    """In double precision the loss and its gradient by every argument are those of the whole arrays.

    Raises:
        AssertionError: if not.
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
        seen = engine.prepare(Program(build, case.arguments("float64")), case.mesh)(arrays)
    x, w_in, b_in, w_out, b_out, targets = arrays
    parameters = (w_in, b_in, w_out, b_out)
    of_x, of_targets, *others = oracle.loss_gradient(x, targets, parameters)
    expected = [oracle.loss(x, targets, parameters), of_x, *others, of_targets]
    names = ("the loss", *(f"the gradient by {n}" for n in ("x", "w_in", "b_in", "w_out", "b_out", "targets")))
    for name, one, other in zip(names, seen, expected, strict=True):
        room = CLOSE * max(1.0, np.abs(other).max(initial=0))
        np.testing.assert_allclose(one, other, rtol=0, atol=room, err_msg=f"{name}: {case}")


def check_layout(mlp: Mlp, case: ModesCase) -> None:
    """Compiled, the result is laid out as it was asked for, and every device holds its part.

    Raises:
        AssertionError: if not.
    """
    mesh = device_mesh(case.mesh)
    arrays = case.arrays("float32")[:5]
    placed: list[Any] = [
        jax.device_put(a, NamedSharding(mesh, partition_spec(s))) for a, s in zip(arrays, case.specs[:5], strict=True)
    ]
    result: Any = jax.jit(lambda x, *rest: mlp(x, rest, mesh=mesh, layouts=case.layouts))(*placed)
    wanted = NamedSharding(mesh, partition_spec(case.layouts.result))
    assert result.sharding.is_equivalent_to(wanted, 2), f"{case}: {result.sharding}, expected {wanted}"
    x, w_in, b_in, w_out, b_out = arrays
    blocks = shard(oracle.mlp(x, (w_in, b_in, w_out, b_out)), case.mesh, case.layouts.result)
    held = {s.device.id: np.asarray(s.data) for s in result.addressable_shards}
    ids = np.vectorize(lambda device: device.id, otypes=[int])(mesh.devices)
    for where in np.ndindex(*case.mesh.sizes):
        np.testing.assert_array_equal(held[int(ids[where])], blocks[where], err_msg=f"{case} at {where}")
