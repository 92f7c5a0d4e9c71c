"""Random numbers."""

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.parts import array, choice, draws, sizes, whole
from shardproof.properties.conformance.operations.table import Call, operation

SEED = whole(0, 3)


@operation("random_bits", "jax.random.bits(jax.random.key({seed}), {shape}, jnp.{dtype}, out_sharding={to})")
def _random(d: Drawing) -> Call:
    shape, dtype = d.shape(), d.one_of(("uint32", "uint8", "uint16"))
    return [], {"seed": d.integer(0, 3), "shape": list(shape), "dtype": dtype, "to": d.out(shape)}


operation("random_split", "jax.random.key_data(jax.random.split(jax.random.key({seed}), {shape}))", weight=2)(
    draws(seed=SEED, shape=sizes(1, 2))
)
operation("random_permutation", "jax.random.permutation(jax.random.key({seed}), {0})", weight=2)(
    draws(array(1, 2, of="number"), seed=SEED)
)
operation(
    "random_of_keys", "jax.vmap(lambda k: jax.random.bits(k, {shape}))(jax.random.split(jax.random.key(0), {n}))"
)(draws(shape=sizes(1, 2), n=lambda d, names: d.size()))
operation("rng_bit_generator", "*lax.rng_bit_generator({0}, {shape}, jnp.{dtype})", weight=2)(
    draws(array(shape=(4,), dtype="uint32", data=(0, 9)), shape=sizes(), dtype=choice("uint32", "uint8", "uint16"))
)
for _name in ("uniform", "normal", "gumbel", "exponential", "bernoulli", "rademacher"):
    operation(
        f"random_{_name}",
        f"jax.random.{_name}(jax.random.key({{seed}}), shape={{shape}})",
        exact=_name in ("bernoulli", "rademacher"),
        weight=1,
    )(draws(seed=SEED, shape=sizes()))


@operation(
    "random_randint", "jax.random.randint(jax.random.key({seed}), {shape}, {0}, {1})", continuous=False, weight=2
)
def _whole(d: Drawing) -> Call:
    shape = d.shape()
    low, high = (d.array(shape=shape[i:], dtype="int32", data=data) for i, data in ((0, (0, 3)), (1, (4, 9))))
    return [low, high], {"seed": d.integer(0, 3), "shape": list(shape)}


operation("random_categorical", "jax.random.categorical(jax.random.key({seed}), {0})", continuous=False, weight=2)(
    draws(array(1, 3, dtype="float32", where=all, data=(-9, 9)), seed=SEED)
)


@operation("random_choice", "jax.random.choice(jax.random.key({seed}), {0}, ({n},), replace={again}, axis={axis})")
def _chosen(d: Drawing) -> Call:
    x = d.array(1, 2, of="number", where=all)
    axis = d.axis(x)
    return [x], {"seed": d.integer(0, 3), "n": d.integer(1, d[x].shape[axis]), "again": d.chance(2), "axis": axis}


operation(
    "random_fold_in", "jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(jax.random.key(0), i), {shape}))({0})"
)(draws(array(1, 1, dtype="int32", data=(0, 9)), shape=sizes(1, 1)))
