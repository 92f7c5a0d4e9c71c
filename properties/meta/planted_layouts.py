"""Bugs of partitioners and of tracing, planted in what programs call once they have layouts."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


class Patched:
    """A module with some functions replaced.

    Arguments:
        module: the module.
        replaced: the replacements by name.
    """

    def __init__(self, module: Any, replaced: Mapping[str, Any]) -> None:
        self._module, self._replaced = module, replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced[name] if name in self._replaced else getattr(self._module, name)


def _halves(run: Callable[[Any], Any], x: Any, axis: int) -> Any:
    """A function of each half of an array, as if devices did not talk to one another."""
    size = x.shape[axis]
    if size < 2:
        return run(x)
    parts = jnp.split(x, [size // 2], axis)
    return lax.concatenate([run(part) for part in parts], axis)


def _half(x: Any, axis: int) -> Any:
    return lax.slice_in_dim(x, 0, max(1, x.shape[axis] // 2), axis=axis)


def dropped_all_reduce(x: Any, axes: Sequence[int], **how: Any) -> Any:
    """Only the first half is added up."""
    return lax.reduce_sum(_half(x, axes[0]), axes, **how)


def sum_for_maximum(x: Any, axes: Sequence[int]) -> Any:
    """The halves' greatest elements are added."""
    if x.shape[axes[0]] < 2:
        return lax.reduce_max(x, axes)
    first, second = jnp.split(x, [x.shape[axes[0]] // 2], axes[0])
    return lax.reduce_max(first, axes) + lax.reduce_max(second, axes)


def start_by_shard(x: Any, start: Any, sizes: Sequence[int]) -> Any:
    """A start is taken within the first shard."""
    starts = [jnp.clip(s, 0, max(0, size // 2 - n)) for s, size, n in zip(start, x.shape, sizes, strict=True)]
    return lax.dynamic_slice(x, starts, sizes)


def update_not_clamped(x: Any, update: Any, start: Any) -> Any:
    """An update beyond the end goes nowhere."""
    fits = jnp.bool(True)
    for s, size, n in zip(start, x.shape, update.shape, strict=True):
        fits &= (s >= 0) & (s + n <= size)
    return jnp.where(fits, lax.dynamic_update_slice(x, update, start), x)


def narrow_halo(x: Any, start: Any, how: Any, size: Any, strides: Any, padding: Any, *rest: Any) -> Any:
    """The last element is not seen by the windows."""
    kept = lax.slice_in_dim(x, 0, max(1, x.shape[0] - 1)) if x.shape[0] else x
    more = [(low, high + (x.shape[0] - kept.shape[0] if i == 0 else 0)) for i, (low, high) in enumerate(padding)]
    return lax.reduce_window(kept, start, how, size, strides, more, *rest)


def pad_on_the_other_side(x: Any, value: Any, config: Any) -> Any:
    """Padding in front and behind are exchanged."""
    return lax.pad(x, value, [(high, low, within) for low, high, within in config])


def unequal_parts(parts: Sequence[Any], axis: int) -> Any:
    """Parts of unequal sizes come in the other order."""
    sizes = {part.shape[axis] for part in parts}
    return lax.concatenate(parts if len(sizes) == 1 else parts[::-1], axis)


def strides_begin_again(x: Any, start: Any, limit: Any, strides: Any) -> Any:
    """A stride begins again in the second half of the first dimension."""
    if strides[0] == 1 or limit[0] - start[0] < 3:
        return lax.slice(x, start, limit, strides)
    middle = (start[0] + limit[0]) // 2
    pieces = [
        lax.slice(x, (a, *start[1:]), (b, *limit[1:]), strides) for a, b in ((start[0], middle), (middle, limit[0]))
    ]
    joined = lax.concatenate(pieces, 0)
    return lax.slice_in_dim(joined, 0, lax.slice(x, start, limit, strides).shape[0])


def products_of_half(x: Any, y: Any, dims: Any, **how: Any) -> Any:
    """Only half of what is contracted is."""
    (left, right), batch = dims
    if left:
        x, y = _half(x, left[0]), _half(y, right[0])
    return lax.dot_general(x, y, ((left, right), batch), **how)


def dilation_lost(x: Any, w: Any, strides: Any, padding: Any, base: Any, within: Any, **how: Any) -> Any:
    """A convolution's last tap is lost."""
    zero = jnp.zeros_like(w[..., -1:])
    return lax.conv_general_dilated(
        x, lax.concatenate([w[..., :-1], zero], w.ndim - 1), strides, padding, base, within, **how
    )


def shorter_loop(start: int, end: int, body: Any, x: Any) -> Any:
    """A loop ends one early."""
    return lax.fori_loop(start, end - 1, body, x)


def last_of_equals(x: Any, axis: int, dtype: Any) -> Any:
    """The last of equal elements is found."""
    size = x.shape[axis]
    return (size - 1 - lax.argmax(lax.rev(x, (axis,)), axis, jnp.int32)).astype(dtype)


def local_places(x: Any, k: int) -> Any:
    """Indices are those within a half."""
    values, places = lax.top_k(x, k)
    return values, places % max(1, x.shape[-1] // 2)


def untransposed(x: Any, order: Sequence[int]) -> Any:
    """A transposition of a square is none."""
    result = lax.transpose(x, order)
    return x.reshape(result.shape) if x.size else result


@jax.custom_jvp
def _refusing(x: Any) -> Any:
    return -x


@_refusing.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise AssertionError


def retyped(x: Any, y: Any) -> Any:
    """The result is typed as if nothing sharded it."""
    return jax.reshard(lax.add(x, y), jax.P(*[None] * x.ndim))


def fill_for_clip(x: Any, i: Any, **how: Any) -> Any:
    """An index out of range gives zeros, whatever the mode."""
    return jnp.take(x, i, **{**how, "mode": "fill", "fill_value": 0})


Bug = tuple[str, str, dict[str, Any], str]
"""An operation, the module with what it calls, what is replaced, and the kind of axes."""

BUGS: dict[str, Bug] = {
    "an all-reduce dropped": ("reduce_sum", "lax", {"reduce_sum": dropped_all_reduce}, "auto"),
    "a sum for a maximum": ("reduce_max", "lax", {"reduce_max": sum_for_maximum}, "auto"),
    "a start within the first shard": ("dynamic_slice_constant", "lax", {"dynamic_slice": start_by_shard}, "auto"),
    "a value as a start, within the shard": ("dynamic_slice_2d", "lax", {"dynamic_slice": start_by_shard}, "auto"),
    "an update not clamped": (
        "dynamic_update_slice_constant", "lax", {"dynamic_update_slice": update_not_clamped}, "auto"),
    "a halo too narrow": ("reduce_window_sum", "lax", {"reduce_window": narrow_halo}, "auto"),
    "a halo too narrow for maxima": ("reduce_window_max", "lax", {"reduce_window": narrow_halo}, "auto"),
    "padding on the other side": ("pad", "lax", {"pad": pad_on_the_other_side}, "auto"),
    "unequal parts exchanged": ("concatenate", "lax", {"concatenate": unequal_parts}, "auto"),
    "strides that begin again": ("slice", "lax", {"slice": strides_begin_again}, "auto"),
    "each shard reversed": ("rev", "lax", {"rev": lambda x, d: _halves(lambda y: lax.rev(y, d), x, d[0])}, "auto"),
    "each shard rolled": ("roll", "jnp", {"roll": lambda x, n, a: _halves(lambda y: jnp.roll(y, n, a), x, a)}, "auto"),
    "each shard sorted": ("sort", "lax", {"sort": lambda x, a: _halves(lambda y: lax.sort(y, a), x, a)}, "auto"),
    "a running sum of each shard": (
        "cumsum", "lax", {"cumsum": lambda x, a, **k: _halves(lambda y: lax.cumsum(y, a, **k), x, a)}, "auto"),
    "a running sum the other way": (
        "cumsum", "lax", {"cumsum": lambda x, a, reverse: lax.cumsum(x, a, reverse=not reverse)}, "auto"),
    "a transform of each shard": (
        "fft_along", "jnp", {"fft": SimpleNamespace(fft=lambda x, n, axis: jnp.fft.ifft(x, n=n, axis=axis),
                                                   ifft=jnp.fft.fft)}, "auto"),
    "half a product": ("dot_general", "lax", {"dot_general": products_of_half}, "auto"),
    "a tap of a convolution lost": ("conv", "lax", {"conv_general_dilated": dilation_lost}, "auto"),
    "a transposition left out": ("transpose", "lax", {"transpose": untransposed}, "auto"),
    "the last of equal elements": ("argmax", "lax", {"argmax": last_of_equals}, "auto"),
    "places within a shard": ("top_k", "lax", {"top_k": local_places}, "auto"),
    "an index filled in place of clipped": ("take", "jnp", {"take": fill_for_clip}, "auto"),
    "cases exchanged": ("select_n", "lax", {"select_n": lambda p, x, y: lax.select_n(p, y, x)}, "auto"),
    "bounds exchanged": ("clamp", "lax", {"clamp": lambda a, x, b: lax.clamp(b, x, a)}, "auto"),
    "a loop that ends early": ("fori_index", "lax", {"fori_loop": shorter_loop}, "auto"),
    "counted within a shard": (
        "iota", "lax", {"broadcasted_iota": lambda t, s, d, **k: lax.broadcasted_iota(t, s, d, **k) %
                        jnp.array(max(1, s[d] // 2), t)}, "auto"),
    "a gradient refused": ("neg", "lax", {"neg": _refusing}, "explicit"),
    "a wrong type": ("add", "lax", {"add": retyped}, "explicit"),
    "an all-reduce dropped on explicit axes": ("reduce_sum", "lax", {"reduce_sum": dropped_all_reduce}, "explicit"),
}  # fmt: skip
