"""Programs: an implementation under `shard_map`, on the mesh and layouts of a case.

A program is a function of global arrays that has not been traced yet; engines trace and run it.
Results leave *stacked*: as global arrays `[*sizes of the axes they vary along, *block]`, so that no
block is hidden behind a replica.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import TRANSFORMATIONS, Transformation

Global = Callable[..., Any]


@dataclass(frozen=True)
class Argument:
    """A global array that a program takes: `[*shape]`, laid out by `spec`."""

    shape: tuple[int, ...]
    dtype: Any
    spec: tuple[tuple[str, ...], ...]

    @property
    def partition_spec(self) -> PartitionSpec:
        """The layout as JAX knows it."""
        return partition_spec(self.spec)


@dataclass(frozen=True)
class Program:
    """What an engine runs: `build(mesh)` gives a function of global arrays."""

    build: Callable[[Any], Global]
    arguments: tuple[Argument, ...]
    compiled: bool = True

    def abstract_arguments(self, mesh: Any) -> list[jax.ShapeDtypeStruct]:
        """Its arguments without their values, laid out on a mesh, which may be an abstract one."""
        return [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, a.partition_spec))
            for a in self.arguments
        ]


class WrongResult(Exception):
    """What a function returns is not what its contract says: another tree, other shapes, no arrays."""


@dataclass
class Seen:
    """What was seen while tracing: the results' varying axes, shapes and dtypes."""

    varying: list[frozenset[str]] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtypes: list[Any] = field(default_factory=list)


def partition_spec(entries: Sequence[tuple[str, ...]]) -> PartitionSpec:
    """Tuples of axes as a PartitionSpec: `()` is None, one name stands for itself."""
    return PartitionSpec(*[None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries])


def manual_axes(case: Case) -> tuple[str, ...]:
    """The axes that `shard_map` makes manual, in mesh order."""
    return case.mesh.in_mesh_order(case.manual) if case.manual else case.mesh.axis_names


def local_function(case: Case, implementation: Implementation) -> Callable[..., list[jax.Array]]:
    """The implementation as a function of blocks, its axis and keyword arguments filled in.

    It raises `WrongResult` unless it returns an array, or a tree of arrays where its contract says so.
    """
    return called(case, implementation)


def called(case: Case, implementation: Implementation, **more: Any) -> Callable[..., list[jax.Array]]:
    """The implementation as a function of the operands alone; gives the leaves of what it returns.

    Raises:
        WrongResult: when it is called, unless it returns the tree of its contract.
    """
    contract = CONTRACTS[case.contract]

    def call(*operands: jax.Array) -> list[jax.Array]:
        by_place, by_keyword = contract.axis(case)
        given = contract.arguments(case, operands)
        result = implementation.function(*given, *by_place, **by_keyword, **case.keywords, **more)
        leaves: list[Any] = jax.tree.leaves(result)
        right = contract.returned(case, operands)
        if not _same_tree(result, right):
            wanted = "an array"
            if case.tree:
                wanted = f"a tree like its operand, {shown(right)}"
            elif contract.results is not None:
                wanted = f"a tree like {right}"
            raise WrongResult(f"returns {shown(result)}: expected {wanted}")
        for leaf in leaves:
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
                raise WrongResult(f"returns {shown(leaf)}: expected an array")
        return leaves

    return call


def _same_tree(one: Any, other: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (one, other)]
    return bool(structures[0] == structures[1])


def shown(result: Any) -> str:
    """What a function returned, with types in place of the numbers."""

    def short(leaf: Any) -> str:
        if isinstance(leaf, jax.Array | np.ndarray | np.generic):
            return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        return type(leaf).__name__

    return str(jax.tree.map(short, result)).replace("'", "")


def arguments(case: Case, transformation: Transformation) -> tuple[Argument, ...]:
    """The global arrays that the operands are."""
    batched = transformation.batched
    return tuple(
        Argument(
            o.placement.global_shape(o.block, case.mesh, batched=batched),
            o.numpy_dtype,
            o.placement.partition(batched=batched),
        )
        for o in case.operands
    )


def results_of(case: Case, results: Sequence[jax.Array], seen: Seen, out: str) -> list[jax.Array]:
    """The results of a call on blocks as they leave `shard_map`, see `forward`; what they are goes to `seen`.

    Raises:
        WrongResult: if what is to be placed has other dimensions.
    """
    known = [case.mesh.in_mesh_order(axes) for axes in seen.varying]
    seen.varying = [frozenset(jax.typeof(y).manual_axis_type.varying) for y in results]
    seen.shapes = [tuple(y.shape) for y in results]
    seen.dtypes = [y.dtype for y in results]
    axes = known if out == "by type" else [manual_axes(case)] * len(results)
    if out == "placed":
        assert case.out is not None
        axes = [placed.stacked for placed in case.out]
    return [y.reshape(*(1 for _ in a), *y.shape) for y, a in zip(results, axes, strict=True)]


