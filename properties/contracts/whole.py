"""Contracts of operations that are meant on whole arrays: any layer, loss or step, by its meaning without a mesh."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from shardproof.oracles.layout import shard, unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.transposes import enter, leave
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.contract import Contract, Option, Scope
from shardproof.properties.contracts.described import Signature, indices
from shardproof.properties.contracts.drawing import made_manual
from shardproof.properties.contracts.roles import Conditions, axes_of, meshes_and_roles, sizes_of_dimensions

Arrays = Sequence[np.ndarray]

MOST_ELEMENTS = 2**14
"""Of one global array on a large mesh: the reference takes it whole."""


UNCHECKED, INSIDE = ("no_vma",), ("partial_manual",)
"""Transformations that are about the types in `shard_map`, and about its axes."""


class Reference(Protocol):
    """What an operation means on whole arrays, each in a dtype that loses nothing that matters.

    `dtypes` are those of the arguments' leaves in the case at hand, `options` its keyword arguments, and `doubt` says
    how far off values and derivatives may be (see `Contract`).
    """

    doubt: tuple[float, float]

    def value(self, arrays: Arrays, dtypes: Sequence[np.dtype], options: Mapping[str, Any]) -> list[np.ndarray]:
        """The results."""

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Their tangents, given those of some of the leaves."""

    def pullback(
        self,
        arrays: Arrays,
        cotangents: Arrays,
        moving: Sequence[int],
        dtypes: Sequence[np.dtype],
        options: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """The cotangents of some of the leaves, given those of the results."""

    def result_dtypes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.dtype]:
        """The dtypes of the results, given shapes and dtypes of the leaves."""


