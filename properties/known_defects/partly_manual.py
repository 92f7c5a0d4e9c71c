"""The equations at fault where some axes of a mesh are manual and others are left to the compiler."""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.engines.simulate.liveness import equations, opened, subjaxprs
from shardproof.properties.known_defects.faults import dtype, first, shape

ALL_REDUCES = ("psum", "psum_invariant", "pmax", "pmin")
REDUCTIONS = (*ALL_REDUCES, "reduce_scatter")


def nested_out_of_order(case: Case, program: Any) -> Any:
    """A `shard_map` in another, of an earlier axis of the mesh, where the two leave one to the compiler."""

    def out_of_order(equation: Any, inside: Any) -> bool:
        order = list(equation.params["mesh"].axis_names)
        outer, inner = ({order.index(name) for name in e.params["newly_manual_axes"]} for e in (equation, inside))
        return len(outer | inner) < len(order) and bool(inner) and bool(outer) and max(outer) > min(inner)

    for equation in equations(program):
        if equation.primitive.name == "shard_map":
            for inside in equations(equation.params["jaxpr"]):
                if inside.primitive.name == "shard_map" and out_of_order(equation, inside):
                    return inside.primitive
    return None


def scatter_beside_explicit(case: Case, program: Any) -> Any:
    """A psum_scatter in a `shard_map` that leaves an explicit axis to the compiler, or what it is the transpose of.

    An untiled one is not even traced, so that of its gather no gradient is.
    """
    kinds = case.mesh.types
    if not case.manual or all(kinds[name] != "explicit" for name in kinds if name not in case.manual):
        return None
    return first(
        program,
        lambda e: e.primitive.name == "reduce_scatter" or (e.primitive.name == "all_gather" and not e.params["tiled"]),
    )


def bfloat16_beside_automatic(case: Case, program: Any) -> Any:
    """A reduction of bfloat16 over devices in a `shard_map` that leaves an axis to the compiler."""
    found = (e for e in _beside_automatic(program) if e.primitive.name in REDUCTIONS)
    return next((e.primitive for e in found if dtype(e).name == "bfloat16"), None)


def all_reduce_of_one_beside_automatic(case: Case, program: Any) -> Any:
    """A sum, maximum or minimum over one device in a `shard_map` that leaves an axis to the compiler."""

    def of_one(equation: Any) -> bool:
        if equation.primitive.name not in ALL_REDUCES:
            return False
        axes = [name for name in equation.params["axes"] if isinstance(name, str)]  # a number is a dimension of a vmap
        return bool(axes) and all(case.mesh.shape.get(name) == 1 for name in axes)

    return next((e.primitive for e in _beside_automatic(program) if of_one(e)), None)


def along_one_explicit(case: Case, program: Any) -> Any:
    """A `shard_map` without `jit`, on a mesh with an explicit axis of size one beside an automatic one."""
    axes = {(kind, case.mesh.shape[name] > 1) for name, kind in case.mesh.types.items()}
    if "eager" not in case.chain or not {("explicit", False), ("auto", True)} <= axes:
        return None
    return first(program, lambda e: e.primitive.name == "shard_map")


def gather_beside_two_automatic(case: Case, program: Any) -> Any:
    """A part taken of an array that can be sharded along two dimensions, over two axes left to the compiler."""

    def taken(equation: Any) -> bool:
        if equation.primitive.name != "gather" or sum(size > 1 for size in shape(equation)) < 2:
            return False
        indexed = equation.params["dimension_numbers"].start_index_map
        return any(equation.params["slice_sizes"][i] < shape(equation)[i] for i in indexed)

    for equation, manual, mesh in _partly_manual(program):
        sizes = [math.prod(mesh[name] for name in manual), *(mesh[name] for name in mesh if name not in manual)]
        if sizes[0] > 1 and sum(size > 1 for size in sizes[1:]) > 1 and taken(equation):
            return equation.primitive
    return None


def _beside_automatic(program: Any) -> Iterator[Any]:
    """The equations around which `shard_map`s make some axes of their mesh manual, and not all of them."""
    return (equation for equation, _, _ in _partly_manual(program))


def _partly_manual(
    jaxpr: Any, manual: frozenset[str] = frozenset(), mesh: Mapping[str, int] = MappingProxyType({})
) -> Iterator[tuple[Any, frozenset[str], Mapping[str, int]]]:
    """The same, each with the axes that are manual, and all of the mesh with their sizes."""
    for equation in opened(jaxpr)[0].eqns:
        inside, among = manual, mesh
        if equation.primitive.name == "shard_map":
            inside |= frozenset(equation.params["newly_manual_axes"])
            among = equation.params["mesh"].shape
        elif manual and manual < set(mesh):
            yield equation, manual, mesh
        for inner in subjaxprs(equation):
            yield from _partly_manual(inner, inside, among)