def forward(case: Case, implementation: Implementation, seen: Seen, *, out: str = "stacked") -> Program:
    """The program that computes the results.

    Arguments:
        case: the structure.
        implementation: what is called.
        seen: filled while tracing.
        out: `"stacked"`: every result as `[*manual sizes, *block]`, all blocks visible.
            `"by type"`: stacked over the axes that `seen.varying` already holds, so that a result typed
            invariant leaves as one value. `"placed"`: as `case.out` says.
    """
    if implementation.whole:
        return _of_whole(case, implementation, seen, out)
    transformation = TRANSFORMATIONS[case.around]
    operands = arguments(case, transformation)
    specs = _out_specs(case, seen, out)

    def local(*shards: jax.Array) -> list[jax.Array]:
        call = transformation.wrap(local_function(case, implementation))
        blocks = []
        for shard, operand in zip(shards, case.operands, strict=True):
            batch = shard.shape[len(operand.placement.stacked) :][:1] if transformation.batched else ()
            blocks.append(shard.reshape(*batch, *operand.block))
        return results_of(case, list(call(*blocks)), seen, out)

    def build(mesh: Any) -> Global:
        return jax.shard_map(
            local,
            mesh=mesh,
            in_specs=tuple(argument.partition_spec for argument in operands),
            out_specs=specs,
            check_vma=transformation.checked,
            axis_names=set(case.manual),
        )

    return Program(build, operands, compiled=transformation.compiled)


def _out_specs(case: Case, seen: Seen, out: str) -> Any:
    if out == "stacked":
        return partition_spec([(name,) for name in manual_axes(case)])
    if out == "placed":
        assert case.out is not None
        return [partition_spec(placed.partition()) for placed in case.out]
    known = [case.mesh.in_mesh_order(axes) for axes in seen.varying]
    return [partition_spec([(name,) for name in axes]) for axes in known]


def _of_whole(case: Case, implementation: Implementation, seen: Seen, out: str) -> Program:
    """The program of a function of global arrays: what it gives is laid out as the contract says, then taken apart."""
    transformation, contract = TRANSFORMATIONS[case.around], CONTRACTS[case.contract]
    operands = arguments(case, transformation)
    assert contract.placed is not None
    layouts = [partition_spec(placed.partition(batched=transformation.batched)) for placed in contract.placed(case)]
    specs = _out_specs(case, seen, out)

    def build(mesh: Any) -> Global:
        call = transformation.wrap(called(case, implementation, mesh=mesh))

        def whole(*arrays: jax.Array) -> list[jax.Array]:
            results = list(call(*arrays))
            for result, layout in zip(results, layouts, strict=True):
                if result.ndim != len(layout):
                    raise WrongResult(f"returns an array of {result.ndim} dimensions: expected {len(layout)}")
            apart: Any = jax.shard_map(
                lambda *blocks: results_of(case, blocks, seen, out), mesh=mesh, in_specs=tuple(layouts), out_specs=specs
            )
            return list(apart(*results))

        return whole

    return Program(build, operands, compiled=transformation.compiled)


def derivatives(
    case: Case, implementation: Implementation, seen: Seen, *, forward_mode: bool = True, reverse_mode: bool = True
) -> tuple[Program, list[Placement]]:
    """The program `(operands, tangents, cotangents) -> (results, tangents, gradients)`, and the results' placements.

    Operands that have no gradient have no tangent either. Of a mode that is not asked for there are no tangents, or no
    gradients. `seen` must come from a trace of `forward`: results leave by type, so that cotangents of invariant
    results are invariant.
    """
    transformation = TRANSFORMATIONS[case.around]
    operands = arguments(case, transformation)
    axes = [case.mesh.in_mesh_order(varying) for varying in seen.varying]
    placements = [Placement(((),) * len(shape), a) for shape, a in zip(seen.shapes, axes, strict=True)]
    cotangents = tuple(
        Argument((*(case.mesh.shape[n] for n in a), *shape), dtype, tuple((n,) for n in a))
        for a, shape, dtype in zip(axes, seen.shapes, seen.dtypes, strict=True)
    )
    moving = CONTRACTS[case.contract].moving(case)
    count, pairs = len(operands), len(operands) + len(moving)
    own = dataclasses.replace(seen)
    program = forward(case, implementation, own, out="by type")

    def build(mesh: Any) -> Global:
        function = program.build(mesh)

        def run(*arrays: jax.Array) -> list[jax.Array]:
            xs, tangents, cts = arrays[:count], arrays[count:pairs], arrays[pairs:]

            def of_moving(*chosen: jax.Array) -> Any:
                whole = dict(enumerate(xs)) | dict(zip(moving, chosen, strict=True))
                return function(*whole.values())

            primal = tuple(xs[i] for i in moving)
            if not reverse_mode:
                ys, pushed = jax.jvp(of_moving, primal, tangents)
                return [*ys, *pushed]
            ys, pullback = jax.vjp(of_moving, *primal)
            grads = pullback(list(cts))
            pushed = jax.jvp(of_moving, primal, tangents)[1] if forward_mode else []
            return [*ys, *pushed, *grads]

        return run

    given = (*operands, *(operands[i] for i in moving), *cotangents)
    return Program(build, given, compiled=transformation.compiled), placements


def pullback(case: Case, implementation: Implementation, seen: Seen) -> Program:
    """The program `(operands, cotangents) -> gradients`, reverse mode alone; `seen` as for `derivatives`."""
    moving = CONTRACTS[case.contract].moving(case)
    count, pairs = len(case.operands), len(case.operands) + len(moving)
    whole, _ = derivatives(case, implementation, seen, forward_mode=False)

    def build(mesh: Any) -> Global:
        function = whole.build(mesh)

        def run(*arrays: jax.Array) -> Any:
            tangents = (arrays[i] for i in moving)
            return function(*arrays[:count], *tangents, *arrays[count:])[-len(moving) :]

        return run

    return Program(build, (*whole.arguments[:count], *whole.arguments[pairs:]), compiled=whole.compiled)
