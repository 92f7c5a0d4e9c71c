"""Random numbers."""

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.table import Call, operation


@operation("random_bits", "jax.random.bits(jax.random.key({seed}), {shape}, jnp.{dtype}, out_sharding={to})")
def _random(d: Drawing) -> Call:
    shape, dtype = d.shape(), d.one_of(("uint32", "uint8", "uint16"))
    return [], {"seed": d.integer(0, 3), "shape": list(shape), "dtype": dtype, "to": d.out(shape)}


@operation("random_split", "jax.random.key_data(jax.random.split(jax.random.key({seed}), {shape}))", weight=2)
def _keys(d: Drawing) -> Call:
    return [], {"seed": d.integer(0, 3), "shape": list(d.shape(1, 2))}


@operation("random_permutation", "jax.random.permutation(jax.random.key({seed}), {0})", weight=2)
def _shuffled(d: Drawing) -> Call:
    return [d.array(1, 2, of="number")], {"seed": d.integer(0, 3)}


@operation(
    "random_of_keys", "jax.vmap(lambda k: jax.random.bits(k, {shape}))(jax.random.split(jax.random.key(0), {n}))"
)
def _of_keys(d: Drawing) -> Call:
    return [], {"shape": list(d.shape(1, 2)), "n": d.size()}


@operation("rng_bit_generator", "*lax.rng_bit_generator({0}, {shape}, jnp.{dtype})", weight=2)
def _bits(d: Drawing) -> Call:
    key = d.array(shape=(4,), dtype="uint32", data=(0, 9))
    return [key], {"shape": list(d.shape()), "dtype": d.one_of(("uint32", "uint8", "uint16"))}


for _name, _result in (
    *(("uniform", "inexact"), ("normal", "inexact"), ("gumbel", "inexact"), ("exponential", "inexact")),
    *(("bernoulli", "discrete"), ("rademacher", "discrete")),
):

    @operation(
        f"random_{_name}",
        f"jax.random.{_name}(jax.random.key({{seed}}), shape={{shape}})",
        exact=_result == "discrete",
        weight=1,
    )
    def _sampled(d: Drawing) -> Call:
        return [], {"seed": d.integer(0, 3), "shape": list(d.shape())}


@operation(
    "random_randint", "jax.random.randint(jax.random.key({seed}), {shape}, {0}, {1})", continuous=False, weight=2
)
def _whole(d: Drawing) -> Call:
    shape = d.shape()
    low, high = (d.array(shape=shape[i:], dtype="int32", data=data) for i, data in ((0, (0, 3)), (1, (4, 9))))
    return [low, high], {"seed": d.integer(0, 3), "shape": list(shape)}


@operation("random_categorical", "jax.random.categorical(jax.random.key({seed}), {0})", continuous=False, weight=2)
def _category(d: Drawing) -> Call:
    return [d.array(1, 3, dtype="float32", where=all, data=(-9, 9))], {"seed": d.integer(0, 3)}


@operation("random_choice", "jax.random.choice(jax.random.key({seed}), {0}, ({n},), replace={again}, axis={axis})")
def _chosen(d: Drawing) -> Call:
    x = d.array(1, 2, of="number", where=all)
    axis = d.axis(x)
    return [x], {"seed": d.integer(0, 3), "n": d.integer(1, d[x].shape[axis]), "again": d.chance(2), "axis": axis}


@operation(
    "random_fold_in", "jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(jax.random.key(0), i), {shape}))({0})"
)
def _folded(d: Drawing) -> Call:
    return [d.array(1, 1, dtype="int32", data=(0, 9))], {"shape": list(d.shape(1, 1))}
