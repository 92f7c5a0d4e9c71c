"""Random numbers: JAX's generators, traced, and the hashes that they call."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shardproof.properties.engines.simulate.elementwise import aligned
from shardproof.properties.engines.simulate.env import Env, result_dtype, rule
from shardproof.properties.engines.simulate.errors import InterpreterLimit, location
from shardproof.properties.engines.simulate.interpreter import evaluate, key_dtype

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@rule("threefry2x32")
def threefry2x32(env: Env, equation: Any, *operands: np.ndarray) -> list[np.ndarray]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3)."""
    key0, key1, x0, x1 = aligned(env, equation, operands)
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return [x0, x1]


@rule("iota_2x32_shape")
def iota_2x32_shape(env: Env, equation: Any) -> list[np.ndarray]:
    """0, 1, 2, … in row-major order over a shape, as high and low 32-bit words."""
    shape = tuple(equation.params["shape"])
    counts = np.arange(math.prod(shape), dtype=np.uint64).reshape((1,) * env.lead + shape)
    return [(counts >> np.uint64(32)).astype(np.uint32), counts.astype(np.uint32)]


@rule("random_bits")
def random_bits(env: Env, equation: Any, keys: np.ndarray) -> np.ndarray:
    """Bits `[…, *shape]` from every key; as in JAX, a generator of XLA's uses only the first of many keys."""
    static = (equation.params["bit_width"], tuple(equation.params["shape"]))
    words, rank = keys["key"], keys.ndim - env.lead
    shapes = ((words.shape[env.lead :], words.dtype),)
    (result,) = evaluate(
        env, trace_generator(generator(equation).random_bits, static, shapes, partitionable(), rank), [words]
    )
    return np.broadcast_to(result, keys.shape[: env.lead] + result.shape[env.lead :])


def generator(equation: Any) -> Any:
    """The generator of an equation's keys."""
    return equation.invars[0].aval.dtype._impl


def as_keys(words: np.ndarray) -> np.ndarray:
    """Words `[…, words]` as keys `[…]`."""
    return np.ascontiguousarray(words).view(key_dtype(words.shape[-1]))[..., 0]


def on_each(env: Env, function: Callable[..., Any], static: tuple[Any, ...], operands: list[np.ndarray]) -> np.ndarray:
    """A generator's function of one key (or seed), mapped over arrays of them and over the devices."""
    rank = max(x.ndim for x in operands) - env.lead
    values = [x["key"] if x.dtype.names else x for x in operands]
    shapes = tuple((x.shape[env.lead + rank :], x.dtype) for x in values)
    jaxpr = trace_generator(function, static, shapes, partitionable())
    (result,) = evaluate(env.mapped(rank), jaxpr, values)
    mapped = np.broadcast_shapes(*(x.shape[: env.lead + rank] for x in operands))
    return np.broadcast_to(result, mapped + result.shape[env.lead + rank :])


# keys `[…]` of words `[…, words]` and back; from seeds; new ones `[…, *shape]`; and one for each number
rule("random_wrap")(lambda env, equation, words: as_keys(words))
rule("random_unwrap")(lambda env, equation, keys: keys["key"])
rule("random_seed")(lambda env, equation, seeds: as_keys(on_each(env, equation.params["impl"].seed, (), [seeds])))
rule("random_split")(
    lambda env, equation, keys: as_keys(
        on_each(env, generator(equation).split, (tuple(equation.params["shape"]),), [keys])
    )
)
rule("random_fold_in")(
    lambda env, equation, keys, data: as_keys(
        on_each(env, generator(equation).fold_in, (), aligned(env, equation, (keys, data)))
    )
)


def partitionable() -> bool:
    """The setting on which the counters of Threefry depend."""
    return bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def trace_generator(
    function: Callable[..., Any], static: tuple[Any, ...], shapes: tuple[Any, ...], partitionable: bool, rank: int = 0
) -> Any:
    """The jaxpr of a generator's function, mapped over `rank` dimensions; `partitionable` keys the cache."""
    avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]

    def mapped(*args: Any) -> Any:
        return function(*args, *static)

    for _ in range(rank):
        mapped = jax.vmap(mapped)
    return jax.make_jaxpr(mapped)(*avals)


def philox4x32(counter: list[np.ndarray], key: list[np.ndarray]) -> list[np.ndarray]:
    """Philox-4x32 with 10 rounds (Salmon et al. 2011): four words from a counter of four, by a key of two."""
    mask = np.uint64(0xFFFFFFFF)
    for i in range(10):
        one, other = (c * np.uint64(m) for c, m in zip(counter[::2], (0xD2511F53, 0xCD9E8D57), strict=True))
        keys = [k + np.uint64(i * w % 2**32) & mask for k, w in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        high = [product >> np.uint64(32) for product in (one, other)]
        counter = [high[1] ^ counter[1] ^ keys[0], other & mask, high[0] ^ counter[3] ^ keys[1], one & mask]
    return counter


@rule("rng_bit_generator")
def rng_bit_generator(env: Env, equation: Any, key: np.ndarray) -> list[np.ndarray]:
    """The key with its counter advanced, and bits `[*shape]`, as on XLA:CPU; other platforms have other defaults.

    A key has 128 bits: 64 of Philox's key, which are also the high half of its counter, and the counter's low half.

    Raises:
        InterpreterLimit: for Threefry, which XLA distributes over a shape in its own way.
    """
    if equation.params["algorithm"].name == "RNG_THREE_FRY":
        raise InterpreterLimit(
            f"no rule for Threefry as an algorithm of XLA's, at {location(equation)}", "RNG_THREE_FRY"
        )
    dtype, shape = result_dtype(equation, 1), tuple(equation.params["shape"])
    words = np.ascontiguousarray(key).view(np.uint64)
    count = math.prod(shape) * (2 if dtype.itemsize == 8 else 1)
    blocks = -(-count // 4)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    low = words[..., 1:] + np.arange(blocks, dtype=np.uint64)
    high = words[..., :1] + (low < words[..., 1:]).astype(np.uint64)
    counter = [low & mask, low >> half, high & mask, high >> half]
    bits = philox4x32(counter, [words[..., :1] & mask, words[..., :1] >> half])
    flat = np.stack(bits, axis=-1).reshape(*words.shape[:-1], -1)[..., :count]
    if dtype.itemsize == 8:
        flat = flat[..., ::2] | flat[..., 1::2] << half
    moved = words + np.array([0, blocks], np.uint64)
    return [moved.view(key.dtype), flat.astype(dtype).reshape(*words.shape[:-1], *shape)]
