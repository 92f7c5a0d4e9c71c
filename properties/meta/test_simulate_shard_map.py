"""The simulate engine inside shard_map, against XLA on eight devices, bit for bit on exact data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import prepare, simulate
from shardproof.properties.meta.test_simulate_arrays import block
from shardproof.properties.meta.test_simulate_elementwise import same

Axes = tuple[str, ...]
BOTH: Axes = ("dp", "tp")
SWAPPED: Axes = ("tp", "dp")
ROWS = P(BOTH)


def check_on_mesh(
    body: Callable[..., Any],
    *args: np.ndarray,
    in_specs: Any = ROWS,
    out_specs: Any = ROWS,
    sizes: tuple[int, ...] = (2, 4),
    names: Axes = BOTH,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda mapped: mapped,
    kind: AxisType = AxisType.Auto,
    **options: Any,
) -> None:
    """`wrap(shard_map(body))` gives the same on an abstract mesh in NumPy as on devices through `jit`."""
    types = (kind,) * len(sizes)
    specs = (in_specs,) * len(args) if isinstance(in_specs, P) else in_specs

    def program(mesh: Any) -> Callable[..., Any]:
        return wrap(jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options))

    abstract = AbstractMesh(sizes, names, axis_types=types)
    explicit = kind == AxisType.Explicit
    avals = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(abstract, s) if explicit else None)
        for x, s in zip(args, specs, strict=True)
    ]
    ours = prepare(program(abstract), *avals).run(*args)
    mesh = jax.make_mesh(sizes, names, axis_types=types, devices=jax.devices()[: int(np.prod(sizes))])
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, specs, strict=True)]
    theirs = jax.jit(program(mesh))(*placed)
    wrong = jax.tree.map(lambda a, b: not same(a, b), ours, theirs)
    assert not any(jax.tree.leaves(wrong)), f"at {wrong}: got {ours}, but XLA says {theirs}"


X = block(16, 8)

COLLECTIVES: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any]]] = {
    "psum of an invariant": (lambda x: lax.psum(x.sum() * 0 + 1, "tp"), P(), {"in_specs": P()}),
    "psum of a tree": (lambda x: lax.psum((x, x[0]), BOTH), P(), {}),
    "psum of int8 wraps": (lambda x: lax.psum((x * 40).astype(jnp.int8), BOTH), P(), {}),
    "psum unchecked": (lambda x: lax.psum(x, BOTH), P(), {"check_vma": False}),
    "pmean": (lambda x: lax.pmean(x * 8, SWAPPED), P(), {}),
    "pmax in groups": (
        lambda x: lax.pmax(x, BOTH, axis_index_groups=[[0, 5, 1, 2], [3, 4, 6, 7]]), P(BOTH), {"check_vma": False},
    ),
    "all_gather": (lambda x: lax.all_gather(x, SWAPPED, axis=1), P(BOTH), {}),
    "all_gather in groups": (
        lambda x: lax.all_gather(x, "tp", axis=1, tiled=True, axis_index_groups=[[3, 0], [2, 1]]), P(BOTH), {},
    ),
    "all_gather invariant": (lambda x: lax.all_gather(x, BOTH, tiled=True, to="invarying"), P(), {}),
    "reduce_scatter untiled": (lambda x: lax.psum_scatter(x, BOTH, scatter_dimension=1), P(BOTH), {}),
    "all_to_all untiled": (lambda x: lax.all_to_all(x, BOTH, 1, 0), P(BOTH), {}),
    "all_to_all in groups": (
        lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True, axis_index_groups=[[1, 0], [2, 3]]), P(BOTH), {},
    ),
    "ppermute": (lambda x: lax.ppermute(x, BOTH, [(0, 3), (3, 7), (5, 0)]), P(BOTH), {}),
    "pshuffle": (lambda x: lax.pshuffle(x, "tp", [2, 0, 3, 1]), P(BOTH), {}),
    "pswapaxes": (lambda x: lax.pswapaxes(x, BOTH, 1), P(BOTH), {}),
    "axis_index": (lambda x: x + lax.axis_index(SWAPPED), P(BOTH), {}),
    "axis_size": (lambda x: x * lax.axis_size(BOTH), P(BOTH), {}),
    "pcast": (lambda x: lax.pcast(x, ("tp",), to="varying") * 2, P(BOTH), {"in_specs": P("dp")}),
    "no collective": (lambda x: x[::-1], P(BOTH), {}),
    "another layout": (lambda x: x.sum(0), P(SWAPPED), {"in_specs": P(None, BOTH)}),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective(name: str) -> None:
    """A collective over any axis tuple gives every device what XLA gives it."""
    body, out_specs, options = COLLECTIVES[name]
    check_on_mesh(body, X, out_specs=out_specs, **options)


def test_a_scalar_of_each_device_beside_arrays() -> None:
    """An operation on arrays may have an operand of rank 0, where `vmap` maps the others alone."""
    over_the_first = [jax.vmap(f, (0, None)) for f in (lax.complex, lax.add, lax.max)]
    over_the_second = [jax.vmap(f, (None, 0)) for f in (lax.complex, lax.sub, lax.nextafter)]
    for first, second in zip(over_the_first, over_the_second, strict=True):
        check_on_mesh(lambda x, f=first, g=second: (f(x[0], x.sum()), g(x.sum(), x[0])), X)


UNREDUCED: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "a sum put off": (lambda x: lax.psum(lax.pcast(x, "tp", to="unreduced"), "tp"), {"out_specs": P("dp")}),
    "a scattered sum put off": (
        lambda x: lax.psum_scatter(lax.pcast(x, "tp", to="unreduced"), "tp", tiled=True),
        {"out_specs": P(BOTH)},
    ),
    "a gradient's sum done before": (
        lambda x: lax.pcast(lax.pcast(x, "tp", to="reduced"), "tp", to="varying") * 2,
        {"in_specs": P("dp", None), "out_specs": P("dp", "tp")},
    ),
    "gathered, its gradient's sum done before": (
        lambda x: lax.pcast(lax.all_gather(x, "tp", tiled=True, to="reduced"), "tp", to="varying"),
        {"out_specs": P(BOTH)},
    ),
}


@pytest.mark.parametrize("name", UNREDUCED)
def test_unreduced_and_reduced(name: str) -> None:
    """Values whose sum is put off, and replicas whose gradient is summed elsewhere, are XLA's."""
    body, options = UNREDUCED[name]
    check_on_mesh(body, X, **({"in_specs": P("dp", "tp")} | options), kind=AxisType.Explicit)


