"""The algorithms over permutes: what they do is what they claim."""

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardproof.impl import algorithms as functions
from shardproof.impl.collectives import all_gather
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.simulate.record import Record
from shardproof.properties.laws.communication import check_communication, stated_by
from shardproof.properties.programs.built_in import ALGORITHMS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program, Seen, forward

pytestmark = pytest.mark.untyped

BY_NAME = {i.name: i for i in ALGORITHMS}
POWERS_OF_TWO = {"recursive_doubling_all_reduce", "recursive_halving_reduce_scatter"}

PARAMS: dict[str, dict[str, Any]] = {
    "all_gather": {"axis": 0, "tiled": True},
    "all_gather_invariant": {"axis": 0, "tiled": True},
    "all_reduce": {"op": "sum"},
    "reduce_scatter": {"scatter_dimension": 0, "tiled": True},
    "all_to_all": {"split_axis": 0, "concat_axis": 1, "tiled": True},
    "permute": {"perm": ((0, 1),)},
    "ring_shift": {"offset": 1},
    "broadcast": {"root": 0},
}
DIVIDED = ("reduce_scatter", "all_to_all")


def serves(name: str, sizes: tuple[int, ...]) -> bool:
    """Whether an algorithm serves a tuple of axes of these sizes."""
    p = math.prod(sizes)
    return name not in POWERS_OF_TWO or p & (p - 1) == 0


def case_of(
    contract: str,
    sizes: tuple[int, ...],
    *,
    reverse: bool = False,
    block: tuple[int, ...] = (3, 2),
    dtype: str = "float32",
    replicated: bool = False,
    tree: bool = False,
    **params: Any,
) -> Case:
    """A case over all axes of a mesh; where a dimension is to be divided, the first of `block` is that of a piece."""
    names = ("x", "y", "z")[: len(sizes)]
    if contract == "broadcast":
        params = {"root": math.prod(sizes) - 1, **params}
    if contract in DIVIDED:
        at = params.get("scatter_dimension", params.get("split_axis", 0))
        block = tuple(n * math.prod(sizes) if i == at else n for i, n in enumerate(block))
    operand = Operand(block, dtype, Placement(((),) * len(block), () if replicated else names))
    return Case(
        CONTRACTS[contract],
        MeshCase(names, sizes),
        names[::-1] if reverse else names if len(names) > 1 else names[0],
        (operand, Operand(block, "int32" if dtype != "float32" else "bfloat16", operand.placement))
        if tree
        else (operand,),
        tuple({**PARAMS[contract], **params}.items()),
        tree=tree,
    )


def recorded(program: Program, case: Case, seed: int) -> tuple[list[np.ndarray], list[np.ndarray], Record]:
    """The arguments and results of a program, interpreted on small integers, and what it moved."""
    mesh = abstract_mesh(case.mesh)
    arrays = [
        generate(Data("exact", seed + i), a.shape, np.dtype(a.dtype), terms=case.mesh.size)
        for i, a in enumerate(program.arguments)
    ]
    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, a.partition_spec))
        for a in program.arguments
    ]
    results, record = prepare(program.build(mesh), *avals).run_recorded(*arrays)
    return arrays, [np.asarray(r) for r in jax.tree.leaves(results)], record


def check_forward(implementation: Implementation, case: Case) -> None:
    """The values are the oracle's, what is sent is what is claimed, and as many steps wait for one another."""
    arrays, results, record = recorded(forward(case, implementation, Seen()), case, 0)
    expected = case.contract.oracle.value(case, [case.blocks(i, a) for i, a in enumerate(arrays)])
    for result, block in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, block)
    check_communication(implementation, case, engine_named("simulate"))
    stated = stated_by(implementation, case, backward=False)
    moves = any(c.operand_bytes for c in record.collectives)
    if stated and stated.steps is not None and moves:
        assert record.rounds == stated.steps


