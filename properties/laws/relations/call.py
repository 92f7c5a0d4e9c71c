"""One call of a mixture of experts on global arrays: where, with which options, and how an engine runs it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from shardproof.oracles.mesh import MeshCase, as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Argument, Program

AxisName = str | tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where a layer runs.

    Arguments:
        mesh: the mesh.
        expert: the axis or axis tuple that shards experts, and tokens.
        data: that which shards tokens besides, of a layer of global arrays; None: of one of blocks, which has none.
    """

    mesh: MeshCase
    expert: AxisName
    data: AxisName | None = None

    @classmethod
    def of(cls, case: Case) -> "Place":
        """That of a case."""
        roles = dict(case.roles)
        return cls(case.mesh, roles["expert"], roles["data"]) if roles else cls(case.mesh, case.axis_name)

    @property
    def rows(self) -> tuple[str, ...]:
        """The axes that shard tokens, in their order."""
        return (*as_axes(self.data or ()), *as_axes(self.expert))

    @property
    def shards(self) -> int:
        """Into how many blocks tokens are divided."""
        return self.mesh.axis_size(self.rows)

    @property
    def participants(self) -> int:
        """Into how many blocks experts are divided."""
        return self.mesh.axis_size(self.expert)

    @property
    def in_mesh_order(self) -> bool:
        """Whether tokens are numbered in the order of the mesh."""
        long = self.mesh.longer(self.rows)
        return tuple(long) == self.mesh.in_mesh_order(long)

    def __str__(self) -> str:
        axes = f"over {self.expert!r}" if self.data is None else f"expert={self.expert!r}, data={self.data!r}"
        return f"mesh {self.mesh}, {axes}"


@dataclass(frozen=True, eq=False)
class Call:
    """A call.

    Arguments:
        place: where it runs.
        options: the keyword arguments.
        tokens: `[N, D]`, of all participants, in logical order.
        router: `[D, E]`.
        experts: `[E, D, F]`.
    """

    place: Place
    options: Mapping[str, Any]
    tokens: np.ndarray
    router: np.ndarray
    experts: np.ndarray

    def with_options(self, **options: Any) -> "Call":
        """This call with other values of some options."""
        return dataclasses.replace(self, options={**self.options, **options})

    @property
    def arrays(self) -> list[np.ndarray]:
        """Its operands."""
        return [self.tokens, self.router, self.experts]

    def structure(self) -> object:
        """What is traced: calls that have the same are runs of one program."""
        return self.place, tuple(sorted(self.options.items())), tuple(a.shape for a in self.arrays)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        blocks = f"{len(self.tokens)} tokens, {len(self.experts)} experts"
        return f"{blocks}, {options}, on {self.place}"


Runs = Sequence[list[np.ndarray]]
"""Of each of several calls, its results."""


def run(implementation: Implementation, engine: Engine, calls: Sequence[Call]) -> Runs:
    """The results `[N, F]` of calls; those of one structure are runs of one program."""
    return _run(engine, calls, lambda call: _program(implementation, call), [call.arrays for call in calls])


def run_backward(implementation: Implementation, engine: Engine, calls: Sequence[Call], cotangents: np.ndarray) -> Runs:
    """The results of calls, and their gradients by tokens `[N, D]` and by experts `[E, D, F]`, by reverse mode."""
    return _run(
        engine, calls, lambda call: _backward(implementation, call), [[*call.arrays, cotangents] for call in calls]
    )


def _run(
    engine: Engine, calls: Sequence[Call], program: Callable[[Call], Program], sets: Sequence[list[np.ndarray]]
) -> Runs:
    if len({call.structure() for call in calls}) == 1:
        return [*engine.prepare(program(calls[0]), calls[0].place.mesh).each(sets)]
    return [engine.prepare(program(call), call.place.mesh)(arrays) for call, arrays in zip(calls, sets, strict=True)]


def _layer(implementation: Implementation, call: Call, mesh: Any) -> Any:
    """A layer as a function of global arrays."""
    place, options, function = call.place, call.options, implementation.function
    if implementation.whole:
        return lambda *xs: function(*xs, mesh=mesh, data=place.data, expert=place.expert, **options)
    return jax.shard_map(
        lambda *blocks: function(*blocks, place.expert, **options),
        mesh=mesh,
        in_specs=(P(place.rows), P(), P(as_axes(place.expert))),
        out_specs=P(place.rows),
    )


def _program(implementation: Implementation, call: Call) -> Program:
    return Program(lambda mesh: lambda *xs: [_layer(implementation, call, mesh)(*xs)], _arguments(call))


def _backward(implementation: Implementation, call: Call) -> Program:
    def build(mesh: Any) -> Any:
        layer = _layer(implementation, call, mesh)

        def pulled(tokens: Any, router: Any, experts: Any, cotangents: Any) -> list[Any]:
            result, pull = jax.vjp(lambda x, w: layer(x, router, w), tokens, experts)
            return [result, *pull(cotangents)]

        return pulled

    tokens, router, experts = _arguments(call)
    results = (len(call.tokens), call.experts.shape[2])
    return Program(build, (tokens, router, experts, dataclasses.replace(tokens, shape=results)))


def _arguments(call: Call) -> tuple[Argument, ...]:
    rows, of_experts = (call.place.rows, ()), (as_axes(call.place.expert), (), ())
    layouts = (rows, ((), ()), of_experts)
    return tuple(Argument(a.shape, a.dtype, layout) for a, layout in zip(call.arrays, layouts, strict=True))