def test_unreduced_results() -> None:
    """A sum that leaves shard_map unreduced, and enters another one so, is the sum."""

    def program(x: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        parts = jax.shard_map(
            lambda x: lax.pcast(x, "tp", to="unreduced"),
            in_specs=P("dp", "tp"),
            out_specs=P("dp", None, unreduced={"tp"}),
        )(x)
        whole = jax.shard_map(
            lambda y: lax.psum(y + y, "tp"), in_specs=P("dp", None, unreduced={"tp"}), out_specs=P("dp", None)
        )(parts)
        return whole, jax.sharding.reshard(parts, jax.NamedSharding(mesh, P("dp", None)))

    abstract = AbstractMesh((2, 4), BOTH, axis_types=(AxisType.Explicit,) * 2)
    aval = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(abstract, P("dp", "tp")))
    twice, once = prepare(program, aval, mesh=abstract).run(X)
    summed = X.reshape(16, 4, 2).sum(1)
    assert (twice == 2 * summed).all()
    assert (once == summed).all()


@pytest.mark.skipif(not hasattr(jax.sharding, "UnreducedKind"), reason="this JAX leaves nothing but sums unreduced")
@pytest.mark.parametrize("kind", ["max", "min"])
def test_unreduced_extremes(kind: str) -> None:
    """A maximum that is left unreduced enters and leaves shard_map so, and is the maximum once it is reduced."""
    sharding: Any = jax.sharding  # JAX 0.10 has neither of the names
    unreduced = sharding.PartitionSpec(None, unreduced={"tp"}, unreduced_kind=sharding.UnreducedKind[kind])
    reduce: Any = lax.pmax if kind == "max" else lax.pmin

    def program(x: Any) -> Any:
        reduce_within: Any = getattr(lax, f"reduce_{kind}")
        found = reduce_within(x, (1,), out_sharding=unreduced)
        again = jax.shard_map(lambda x: x, in_specs=unreduced, out_specs=unreduced)(found)
        return jax.shard_map(lambda x: reduce(x, "tp"), in_specs=unreduced, out_specs=P(None))(again)

    abstract = AbstractMesh((2, 4), BOTH, axis_types=(AxisType.Explicit,) * 2)
    aval = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(abstract, P(None, "tp")))
    prepared = prepare(program, aval, mesh=abstract)
    assert (prepared.run(X) == (X.max(axis=1) if kind == "max" else X.min(axis=1))).all()
    assert f"unreduced_p{kind}" in {equation.primitive.name for equation in prepared.equations}