SIZES = [*((p,) for p in (*range(2, 10), 12, 16)), (2, 2), (2, 3), (4, 2), (3, 5), (2, 3, 2)]


@pytest.mark.parametrize("name", BY_NAME)
def test_an_algorithm_moves_what_it_claims(name: str) -> None:
    """On 2 to 16 participants, on one axis and on tuples in both orders, values and permutes are as they should be."""
    served = [sizes for sizes in SIZES if serves(name, sizes)]
    assert len(served) >= 4
    for sizes in served:
        for reverse in (False, True)[: len(sizes)]:
            check_forward(BY_NAME[name], case_of(BY_NAME[name].contract.name, sizes, reverse=reverse))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bruck_all_gather", (1000,)),
        ("recursive_halving_reduce_scatter", (1024,)),
        ("ring_all_reduce", (200,)),
        ("tree_broadcast", (1024,)),
        ("scatter_all_gather_broadcast", (500,)),
    ],
)
def test_claims_hold_on_large_meshes(name: str, sizes: tuple[int, ...]) -> None:
    """What holds on sixteen participants holds on hundreds."""
    check_forward(BY_NAME[name], case_of(BY_NAME[name].contract.name, sizes, block=(1, 1), dtype="int32"))


def test_a_gather_is_one_operation() -> None:
    """How its result is to be typed is not asked of an index, which would be one more."""
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    gather = jax.shard_map(lambda x: all_gather(x, "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    (mapped,) = jax.make_jaxpr(gather)(jax.ShapeDtypeStruct((8,), np.float32)).eqns
    assert [equation.primitive.name for equation in mapped.params["jaxpr"].eqns] == ["all_gather"]


def traced(name: str, x: jax.ShapeDtypeStruct, axis_name: Any, **params: Any) -> None:
    """Traces an algorithm on the mesh (a=3, b=4)."""
    mesh = AbstractMesh((3, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    program = jax.shard_map(
        lambda x: getattr(functions, name)(x, axis_name, **params),
        mesh=mesh,
        in_specs=jax.P(("a", "b")),
        out_specs=jax.P(("a", "b")),
    )
    jax.eval_shape(program, x)


@pytest.mark.parametrize(
    ("name", "axis_name", "params", "error", "message"),
    [
        (
            "recursive_doubling_all_reduce",
            "a",
            {},
            NotImplementedError,
            "axis_name='a': expected a power of two of participants (it has 3)",
        ),
        (
            "recursive_doubling_all_reduce",
            ("a", "b"),
            {},
            NotImplementedError,
            "axis_name=('a', 'b'): expected a power of two of participants (it has 12)",
        ),
        (  # what no algorithm may serve comes before what this one does not
            "recursive_halving_reduce_scatter",
            "a",
            {"scatter_dimension": 2},
            ValueError,
            "scatter_dimension=2: expected a dimension in [-1, 1)",
        ),
    ],
)
def test_what_an_algorithm_does_not_serve(
    name: str, axis_name: Any, params: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A gap and an illegal argument raise different errors, and both say what was expected."""
    with pytest.raises(error) as raised:
        traced(name, jax.ShapeDtypeStruct((48,), np.float32), axis_name, **params)
    assert str(raised.value) == f"{name}: {message}, on the mesh (a=3, b=4)"


@pytest.mark.parametrize("one", ALGORITHMS, ids=str)
def test_what_is_drawn_is_served(one: Implementation) -> None:
    """An algorithm raises for a case if and only if its registration says that it does not serve it."""
    for sizes in ((1,), (3,), (4,), (1, 2), (3, 2), (2, 2, 3)):
        case = case_of(one.contract.name, sizes)
        if serves(one.name, sizes):
            assert one.serves is None or one.serves(case)
        else:
            assert one.serves is not None
            assert not one.serves(case)
            with pytest.raises(NotImplementedError, match=f"{one.name}: axis_name="):
                check_forward(one, case)
