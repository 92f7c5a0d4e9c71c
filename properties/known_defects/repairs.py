"""Contexts in which JAX or XLA is without one of its defects.

Each replaces a rule of JAX's by the right one, for one primitive alone. What was traced is dropped on the way in and
out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching

from shardproof.impl.collectives import cast_varying, varying
from shardproof.impl.ragged import gathered_ragged_all_to_all
from shardproof.properties.engines.engine import XlaEngine, device_mesh, forget
from shardproof.properties.programs.transformations import zeros_of_type

Without = AbstractContextManager[None]


@contextmanager
def apply_patches(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    """JAX or XLA with some patches."""
    forget()
    try:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield
    finally:
        forget()


def _in_place(rules: MutableMapping[Any, Any], primitive: Any, rule: Callable[..., Any]) -> Without:
    return apply_patches(mock.patch.dict(rules, {primitive: rule}))


def replace_bind(binds: Mapping[Any, Callable[..., Any]]) -> Without:
    """Replaces the `bind` of primitives."""
    return apply_patches(*(mock.patch.object(primitive, "bind", bind) for primitive, bind in binds.items()))


def exchange_transposed(primitive: Any) -> Without:
    """The transpose of an all_to_all is the primitive with its axes exchanged, and not the function."""

    def transpose(cotangent: Any, x: Any, *, split_axis: int, concat_axis: int, **params: Any) -> list[Any]:
        if type(cotangent) is ad.Zero:
            return [ad.Zero(x.aval)]
        return [primitive.bind(cotangent, split_axis=concat_axis, concat_axis=split_axis, **params)]

    return _in_place(ad.primitive_transposes, primitive, transpose)


def scatter_batched(primitive: Any) -> Without:
    """The batch dimension of an untiled psum_scatter moves up by one where it stood behind the scattered one."""
    original = batching.fancy_primitive_batchers[primitive]

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        (x,), (d,) = values, dims
        named = params["axis_name"] if isinstance(params["axis_name"], tuple) else (params["axis_name"],)
        if d is None or axis_data.name in named or params["tiled"]:
            return original(axis_data, values, dims, **params)
        return original(axis_data, (jnp.moveaxis(x, d, 0),), (0,), **params)

    return _in_place(batching.fancy_primitive_batchers, primitive, batch)


def custom_vmap_mapped(primitive: Any) -> Without:
    """Where no primal is batched, the function of a custom_vmap runs as it is, in place of its rule."""
    original = ad.primitive_jvps[primitive]

    def jvp(primals: Any, tangents: Any, *, call: Any, rule: Any, out_tree: Any, **params: Any) -> Any:
        def sound(size: int, batched: Any, *operands: Any) -> Any:
            if any(jax.tree.leaves(batched)):
                return rule(size, batched, *operands)
            results = jax.tree.unflatten(out_tree, core.jaxpr_as_fun(call)(*jax.tree.leaves(operands)))
            return results, jax.tree.map(lambda result: False, results)

        return original(primals, tangents, call=call, rule=sound, out_tree=out_tree, **params)

    return _in_place(ad.primitive_jvps, primitive, jvp)


def operands_as_typed(primitive: Any) -> Without:
    """Operands of a mapped branch do not vary with the predicate: the branch was traced without that."""
    rule = batching.fancy_primitive_batchers[lax.cond_p]
    return apply_patches(mock.patch.dict(rule.__globals__, {"_bcast_select": lambda predicate, x, stopped: x}))


def error_function(primitive: Any) -> Without:
    """The derivative of erf is 2 / sqrt(pi) exp(-x^2), and that of erfc its negative."""

    def rule(of: Any, sign: int) -> Callable[..., Any]:
        def derived(primals: Any, tangents: Any, **params: Any) -> Any:
            (x,), (tangent,) = primals, tangents
            return of.bind(x, **params), tangent * (sign * 2 / math.sqrt(math.pi) * jnp.exp(-x * x)).astype(x.dtype)

        return derived

    rules = {lax.erf_p: rule(lax.erf_p, 1), lax.erfc_p: rule(lax.erfc_p, -1)}
    return apply_patches(mock.patch.dict(ad.primitive_jvps, rules))


def search_typed(primitive: Any) -> Without:
    """The result of searchsorted is typed on the mesh under which it is traced."""
    module = getattr(jnp.searchsorted, "__wrapped__").__globals__["hijax"]  # noqa: B009
    original = module.core

    def typed(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return original.typeof(x)
        varying = frozenset() if x.manual_axis_type is None else x.manual_axis_type.varying  # outside of a shard_map
        return original.typeof(cast_varying(jnp.zeros(x.shape, x.dtype), varying))

    sound = SimpleNamespace(**{**vars(original), "typeof": typed})
    return apply_patches(mock.patch.object(module, "core", sound))


def ragged_exchange(primitive: Any) -> Without:
    """A ragged_all_to_all without any of its defects: a function that meets one of them may meet another.

    Its result varies along all axes along which any operand does, an operand that is not mapped is broadcast to the
    batch, and its transpose is that of the gathered form, which sums cotangents of rows that were sent twice.
    """
    bind = primitive.bind
    batched, transposed = batching.fancy_primitive_batchers[primitive], ad.primitive_transposes[primitive]

    def typed(*operands: Any, **params: Any) -> Any:
        along = frozenset[str]().union(*(varying(one) for one in operands))
        return bind(*(cast_varying(one, along) for one in operands), **params)

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        if all(d is None for d in dims):
            return batched(axis_data, values, dims, **params)
        every = [
            jnp.broadcast_to(x, (axis_data.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(values, dims, strict=True)
        ]
        return batched(axis_data, every, [0] * len(every), **params)

    def transpose(cotangent: Any, operand: Any, output: Any, *lists: Any, axis_name: Any, **params: Any) -> list[Any]:
        rows = (operand, output)
        linear = [i for i, one in enumerate(rows) if ad.is_undefined_primal(one)]
        if type(cotangent) is ad.Zero or params.get("axis_index_groups") is not None:
            return list(transposed(cotangent, operand, output, *lists, axis_name=axis_name, **params))

        def exchange(*given: Any) -> Any:
            whole = dict(enumerate(rows)) | dict(zip(linear, given, strict=True))
            return gathered_ragged_all_to_all(whole[0], whole[1], *lists, axis_name=axis_name)

        result, pullback = jax.vjp(exchange, *(zeros_of_type(rows[i].aval) for i in linear))
        pulled = dict(zip(linear, pullback(cast_varying(cotangent, varying(result))), strict=True))
        return [pulled.get(0), pulled.get(1), None, None, None, None]

    return apply_patches(
        mock.patch.object(primitive, "bind", typed),
        mock.patch.dict(batching.fancy_primitive_batchers, {primitive: batch}),
        mock.patch.dict(ad.primitive_transposes, {primitive: transpose}),
    )


def order_typed(primitive: Any) -> Without:
    """All results of a sort vary along the axes along which any operand does."""
    original = primitive.bind

    def bind(*operands: Any, **params: Any) -> Any:
        along = frozenset[str]().union(*(varying(one) for one in operands))
        return original(*(cast_varying(one, along) for one in operands), **params)

    return replace_bind({primitive: bind})


def nothing_fused(primitive: Any) -> Without:
    """XLA fuses nothing, so that no loop reads what it has overwritten."""
    options = {"xla_disable_hlo_passes": "fusion"}
    return apply_patches(mock.patch.object(XlaEngine, "compiler_options", options))


def nothing_simplified(primitive: Any) -> Without:
    """XLA simplifies nothing, so that no transpose becomes one of a product's operands."""
    return apply_patches(mock.patch.object(XlaEngine, "compiler_options", {"xla_disable_hlo_passes": "algsimp"}))


