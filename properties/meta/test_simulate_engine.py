"""The simulate engine as a whole: its record, its errors, its table of rules, and meshes of thousands of devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate import (
    RULES,
    SimulationError,
    UnknownPrimitive,
    interpret,
    prepare,
    rule,
    simulate,
)
from shardproof.properties.performance.operations import peak_in

BOTH = ("dp", "tp")


def mesh(*sizes: int, names: tuple[str, ...] = BOTH) -> AbstractMesh:
    """An abstract mesh with Auto axes."""
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def test_record_of_a_loop() -> None:
    """Every execution of a collective is counted, with its bytes."""

    def body(x: Any) -> Any:
        x = lax.fori_loop(0, 3, lambda i, x: lax.ppermute(x, "tp", [(0, 1), (1, 2)]), x)
        return lax.psum(x, ("tp", "dp"))

    x = np.ones((8, 4), np.float32)
    program = prepare(jax.shard_map(body, mesh=mesh(2, 4), in_specs=P(BOTH), out_specs=P()), x)
    _, record = program.run_recorded(x)
    permute, *others, reduce = record.collectives
    assert (permute.kind, permute.axes, permute.perm) == ("permute", ("tp",), ((0, 1), (1, 2)))
    assert [(one.links, one.round) for one in others] == [(permute.links, 2), (permute.links, 3)]
    assert (permute.operand_bytes, permute.participants, permute.devices) == (16, 4, 8)
    assert permute.links == [(0, 1), (4, 5), (1, 2), (5, 6)]
    assert (reduce.kind, reduce.axes, reduce.participants) == ("all_reduce", ("tp", "dp"), 8)
    assert reduce.mesh == MeshCase(BOTH, (2, 4))


def test_record_of_a_branch() -> None:
    """A collective that only some groups execute says how many devices did."""

    def body(x: Any) -> Any:
        return lax.cond(lax.axis_index("dp") == 0, lambda x: lax.psum_scatter(x, "tp", tiled=True), lambda x: x[:1], x)

    x = np.ones((32,), np.float32)
    _, record = prepare(jax.shard_map(body, mesh=mesh(2, 4), in_specs=P(BOTH), out_specs=P(BOTH)), x).run_recorded(x)
    (collective,) = record.collectives
    assert (collective.kind, collective.devices, collective.operand_bytes) == ("reduce_scatter", 4, 16)


def test_record_with_groups() -> None:
    """Groups are recorded as the program gave them."""

    def body(x: Any) -> Any:
        return lax.all_gather(x, BOTH, axis_index_groups=[[0, 7, 1, 2], [3, 4, 5, 6]])

    x = np.ones(8, np.float32)
    _, record = prepare(jax.shard_map(body, mesh=mesh(2, 4), in_specs=P(BOTH), out_specs=P(BOTH)), x).run_recorded(x)
    assert [(c.groups, c.participants) for c in record.collectives] == [(((0, 7, 1, 2), (3, 4, 5, 6)), 4)]


def test_a_recorded_run_takes_every_step() -> None:
    """A recorded run counts collectives that are unused or repeated."""

    def local(x: Any) -> Any:
        lax.psum(-x, BOTH)
        return lax.psum(x, BOTH) + lax.psum(x, BOTH)

    x = np.arange(8, dtype=np.float32)
    program = prepare(jax.shard_map(local, mesh=mesh(2, 4), in_specs=P(BOTH), out_specs=P()), x)
    result, record = program.run_recorded(x)
    assert len(record.collectives) == 3
    assert result.tolist() == program.run(x).tolist() == [56]


def product_that_stays(x: Any) -> Any:
    """A product that is read twice."""
    product = x @ x
    return lax.sort(product) + product


def same_call_twice(x: Any) -> Any:
    """Calls are what they call, each with values of its own."""
    twice = jax.jit(lambda y: lax.sort(y) * 2)
    return twice(twice(x))


PEAKS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "the argument": (lambda x: x, 1),
    "a result beside each operand": (lambda x: lax.sort(lax.sort(lax.sort(x))), 3),
    "results in the place of a copy": (lambda x: (lax.sort(x) * 2 + 1) * 3, 2),
    "a part that is read where it stands": (lambda x: lax.sort(x) + x[:, :2] @ x[2:], 2),
    "a product that is read twice": (product_that_stays, 3),
    "what a loop carries and makes of it": (lambda x: lax.fori_loop(0, 3, lambda _, y: lax.sort(y), x), 3),
    "a loop that adds in place": (lambda x: lax.fori_loop(0, 3, lambda _, total: total + x @ x, x), 2),
    "calls": (same_call_twice, 3),
    "a part": (lambda x: x[1:] + 0, 1.75),
    "another shape in the same place": (lambda x: lax.sort(x).reshape(2, 8), 2),
    "a product that is written in place": (
        lambda x: lax.dynamic_update_slice(lax.sort(x), x[:1] @ x, (1, 0)), 2,
    ),
}  # fmt: skip
"""Arrays that are alive at one time, and their size in blocks of sixteen floats."""


@pytest.mark.parametrize("name", PEAKS)
def test_peak_bytes(name: str) -> None:
    """Everything that is alive at one time counts, the argument included; an index or two besides."""
    body, blocks = PEAKS[name]
    x = np.ones((4, 4), np.float32)
    program = jax.shard_map(body, mesh=mesh(1, 1), in_specs=P(), out_specs=P())
    assert 0 <= peak_in(prepare(program, x).closed_jaxpr) - 64 * blocks < 16


def test_a_mesh_from_the_context() -> None:
    """A function that takes its mesh from the context gets the one that is named, abstract or concrete."""

    def function(x: Any) -> Any:
        return jax.shard_map(lambda x: lax.psum(x, "tp"), in_specs=P("tp"), out_specs=P())(x)

    concrete = jax.make_mesh((2, 4), BOTH, axis_types=(AxisType.Auto,) * 2)
    for given in (mesh(2, 4), concrete):
        assert simulate(function, np.arange(8.0, dtype=np.float32), mesh=given).tolist() == [12.0, 16.0]


def test_unknown_primitive() -> None:
    """A primitive without a rule is named, with the place and the two ways on, on one line."""

    def function(x: Any) -> Any:
        return lax.approx_max_k(x, 2)

    with pytest.raises(UnknownPrimitive) as error:
        simulate(function, np.ones(3, np.float32))
    text = str(error.value)
    assert text.startswith("no rule for the primitive 'approx_top_k' (at ")
    assert "test_simulate_engine.py" in text
    assert text.endswith(
        "`--engine xla`, or register a rule with `@shardproof.properties.engines.simulate.rule('approx_top_k')`"
    )
    assert "\n" not in text


def test_a_rule_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that a user registers is used, and must return the traced shape and dtype."""
    monkeypatch.setattr("shardproof.properties.engines.simulate.env.RULES", RULES)
    monkeypatch.delitem(RULES, "cholesky", raising=False)
    x = np.eye(3, dtype=np.float32) * 4

    @rule("cholesky")
    def cholesky(env: Any, equation: Any, a: Any) -> Any:
        return np.linalg.cholesky(a)

    assert simulate(lambda a: lax.linalg.cholesky(a, symmetrize_input=False), x).tolist() == (x / 2).tolist()

    @rule("cholesky")
    def wrong(env: Any, equation: Any, a: Any) -> Any:
        return a[:1]

    with pytest.raises(SimulationError, match=r"'cholesky' returned float32\[1, 3\] where float32\[3, 3\] was traced"):
        simulate(lambda a: lax.linalg.cholesky(a, symmetrize_input=False), x)
    del RULES["cholesky"]


@pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="JAX 0.10 numbers the participants of any tuple in mesh order"
)
def test_a_permute_out_of_mesh_order() -> None:
    """A permute over a tuple that this JAX refuses to lower is refused, and no other: an axis of one has no order."""

    def program(sizes: tuple[int, int]) -> Any:
        return jax.shard_map(
            lambda x: lax.ppermute(x, ("tp", "dp"), [(0, 1)]), mesh=mesh(*sizes), in_specs=P(BOTH), out_specs=P(BOTH)
        )

    with pytest.raises(SimulationError, match="not in mesh order"):
        simulate(program((2, 4)), np.ones(8, np.float32))
    assert simulate(program((1, 2)), np.array([3, 4], np.float32)).tolist() == [0, 3]


LARGE = {
    "one axis": ((4096,), ("x",)),
    "torus": ((16, 16, 16), ("x", "y", "z")),
    "four axes": ((4, 8, 8, 16), ("x", "y", "z", "w")),
}


@pytest.mark.parametrize("name", LARGE)
def test_thousands_of_devices(name: str) -> None:
    """All-reduce, all-gather and a ring shift say what they mean on 4,096 devices."""
    sizes, names = LARGE[name]
    x = (np.arange(4096 * 4, dtype=np.int32) % 1000).reshape(4096, 4)
    ring = [(i, (i + 1) % 4096) for i in range(4096)]

    def on_mesh(body: Callable[[Any], Any], out_specs: Any) -> Any:
        return simulate(jax.shard_map(body, mesh=mesh(*sizes, names=names), in_specs=P(names), out_specs=out_specs), x)

    assert on_mesh(lambda x: lax.psum(x, names), P()).tolist() == x.sum(0, keepdims=True).tolist()
    assert (on_mesh(lambda x: lax.ppermute(x, names, ring), P(names)) == np.roll(x, 1, axis=0)).all()
    gathered = on_mesh(lambda x: lax.all_gather(x, names, tiled=True, to="invarying"), P())
    assert (gathered == x).all()
    weighted = on_mesh(lambda x: lax.all_gather(x[0, 0], names).sum() + lax.axis_index(names)[None], P(names))
    assert (weighted == x[:, 0].sum() + np.arange(4096)).all()


# Rules whose programs are written out in a test, rather than standing in a table.


def test_broadcast() -> None:
    """pbroadcast, which XLA:CPU cannot lower, gives every participant the block of one."""
    program = jax.shard_map(
        lambda x: lax.pbroadcast(x, ("tp",), 2), mesh=mesh(2, 4), in_specs=P(BOTH), out_specs=P(BOTH)
    )
    assert simulate(program, np.arange(8, dtype=np.int32)).tolist() == [2] * 4 + [6] * 4


def test_closed_call() -> None:
    """A call by another name is a call."""
    closed = jax.make_jaxpr(jax.jit(lambda x: x * 2))(np.float32(1))
    (equation,) = closed.jaxpr.eqns
    params = {"call_jaxpr": equation.params["jaxpr"]}
    call = equation.replace(primitive=Primitive("closed_call"), params=params)
    assert interpret(closed.replace(jaxpr=closed.jaxpr.replace(eqns=[call])), np.float32(4)) == [8.0]


def test_a_composite_operation_is_expanded_in_its_dtypes() -> None:
    """Such as a search among integers of 64 bits, where a program is traced with them and run without."""
    x = np.full((2, 3), 1.5)
    with jax.enable_x64(True):
        program = prepare(lambda x: x * jnp.searchsorted(jnp.arange(3), jnp.arange(x.shape[1])), x)
    assert program.run(x).tolist() == [[0.0, 1.5, 3.0]] * 2
