"""Contracts of operations by their arguments: the dimensions of each, and the axis tuples that shard them."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import COMPOSE, DERIVING, UNCHECKED, Chain
from shardproof.properties.cases.strategies import chains, dtypes, index_groups, specs
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import (
    Call,
    Contract,
    Option,
    Oracle,
    Scope,
    Violation,
    at_least_a_byte,
    of_blocks,
)
from shardproof.properties.contracts.described import AXIS, Array, Dimension, Signature
from shardproof.properties.contracts.drawing import (
    LEADING,
    AxisName,
    Drawn,
    Given,
    complete,
    draw_small_sizes,
    floats,
    placements,
    without,
)
from shardproof.properties.contracts.forbidden import AXES, PARTLY
from shardproof.properties.contracts.roles import (
    Conditions,
    axes_of,
    meshes_and_roles,
    sizes_of_dimensions,
)
from shardproof.properties.contracts.whole import fitting, kept_by, placed_by, reference_oracle

INDEPENDENT = "independent_operands"
BASIC = frozenset({"explained_errors", "replicated_operands", "x64"})
"""The features of most contracts."""

MOST_IN_GROUPS = 16
"""The most participants that are divided into groups."""

MOST_ELEMENTS = 2**14
"""The most elements of one global array on a large mesh: the reference takes it whole."""

MOST_ON_ALL = 2**16
"""The most elements of one array on all devices of a large mesh: if a dimension is sharded in one array and whole in
another, as that of experts in a router, all devices together hold the square, and intermediates are larger still."""

MOST_STATED = 2**24
"""The most elements of one global array: to sample roundings takes seventy copies of it in doubles, which are 9 GiB."""

Params = dict[str, Any]

DrawSizes = Callable[[st.DrawFn, Given], Drawn]
"""Draws sizes and options."""

Dtypes = Callable[[Scope, int, int, Params], st.SearchStrategy[str]]
"""The dtypes of a case, given how many devices there are, how many participants, and the keyword arguments."""

Kinds = Callable[[Scope, str, Params], Sequence[str]]
"""The kinds of data of a case, of its dtype, and with its keyword arguments."""


def moved_dtypes(scope: Scope, devices: int, *given: Any) -> st.SearchStrategy[str]:
    """All dtypes for what is moved, in which a gradient may add up a term of each device."""
    return dtypes(floating=scope.floating, terms=devices if scope.floating else 1, wide="x64" in scope.features)


def with_invalid(*usual: str) -> Kinds:
    """The kinds of the data sets of a case: the usual ones, and `special` if the claim is made of `invalid_indices`."""
    return lambda scope, dtype, params: (*usual, *(("special",) if "invalid_indices" in scope.features else ()))


@st.composite
def cases(
    draw: st.DrawFn,
    contract: Contract,
    scope: Scope,
    signatures: Sequence[Signature],
    conditions: Conditions,
    draw_sizes: DrawSizes,
    dtypes_of: Dtypes,
    kinds_of: Kinds,
    leading: int,
) -> Case:
    """Cases of one operation.

    Shrinks to one device, the first signature and the first axis, the smallest sizes, and the first dtype.
    """
    possible = [one for one in scope.layouts or signatures if one.feature in ("", *scope.features)]
    signature = possible[0] if len(possible) == 1 else draw(st.sampled_from(possible), label="signature")
    chain = draw(chains(scope.chains.without(_excluded(contract, conditions))), label="chain")
    mesh, roles = meshes_and_roles(draw, scope, chain, signature.roles if contract.call.roles else (), conditions)
    axes = axes_of(roles)
    participants = dict.fromkeys(signature.roles, 1) | {role: mesh.axis_size(some) for role, some in axes.items()}
    groups = _groups(draw, contract, scope, chain, participants.get(AXIS, 1))
    participants |= {AXIS: max(map(len, groups))} if groups else {}
    given = Given(scope, math.prod(participants.values()), signature.parts(participants))
    drawn = draw_sizes(draw, given)
    sizes = {name: n if isinstance(n, tuple) else n * given.parts[name] for name, n in drawn.sizes.items()}
    stated = contract.call.options.items()
    params = drawn.options | ({"axis_index_groups": groups} if groups else {})
    params |= {name: draw(sampled(one.values), label=name) for name, one in stated if one.values}
    dtype = draw(dtypes_of(scope, mesh.size, given.participants, params), label="dtype")
    blocks = [array.block(sizes, participants) for array in signature.arrays]
    if contract.call.roles:
        placed = [array.placement(axes) for array in signature.arrays]
        _limit(scope, mesh, blocks, placed)
        axis_name: AxisName = tuple(dict.fromkeys(axis for some in axes.values() for axis in some))
    else:
        placed = _layouts(draw, contract, scope, mesh, axes[AXIS], signature, blocks, leading)
        ((_, axis_name),), roles = roles, ()
    named = zip(signature.names, signature.arrays, strict=True)
    own = [drawn.dtypes.get(name) or (dtype if array.dtype == "float" else array.dtype) for name, array in named]
    operands = tuple(map(Operand, blocks, own, placed))
    if drawn.another:
        operands += (dataclasses.replace(operands[0], dtype=drawn.another),)
    tree = bool(drawn.another)
    case = Case(contract, mesh, axis_name, operands, tuple(params.items()), chain=chain, tree=tree, roles=roles)
    return complete(draw, scope, case, kinds_of(scope, dtype, params))


def _excluded(contract: Contract, conditions: Conditions) -> Chain:
    """The links that are not drawn under these conditions."""
    excluded = UNCHECKED if conditions.differentiates or not conditions.check_vma else ()
    if not conditions.check_vma:  # inside of shard_map JAX knows no replicas then, of which it must add up gradients
        excluded = (*excluded, *DERIVING)
    if contract.oracle.holds is not None:  # a second call would depend on which results the first one chose
        excluded = (*excluded, COMPOSE)
    return excluded


def _groups(
    draw: st.DrawFn, contract: Contract, scope: Scope, chain: Chain, participants: int
) -> tuple[tuple[int, ...], ...]:
    """Groups of participants, if they are claimed, or none."""
    # what is invariant differs between groups, which only unchecked types can express
    grouped = {"groups", "uneven_groups"} & scope.features and (not contract.invariant or "no_vma" in chain)
    if grouped and participants <= MOST_IN_GROUPS and draw(st.booleans(), label="groups"):
        return index_groups.within(draw, participants, uneven="uneven_groups" in scope.features)
    return ()


def _limit(scope: Scope, mesh: MeshCase, blocks: Sequence[tuple[int, ...]], placed: Sequence[Placement]) -> None:
    """Has Hypothesis draw again where an array has too many elements."""
    for block, placement in zip(blocks, placed, strict=True):
        whole = math.prod(placement.global_shape(block, mesh))
        many = whole > MOST_ELEMENTS or math.prod(block) * mesh.size > MOST_ON_ALL
        if (many and scope.large) or whole > MOST_STATED:
            reject()


def _layouts(
    draw: st.DrawFn,
    contract: Contract,
    scope: Scope,
    mesh: MeshCase,
    axes: tuple[str, ...],
    signature: Signature,
    blocks: Sequence[tuple[int, ...]],
    leading: int,
) -> list[Placement]:
    """The layouts of arguments, of which those without the axis tuple are the same on all participants.

    Blocks are stacked and their dimensions sharded in any way, unless some dimension is described as `@others` or
    `@any`: then only the dimensions that are described with a role are sharded. Arguments of the same dimensions, such
    as a mask and its values, have the same layout.
    """
    replicated = "replicated_operands" in scope.features and draw(st.booleans(), label="replicated operand")
    others = [axis for axis in mesh.axis_names if axis not in axes]
    allowed = {"others": others, "any": mesh.axis_names}
    stated = not {*allowed}.isdisjoint(signature.roles)
    together = INDEPENDENT in contract.features - scope.features
    placed: list[Placement] = []
    known: dict[tuple[Dimension, ...], Placement] = {}
    for array, block in zip(signature.arrays, blocks, strict=True):
        if array.dimensions in known and (together or not array.floating):
            placement = known[array.dimensions]
        elif stated:
            every = [
                axes if role == AXIS else specs.within(draw, mesh, 1, allowed=allowed[role])[0] if role else ()
                for role in ("".join(dimension.roles) for dimension in array.dimensions)
            ]
            placement = Placement((*[()] * len(block), *every)[-len(block) :])  # further dimensions are in front
        else:
            required = axes if AXIS in array.roles and not replicated else ()
            placement = placements.within(draw, mesh, len(block), required=required)
        partly = PARTLY in contract.violations and not {*axes} <= placement.axes
        varies = not {AXIS, "any"}.isdisjoint(array.roles)
        placed.append(placement if varies and not partly else without(placement, axes))
        known[array.dimensions] = placed[-1]
    if together:
        beside = [axis for axis in others if axis not in placed[leading].axes]
        placed = [without(placement, beside) for placement in placed]
    return placed


def operation(
    name: str,
    oracle: Any,
    arguments: Mapping[str, Any] | Signature | Sequence[Signature],
    *,
    conditions: Conditions | None = None,
    draw_sizes: DrawSizes | None = None,
    options: Mapping[str, Option] | None = None,
    dtypes: Dtypes | None = None,
    kinds: Sequence[str] | Kinds = ("exact", "distinct", "real", "scaled", "real"),
    features: frozenset[str] = BASIC,
    violations: tuple[Violation, ...] = (),
    most: int | None = None,
    leading: int = 0,
    keyword_axis: bool = False,
    usual_sizes: Mapping[str, int] | None = None,
    **more: Any,
) -> Contract:
    """The contract of an operation whose arrays are described by their dimensions, and the axes that shard them.

    Arguments:
        name: its public name.
        oracle: its meaning: an `Oracle`; an object of `oracles.whole` on whole arrays; or one for `of_blocks`.
        arguments: by name, dimensions, an `Array`, or a pytree of them, in which `tokens@axis_name` is what the
            participants of the one axis tuple share; or a signature with roles of its own; or several signatures, of
            different numbers of leaves, of which a case has one. They have the same results and roles.
        conditions: of cases whose axis tuples have names, the roles; None: there is one, `axis_name`.
        draw_sizes: draws sizes for one axis tuple, and options that have no values of their own; None: small sizes.
        options: its keyword arguments; None: those of the conditions.
        dtypes: the dtypes of a case; None: real floats, or those of the conditions.
        kinds: the sequence of the data sets of a case, which may have a kind twice; the first two on large meshes.
        features: those of `FEATURES` that an implementation may claim.
        violations: what it forbids besides wrong axes.
        most: the largest number of devices that a mesh may have.
        leading: for a contract with the feature `INDEPENDENT`, the position of an argument, such as the tokens. Unless
            an implementation claims the feature, the other arguments, such as weights, vary along no axis that this one
            does not vary along, apart from those of the axis tuple.
        keyword_axis: whether `axis_name` is passed by keyword.
        usual_sizes: the usual sizes of its dimensions, those of whole arrays.
        more: of `Contract`.
    """
    if isinstance(arguments, Mapping):
        arguments = Signature.of(arguments, arguments.values(), "")
    signatures = (arguments,) if isinstance(arguments, Signature) else tuple(arguments)
    signature, chosen, has_roles = signatures[0], conditions or Conditions(most=most), conditions is not None
    named = [pair for one in signatures for pair in zip(one.names, one.arrays, strict=True)]
    same = frozenset(name for name, array in named if array.floating and {*array.roles} <= {"others"})
    call = Call(
        tuple(one.tree for one in signatures),
        frozenset(name for name, array in named if not array.gradient),
        frozenset() if has_roles else same,
        {**(options or {}), **{name: Option.among(values) for name, values in sorted(chosen.options.items())}},
        roles=signature.roles if has_roles else (),
        keyword_axis=keyword_axis,
        results=None if isinstance(signature.result_tree, str) else signature.result_tree,
        placed=partial(placed_by, signature) if has_roles else None,
        kept=partial(kept_by, signature) if any(array.only for array in signature.results) else None,
    )
    usual: dict[str, Any]
    if has_roles:
        moving = any(array.gradient for array in signature.arrays)
        derivable = chosen.gradients and moving and any(array.floating for array in signature.results)
        usual = {"adapt": fitting(signatures), "differentiable": (lambda case: True) if derivable else None}
        draw_sizes = partial(sizes_of_dimensions, conditions=chosen)
        dtypes = dtypes or (lambda scope, *given: sampled(chosen.dtypes))
    else:
        shared = [at for at, array in enumerate(signature.arrays) if AXIS in array.roles]
        usual = {} if isinstance(oracle, Oracle) else {"least": at_least_a_byte(*shared)}
        usual |= {"shapes": tuple(_usual(array, usual_sizes) for array in signature.arrays)} if usual_sizes else {}
        violations, draw_sizes, dtypes = (*AXES, *violations), draw_sizes or draw_small_sizes, dtypes or floats
    if not isinstance(oracle, Oracle):
        oracle = reference_oracle(name, oracle, signatures) if has_roles else of_blocks(oracle, call)
    of_case: Kinds = kinds if callable(kinds) else lambda scope, dtype, params: kinds
    contract = Contract(
        name=name,
        cases=lambda scope: cases(contract, scope, signatures, chosen, draw_sizes, dtypes, of_case, leading),
        call=call,
        oracle=oracle,
        violations=violations,
        features=features,
        **usual | more,
    )
    return contract


def _usual(array: Array, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], int | None, str]:
    """The usual shape of a whole array, the dimension that is sharded, and its dtype unless that is drawn."""
    dimensions = [dimension for dimension in array.dimensions if dimension.name != LEADING]
    at = next((at for at, dimension in enumerate(dimensions) if AXIS in dimension.roles), None)
    return tuple(d.size(sizes) for d in dimensions), at, "" if array.dtype == "float" else array.dtype
