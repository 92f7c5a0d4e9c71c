"""A `Program` on arrays that are given, without a case: which axis each role is follows from how they are sharded."""

from collections.abc import Sequence
from typing import Any

import jax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.requests import RequestError
from shardproof.properties.programs.bare import bare
from shardproof.properties.programs.program import Argument
from shardproof.properties.programs.program import Program as OnMesh
from shardproof.properties.runner.programs import Program


def called(program: Program, given: Sequence[Argument], mesh: MeshCase) -> OnMesh:
    """What an engine runs: the program's function on whole arrays, or inside `shard_map` on their blocks.

    Options have the first of their values.

    Raises:
        RequestError: if the arrays are not as the program describes them, or a role shards none of them.
    """
    arrays, names = program.signature.arrays, program.signature.names
    if len(given) != len(arrays):
        raise RequestError(f"arrays={len(given)}: expected {len(arrays)}: {', '.join(names)}")
    roles: dict[str, str | tuple[str, ...]] = {}
    for name, array, argument in zip(names, arrays, given, strict=True):
        if len(argument.shape) != len(array.dimensions):
            raise RequestError(f"{name}={argument.shape}: expected the dimensions {array}")
        for dimension, entry in zip(array.dimensions, argument.spec, strict=True):
            if len(dimension.roles) > 1 or (entry and not dimension.roles):
                raise RequestError(f"{name}: expected one role and one axis at most for each dimension of {array}")
            for role in dimension.roles:
                axis = entry[0] if entry else ()
                if roles.setdefault(role, axis) != axis:
                    raise RequestError(f"{name}: {role}={axis!r}: expected {roles[role]!r}, as another array has it")
    if missing := [role for role in program.signature.roles if role not in roles]:
        raise RequestError(f"role={missing[0]}: expected it to shard an array: no other tells which axis it is")
    tree: Any = jax.tree.structure(program.signature.tree)
    options = {name: values[0] for name, values in program.conditions.options.items()}

    def function(*leaves: Any, **more: Any) -> Any:
        return program.function(*jax.tree.unflatten(tree, leaves), **roles, **options, **more)

    if not program.whole:
        return bare(lambda *blocks: function(*blocks), given, mesh, ())
    return OnMesh(lambda on: jax.jit(lambda *whole: function(*whole, mesh=on)), tuple(given))
