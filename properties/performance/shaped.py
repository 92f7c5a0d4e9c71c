"""Cases of whole arrays of given shapes, for timelines."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise

from shardproof.oracles.mesh import MeshCase, as_axes
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.described import Array, Signature
from shardproof.properties.contracts.roles import Roles, axes_of
from shardproof.properties.programs.examples import PARAMETERS, SHARDED, example

Shapes = Sequence[tuple[int, ...]]

PUBLISHED: dict[str, tuple[tuple[int, ...], ...]] = {
    **dict.fromkeys(SHARDED, ((512, 2048), (2048, 8192))),
    "all_gather_matmul_rhs": ((512, 2048), (2048, 2048)),
    "matmul_reduce_scatter": ((512, 8192), (8192, 2048)),
    "matmul_all_reduce": ((512, 8192), (8192, 2048)),
    "transformer_block": ((512, 2048), (2048, 8192), (8192, 2048)),
}
"""The default shapes of products: A[1024_X, 2048_Y] W[2048, 8192_Y] over two devices along X, and others with as many
multiplications."""

KNOWN = (*PARAMETERS, *SHARDED, *(name for name, contract in CONTRACTS.items() if contract.shapes))
"""The contracts with such cases."""


def shaped_case(
    contract: str,
    mesh: MeshCase,
    axis_name: str | tuple[str, ...],
    shapes: Shapes | None = None,
    dtype: str = "bfloat16",
) -> Case:
    """The case of a contract whose arrays, sharded over the axis tuple alone, have these shapes as a whole."""
    axes = as_axes(axis_name)
    case, whole = _plain(contract, mesh, axes if len(axes) > 1 else axes[0], dtype)
    given = whole if shapes is None else [*shapes]
    text, expected = (",".join("x".join(map(str, one)) for one in each) for each in (given, whole))
    if [*map(len, given)] != [*map(len, whole)]:
        raise RequestError(f"shapes={text}: expected as many sides as {expected} for {contract} on mesh {mesh}")
    for one, other in pairwise(given if contract in SHARDED else ()):
        if one[-1] != other[0]:
            raise RequestError(f"shapes={text}: expected {one[-1]} rows to contract with, got {other[0]}")
    return _cut(dataclasses.replace(case, roles=_roles(case, ())), given)


def with_layouts(case: Case, layouts: Sequence[Signature]) -> Case:
    """The same arrays in the layouts that an implementation states for arguments with roles (see `Claim.layouts`).

    The first of several axes gets the first role, and all others the last. A single axis gets the role that shards the
    first sharded array: `data` if examples are shared, `model` if features are.
    """
    if not layouts:
        return case
    (arrays,) = (one.arrays for one in layouts if len(one.arrays) == len(case.operands))
    roles, wholes = _roles(case, arrays), [case.global_shape(place) for place in range(len(case.operands))]
    operands = tuple(
        dataclasses.replace(operand, block=whole, placement=array.placement(axes_of(roles)))
        for operand, array, whole in zip(case.operands, arrays, wholes, strict=True)
    )
    return _cut(dataclasses.replace(case, operands=operands, roles=roles), wholes)


def _roles(case: Case, arrays: Sequence[Array]) -> Roles:
    """The axis tuples of a contract's roles; see `with_layouts`."""
    names = case.contract.call.roles
    if not names:
        return ()
    if len(case.axes) > 1:
        given = {names[0]: case.axes[:1], names[-1]: case.axes[1:]}
    else:
        given = {next((array.roles[0] for array in arrays if array.roles), names[0]): case.axes}
    return tuple((name, given.get(name, ())) for name in names)


def _cut(case: Case, wholes: Shapes) -> Case:
    """A case whose blocks are those of whole arrays in its layouts."""
    operands = []
    for shape, operand in zip(wholes, case.operands, strict=True):
        parts = [case.mesh.axis_size(entry) for entry in operand.placement.spec]
        if any(size % part for size, part in zip(shape, parts, strict=True)):
            text, most = "x".join(map(str, shape)), max(parts)
            raise RequestError(f"shape={text}: expected sides that divide by {most} where {operand} is sharded")
        block = tuple(size // part for size, part in zip(shape, parts, strict=True))
        operands.append(dataclasses.replace(operand, block=block))
    return dataclasses.replace(case, operands=tuple(operands))


def _plain(
    contract: str, mesh: MeshCase, axis_name: str | tuple[str, ...], dtype: str
) -> tuple[Case, list[tuple[int, ...]]]:
    """A case with the right layouts, and the default shapes of its arrays."""
    axes = as_axes(axis_name)
    if contract in CONTRACTS and CONTRACTS[contract].shapes:
        described, params = CONTRACTS[contract].shapes, CONTRACTS[contract].usual
        operands = tuple(
            Operand(shape, own or dtype, Placement(tuple(axes if i == at else () for i in range(len(shape)))))
            for shape, at, own in described
        )
        case = Case(CONTRACTS[contract], mesh, axis_name, operands, tuple(params.items()))
        return case, [shape for shape, _, _ in described]
    if contract not in KNOWN:
        raise RequestError(f"contract={contract!r}: expected one of {', '.join(KNOWN)}")
    case = example(contract, mesh, axis_name)
    case = dataclasses.replace(case, operands=tuple(dataclasses.replace(o, dtype=dtype) for o in case.operands))
    p = mesh.axis_size(axes)
    return case, [*PUBLISHED.get(contract, ((p * p * -(-8192 // (p * p)), 1024),))]


def parse_shapes(text: str) -> list[tuple[int, ...]]:
    """The shapes in `512x2048,2048x8192`."""
    shapes = [part.strip().split("x") for part in text.split(",")]
    if not all(side.isdecimal() and int(side) for shape in shapes for side in shape):
        raise RequestError(f"--shape={text}: expected the sides of whole arrays, as in 512x2048,2048x8192")
    found = [tuple(map(int, shape)) for shape in shapes]
    if any(math.prod(shape) > 2**48 for shape in found):
        raise RequestError(f"--shape={text}: expected at most 2**48 elements")
    return found