def zeros_equal(primitive: Any) -> Without:
    """top_k compares elements with -0 replaced by 0."""
    original = primitive.bind

    def bind(x: Any, **params: Any) -> Any:
        _, places = original(jnp.where(x == 0, jnp.zeros_like(x), x), **params)
        return [jnp.take_along_axis(x, places, axis=params.get("axis", -1)), places]

    return replace_bind({primitive: bind})


def operands_replicated(primitive: Any) -> Without:
    """Every device computes all of what the primitive computes on global arrays."""
    original, prepare = primitive.bind, XlaEngine.prepare
    meshes: list[Any] = []

    def noted(engine: XlaEngine, program: Any, mesh: Any) -> Any:
        meshes[:] = [device_mesh(mesh)]
        return prepare(engine, program, mesh)

    def replicated(x: Any) -> Any:
        if jax.typeof(x).sharding.mesh.explicit_axes:
            return _laid_out(x, ())
        for _ in range(2):  # one alone may be merged with the layout that follows
            x = lax.with_sharding_constraint(x, jax.NamedSharding(meshes[0], jax.P()))
        return x

    def bind(*operands: Any, **params: Any) -> Any:
        if not meshes or jax.sharding.get_abstract_mesh().manual_axes:
            return original(*operands, **params)
        wanted = jax.eval_shape(lambda *of: original(*of, **params), *operands)
        results = original(*map(replicated, operands), **params)
        specs = jax.tree.map(lambda like: getattr(like.sharding, "spec", ()), wanted)
        return jax.tree.map(lambda x, spec: _laid_out(replicated(x), spec), results, specs)

    return apply_patches(mock.patch.object(primitive, "bind", bind), mock.patch.object(XlaEngine, "prepare", noted))


def _laid_out(x: Any, spec: Any) -> Any:
    """The array in a layout, if its mesh has explicit axes."""
    mesh = jax.typeof(x).sharding.mesh
    return jax.reshard(x, jax.NamedSharding(mesh, jax.P(*spec))) if mesh.explicit_axes else x


def maximum_of_gathered(primitive: Any) -> Without:
    """Maxima and minima over devices are those of the gathered blocks."""

    def gathered(reduce: Any, original: Any, x: Any, *, axes: Any, axis_index_groups: Any = None) -> Any:
        if axis_index_groups is not None:
            return original(x, axes=axes, axis_index_groups=axis_index_groups)
        every = lax.all_gather(x, axes, to="invarying")
        # NaN separately: XLA:CPU loses it in a maximum of many elements as well
        return jnp.where(jnp.isnan(every).any(axis=0), jnp.nan, reduce(every, axis=0))

    reductions: dict[Any, Any] = {lax.pmax_p: jnp.max, lax.pmin_p: jnp.min}
    return replace_bind({p: partial(gathered, reduce, p.bind) for p, reduce in reductions.items()})


def widened_first(primitive: Any) -> Without:
    """The operands of a product are of the dtype of its result before they are multiplied."""
    original = primitive.bind

    def bind(*operands: Any, preferred_element_type: Any = None, **params: Any) -> Any:
        if preferred_element_type is not None:
            operands = tuple(x.astype(jnp.promote_types(x.dtype, preferred_element_type)) for x in operands)
        return original(*operands, preferred_element_type=preferred_element_type, **params)

    return replace_bind({primitive: bind})