@st.composite
def whole_cases(
    draw: st.DrawFn, name: str, scope: Scope, signature: Signature, conditions: Conditions, local: bool
) -> Case:
    """Cases of an operation on whole arrays. Shrinks to one device, and to the smallest sizes, the first dtype."""
    unfit = {*(UNCHECKED if conditions.differentiates or not local else ()), *(() if local else INSIDE)}
    around = draw(st.sampled_from([a for a in scope.arounds if a not in unfit] or ["jit"]), label="around")
    mesh, roles = draw(meshes_and_roles(scope, around, signature.roles, conditions, explicit=local))
    axes = axes_of(roles)
    members = {role: mesh.axis_size(a) for role, a in axes.items()}
    sizes = draw(sizes_of_dimensions(signature, conditions, members, scope))
    dtype = draw(st.sampled_from(conditions.dtypes), label="dtype")
    operands = []
    for array in signature.arrays:
        placement, shape = array.placement(axes), array.shape(sizes, members)
        if math.prod(shape) > MOST_ELEMENTS and scope.large:
            reject()
        block = tuple(n // mesh.axis_size(entry) for n, entry in zip(shape, placement.spec, strict=True))
        operands.append(Operand(block, dtype if array.dtype == "float" else array.dtype, placement))
    every = tuple(axis for role in axes.values() for axis in role)
    manual, placed = draw(made_manual(around, mesh, every, operands))
    params = {
        option: draw(st.sampled_from(values), label=option) for option, values in sorted(conditions.options.items())
    }
    seed = draw(st.integers(0, 2**16), label="seed")
    kinds = ("real", "exact") if scope.large else ("real", "exact", "real")
    return Case(
        contract=name,
        mesh=mesh,
        axis_name=every,
        operands=placed,
        params=tuple(params.items()),
        data=tuple(Data(kind, seed + i) for i, kind in enumerate(kinds)),
        around=around,
        manual=manual,
        roles=roles,
    )


def whole_contract(
    name: str,
    signature: Signature,
    reference: Reference,
    *,
    conditions: Conditions | None = None,
    local: bool = True,
    **more: Any,
) -> Contract:
    """The contract of an operation whose reference takes whole arrays, and whose blocks are parts of these.

    Arguments:
        name: its name.
        signature: its arguments and results.
        reference: what it means.
        conditions: what is drawn; None: anything.
        local: whether it is called inside `shard_map`; else neither explicit axes nor what concerns `shard_map` is
            drawn.
        more: of `Contract`.
    """
    chosen = conditions or Conditions()
    moving = [i for i, array in enumerate(signature.arrays) if array.gradient]

    def placed(case: Case) -> tuple[Placement, ...]:
        axes = axes_of(case.roles)
        return tuple(array.placement(axes) for array in signature.results)

    def dtypes(case: Case) -> list[np.dtype]:
        return [operand.numpy_dtype for operand in case.operands]

    def wholes(case: Case, blocks: Arrays, places: Sequence[int]) -> list[np.ndarray]:
        specs = [case.operands[i].placement.spec for i in places]
        return [unshard(first_replicas(b, case.mesh, s), case.mesh, s) for b, s in zip(blocks, specs, strict=True)]

    def apart(case: Case, results: Arrays) -> list[np.ndarray]:
        expected = placed(case)
        if len(results) != len(expected) or any(y.ndim != len(p.spec) for y, p in zip(results, expected, strict=True)):
            told = ", ".join(str(y.shape) for y in results)
            raise ValueError(
                f"the reference of {name} returns {told}: expected {', '.join(map(str, signature.results))}"
            )
        return [shard(y, case.mesh, p.spec) for y, p in zip(results, expected, strict=True)]

    def oracle(case: Case, blocks: Arrays) -> list[np.ndarray]:
        every = range(len(blocks))
        return apart(case, reference.value(wholes(case, blocks, every), dtypes(case), case.keywords))

    def pushforward(case: Case, blocks: Arrays, tangents: Arrays) -> list[np.ndarray]:
        along = dict(zip(moving, wholes(case, tangents, moving), strict=True))
        xs = wholes(case, blocks, range(len(blocks)))
        return apart(case, reference.pushforward(xs, along, dtypes(case), case.keywords))

    def pullback(case: Case, blocks: Arrays, cotangents: Arrays) -> list[np.ndarray]:
        cts = [leave(ct, case.mesh, p.spec) for ct, p in zip(cotangents, placed(case), strict=True)]
        xs = wholes(case, blocks, range(len(blocks)))
        pulled = reference.pullback(xs, cts, moving, dtypes(case), case.keywords)
        return [enter(ct, case.mesh, case.operands[i].placement.spec) for i, ct in zip(moving, pulled, strict=True)]

    def result_dtypes(case: Case, given: Sequence[np.dtype]) -> Sequence[np.dtype]:
        shapes = [
            tuple(n * case.mesh.axis_size(axes) for n, axes in zip(o.block, o.placement.spec, strict=True))
            for o in case.operands
        ]
        return reference.result_dtypes(shapes, dtypes(case), case.keywords)

    def adapt(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
        found = []
        sizes = {
            d.name: n * case.mesh.axis_size(axes)
            for array, o in zip(signature.arrays, case.operands, strict=True)
            for d, n, axes in zip(array.dimensions, o.block, o.placement.spec, strict=True)
        }
        for array, x in zip(signature.arrays, arrays, strict=True):
            below = int(array.below) if array.below.isdigit() else sizes.get(array.below, 0)
            found.append(indices(x, below) if array.below else x)
        return found

    has_gradient = bool(moving) and all(array.floating for array in signature.results)
    return Contract(
        name=name,
        cases=lambda scope: whole_cases(name, scope, signature, chosen, local),
        oracle=oracle,
        pushforward=pushforward,
        pullback=pullback,
        invariant=False,
        parameters=tuple(sorted(chosen.options)),
        violations=(),
        operands=signature.names,
        differentiable=lambda case: has_gradient,
        has_gradient=has_gradient,
        terms=lambda case: max([1, *(side for o in case.operands for side in o.block)]),
        degree=3,
        result_dtypes=result_dtypes,
        features=frozenset(),
        adapt=adapt,
        auxiliary=frozenset(signature.names[i] for i in range(len(signature.arrays)) if i not in moving),
        options={option: Option(partial(_among, values)) for option, values in chosen.options.items()},
        nonlinear=True,
        doubt=reference.doubt,
        finite=False,
        generic=True,
        roles=signature.roles,
        tree=signature.tree,
        results=None if isinstance(signature.result_tree, str) else signature.result_tree,
        placed=placed,
        **more,
    )


def _among(values: tuple[Any, ...], value: Any) -> bool:
    """Whether a value is one of some, True being no 1."""
    return any(type(value) is type(one) and value == one for one in values)


def first_replicas(blocks: np.ndarray, mesh: MeshCase, spec: Sequence[Sequence[str]]) -> np.ndarray:
    """Blocks `[*mesh.sizes, *block]` as if all replicas held what the first one does."""
    varying = {name for entry in spec for name in entry}
    first = blocks[tuple(slice(None) if name in varying else slice(1) for name in mesh.axis_names)]
    return np.broadcast_to(first, blocks.shape)