def constrained(x: Any) -> Any:
    """Where a global array is held makes no difference to what it is."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P("x")))


def test_sharding_constraint() -> None:
    """A constraint on where a global array is held leaves it as it is."""
    assert same(simulate(constrained, X), jax.jit(constrained)(X))


def divergent_cond(x: Any) -> Any:
    """Every device takes its own branch."""
    return lax.cond(lax.axis_index("tp") > 1, lambda x: x * 2, lambda x: x[::-1] - 1, x)


def divergent_switch(x: Any) -> Any:
    """Four devices, four branches."""
    return lax.switch(lax.axis_index("tp"), [lambda x: x, lambda x: -x, lambda x: x + 1, jnp.flip], x)


def divergent_while(x: Any) -> Any:
    """Every device loops as often as it likes."""
    limit = lax.axis_index("tp") * 3 + lax.axis_index("dp")
    start = lax.pcast(jnp.int32(0), BOTH, to="varying")
    return lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + 1, c[1] + c[0].astype(x.dtype)), (start, x))[1]


def divergent_nest(x: Any) -> Any:
    """A loop of its own length in one branch, another branch in the loop, and a collective after both."""

    def loop(x: Any) -> Any:
        start = lax.pcast(jnp.int32(0), ("dp", "tp"), to="varying")

        def body(c: Any) -> Any:
            i, x = c
            return i + 1, lax.cond((i + lax.axis_index("dp")) % 2 == 0, lambda x: x + 1, lambda x: x * 2, x)

        return lax.while_loop(lambda c: c[0] < lax.axis_index("tp"), body, (start, x))[1]

    return lax.psum(lax.cond(lax.axis_index("tp") != 2, loop, lambda x: -x, x), "tp")


def collective_in_uniform_cond(x: Any) -> Any:
    """The predicate differs along dp, the collective runs along tp."""
    return lax.cond(lax.axis_index("dp") == 0, lambda x: lax.psum(x, "tp"), lambda x: lax.pmax(x, "tp") * 2, x)


def collective_in_uniform_while(x: Any) -> Any:
    """As often as the device has its dp index, which its tp group agrees on."""
    start = lax.pcast(jnp.int32(0), ("dp",), to="varying")

    def exchange(c: Any) -> Any:
        return c[0] + 1, lax.all_to_all(c[1], "tp", 1, 1, tiled=True)

    return lax.while_loop(lambda c: c[0] <= lax.axis_index("dp"), exchange, (start, x))[1]


def random_inside(x: Any) -> Any:
    """Every device draws its own numbers."""
    key = jax.random.fold_in(jax.random.key(3), lax.axis_index(BOTH))
    return x + jax.random.randint(key, x.shape, 0, 9).astype(x.dtype) + jax.random.bernoulli(key, 0.5, x.shape)


def indexed_by_device(x: Any) -> Any:
    """Reads and writes at places that depend on the device."""
    i = lax.axis_index("tp")
    rows = x.at[i % 2].add(x[1 - i % 2])
    picked = x[:, (jnp.arange(4) * i) % 8]
    updated = lax.dynamic_update_slice(x, picked, (0 * i, i))
    return rows + updated + lax.dynamic_slice(x.repeat(2, 0), (i % 3, 0 * i), (2, 8))


def ordered_by_device(x: Any) -> Any:
    """Sorts up or down, by device."""
    values, indices = lax.top_k(x, 3)
    order = jnp.argsort(x * (1 - 2 * (lax.axis_index("dp"))), axis=1, stable=True)
    return jnp.concatenate([values, indices.astype(x.dtype), order.astype(x.dtype)], axis=1)


BODIES: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "cond": (divergent_cond, {}),
    "switch": (divergent_switch, {}),
    "while": (divergent_while, {}),
    "nested": (divergent_nest, {"out_specs": P("dp")}),
    "collective in a cond that its group agrees on": (collective_in_uniform_cond, {"out_specs": P("dp")}),
    "collective in a while that its group agrees on": (collective_in_uniform_while, {}),
    "random numbers": (random_inside, {}),
    "indexing": (indexed_by_device, {}),
    "order": (ordered_by_device, {}),
    "vmapped axis": (
        lambda x: jax.vmap(lambda y: lax.psum(y, ("i", "tp")) + lax.all_gather(y, "i").sum(0), axis_name="i")(x),
        {"check_vma": False},
    ),
    "vmapped collectives": (
        jax.vmap(lambda y: lax.all_to_all(lax.psum_scatter(y, "tp", tiled=True).repeat(4), "tp", 0, 0, tiled=True)),
        {},
    ),
    "gradient inside": (jax.grad(lambda x: lax.psum((x * lax.all_gather(x, "tp").sum(0)).sum(), BOTH)), {}),
    "custom gradient": (lambda x: jax.vjp(jax.nn.relu, x)[1](x)[0], {}),
    "one axis manual": (
        lambda x: lax.psum(x, "tp") + x.sum(), {"in_specs": P("tp"), "out_specs": P("tp"), "axis_names": {"tp"}},
    ),
    "reduction of a partial view": (
        lambda x: lax.all_gather(x, "tp", tiled=True) @ x.T,
        {"in_specs": P("tp"), "out_specs": P("tp"), "axis_names": {"tp"}},
    ),
    "axes one by one": (
        lambda x: jax.shard_map(
            lambda y: lax.psum(y, "dp") + lax.axis_index("tp"), in_specs=P("dp"), out_specs=P(), axis_names={"dp"}
        )(x),
        {"in_specs": P("tp"), "out_specs": P("tp"), "axis_names": {"tp"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_body(name: str) -> None:
    """Control flow, random numbers, indexing and order inside shard_map are XLA's, device by device."""
    body, options = BODIES[name]
    check_on_mesh(body, X, **options)
