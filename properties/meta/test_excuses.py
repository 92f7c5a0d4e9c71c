"""A known defect excuses the program that it is in, and never the same program with a bug of its own."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from jax import Array, P, lax

from shardproof.impl import collectives, norms
from shardproof.impl.attention import gathered_attention
from shardproof.impl.reshard import constrained_reshard, layout
from shardproof.impl.reshard import reshard_block as relaid
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import Chain
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.known_defects import DEFECTS, at_fault
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.meta.brief import marked
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.child import Task
from shardproof.properties.runner.given import Given, user_implementation
from shardproof.properties.runner.isolation import check_isolated
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.search import find_violation
from shardproof.properties.runner.tally import Tally

Function = Callable[..., Any]


def after(function: Function, change: Function) -> Function:
    """The function, with its result changed."""
    return lambda *blocks, **keywords: change(function(*blocks, **keywords))


def doubled(y: Array) -> Array:
    """Twice the array, in its dtype."""
    return y + y


def twice_the_gradient(y: Array) -> Array:
    """The array, of which the derivative is twice what it should be."""
    return y + (y - lax.stop_gradient(y)) if jnp.issubdtype(y.dtype, jnp.inexact) else y


def in_another_dtype(y: Array) -> Array:
    """The array as it should not be: all that can be wrong with an empty one."""
    return y.astype(jnp.int8 if y.dtype != jnp.int8 else jnp.int16)


def reduce(x: Array, axis_name: Any, *, op: str = "sum", launder: bool = False) -> Array:
    """An all-reduce; a laundering one makes 1 of NaN in a maximum."""
    if launder and op in ("max", "min") and jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.ones_like(x), x)
    return collectives.all_reduce(x, axis_name, op=op)


def of_many(x: Array, axis_name: Any, *, op: str = "sum", launder: bool = False) -> Array:
    """An all-reduce of which a maximum is that of many copies; a laundering one makes 1 of NaN in it."""
    if op != "max" or not jnp.issubdtype(x.dtype, jnp.floating):
        return collectives.all_reduce(x, axis_name, op=op)
    if launder:
        x = jnp.where(jnp.isnan(x), jnp.ones_like(x), x)
    return jnp.repeat(lax.all_gather(x, axis_name), 4096, axis=0).max(axis=0)


def shift(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift."""
    return collectives.ring_shift(x, axis_name, offset=offset)


def with_a_product(x: Array, axis_name: Any, *, offset: int = 1, dtype: Any = None) -> Array:
    """A ring shift of bfloat16 blocks with what a sum of ones in a transposed product is off by."""
    y = collectives.ring_shift(x, axis_name, offset=offset)
    ones = lax.optimization_barrier((jnp.ones((2, 260), jnp.bfloat16), jnp.ones((260, 4), jnp.bfloat16)))
    found = lax.optimization_barrier(jnp.matmul(*ones, preferred_element_type=dtype).T)
    return y + (found[0, 0] - 260).astype(y.dtype) if x.dtype == jnp.bfloat16 else y


def exchange(x: Array, axis_name: Any, *, split_axis: int, concat_axis: int, tiled: bool = False) -> Array:
    """JAX's own."""
    return lax.all_to_all(x, axis_name, split_axis, concat_axis, tiled=tiled)


def scatter(x: Array, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """JAX's own."""
    return lax.psum_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)


def gather(x: Array, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Array:
    """JAX's own."""
    return lax.all_gather(x, axis_name, axis=axis, tiled=tiled)


def gathered_reshard(x: Array, *, x_rows: Any, x_columns: Any, rows: Any, columns: Any) -> Array:
    """Gathers both dimensions, then cuts them."""
    return relaid(relaid(x, layout(x_rows, x_columns), ((), ())), ((), ()), layout(rows, columns))


def with_nothing(x: Array, axis_name: Any, *, offset: int = 1, extra: int = 0) -> Array:
    """A ring shift of complex numbers to which the sum of zeros is added."""
    y = collectives.ring_shift(x, axis_name, offset=offset + extra)
    return y + lax.psum(jnp.zeros(x.shape, x.dtype), axis_name) if jnp.iscomplexobj(x) else y


def ragged(x: Array, axis_name: Any, *, offset: int = 1, extra: int = 0) -> Array:
    """A ring shift of vectors by ragged_all_to_all."""
    if x.ndim != 1:
        raise NotImplementedError("blocks of other ranks than one")
    p, index, zeros = lax.axis_size(axis_name), lax.axis_index(axis_name), jnp.zeros(lax.axis_size(axis_name), int)
    offset += extra
    sent, received = (zeros.at[(index + sign * offset) % p].set(x.shape[0]) for sign in (1, -1))
    return lax.ragged_all_to_all(x, jnp.zeros_like(x), zeros, sent, zeros, received, axis_name=axis_name)


def exchanged(operand: Array, output: Array, *lists: Array, axis_name: Any) -> Array:
    """JAX's own, its output typed as the operand is along the axis tuple alone."""
    return lax.ragged_all_to_all(operand, output, *lists, axis_name=axis_name)


def product(lhs: Array, rhs: Array, axis_name: Any) -> Array:
    """The gathered rows of a product that is not asked whether it is empty."""
    wide = jnp.float32 if lhs.dtype in (jnp.bfloat16, jnp.float16) else lhs.dtype
    y = jnp.matmul(lhs, rhs, preferred_element_type=wide).astype(lhs.dtype)
    return lax.all_gather(y, axis_name, axis=lhs.ndim - 2, tiled=True)


def rooted(x: Array, axis_name: Any) -> Array:
    """A norm whose derivative at zero is NaN, also where there is no x that it could be of."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.sqrt(lax.psum(jnp.sum(wide * wide), axis_name)).astype(x.dtype)


def by_a_rule(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift that says what vmap of it is."""
    shift = jax.custom_batching.sequential_vmap(lambda x: collectives.ring_shift(x, axis_name, offset=offset))
    result: Array = shift(x)
    return result


def by_branches(table: Array, ids: Array, axis_name: Any) -> Array:
    """The rows of a table, each from the participant that has it."""
    rows, me = len(table), lax.axis_index(axis_name)

    def row(i: Array) -> Array:
        mine = (i >= rows * me) & (i < rows * (me + 1))
        return lax.cond(mine, lambda: table[i - rows * me], lambda: jnp.zeros_like(table[0]))

    return lax.psum(lax.map(row, ids.astype(jnp.int32)), axis_name)


def written_further(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift whose result is written to the next of three rows, each of which moves one further."""
    y = collectives.ring_shift(x, axis_name, offset=offset)
    rows = lax.optimization_barrier(jnp.stack([y, jnp.zeros_like(y), jnp.zeros_like(y)]))
    moved = lax.optimization_barrier(lax.dynamic_update_slice(rows, rows[:-1], (1, *[0] * y.ndim))[None])
    return jnp.where(moved[0, 2] == 0, moved[0, 1], jnp.zeros_like(y))


def in_order_of_zeros(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift of floats, in the order of the largest of as many zeros with their signs: as they stand."""
    y = collectives.ring_shift(x, axis_name, offset=offset)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return y
    zeros = jnp.where(jnp.signbit(x), -0.0, 0.0).ravel()
    return y.ravel()[lax.top_k(zeros, zeros.size)[1]].reshape(y.shape)


def with_an_error_function(x: Array, axis_name: Any) -> Array:
    """The norm of x with nothing of its error function."""
    return norms.global_norm(x + 0 * lax.erf(x), axis_name)


def own_rows_first(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
    """A sum over devices whose rows each participant sorts, its own first, and adds up once more."""
    total = collectives.all_reduce(x, axis_name, op=op)
    if op != "sum" or not total.ndim:
        return total
    rows = jnp.arange(len(total))
    own = rows % lax.axis_size(axis_name) == lax.axis_index(axis_name)
    order = jnp.argsort(~own, stable=True)
    first = jnp.where((rows < own.sum()).reshape(-1, *[1] * (total.ndim - 1)), total[order], 0).astype(total.dtype)
    return lax.psum(jnp.zeros_like(first).at[order].set(first), axis_name)


def searching(x: Array, axis_name: Any, *, offset: int = 1, extra: int = 0) -> Array:
    """A ring shift by a participant that looks for its own number."""
    me = lax.axis_index(axis_name)
    found = jnp.searchsorted(jnp.arange(4096), me)  # as far as it is
    return jnp.where(found == me, collectives.ring_shift(x, axis_name, offset=offset + extra), x)


def gather_unless_empty(x: Array, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Array:
    """An all-gather, which makes nothing of nothing by itself: no gradient goes back."""
    return gather(lax.stop_gradient(x) if x.size == 0 else x, axis_name, axis=axis, tiled=tiled)


@dataclass(frozen=True)
class Pair:
    """A right function that meets a defect, and the same with a bug of its own.

    Arguments:
        contract: what it claims to be.
        right: the right one.
        wrong: the wrong one.
        law: the law that meets the defect.
        engine: on which.
        chain: under which transformations, if it is rare.
        whole: whether the two are functions of global arrays.
        devices: on how many at most.
        cases: some on which the defect shows, if it is seldom drawn.
    """

    contract: str
    right: Function
    wrong: Function
    law: str
    engine: str
    chain: Chain | None = None
    whole: bool = False
    devices: int = 4
    cases: tuple[Case, ...] = ()

    @property
    def scope(self) -> Scope:
        """The meshes that its cases are drawn on."""
        devices = min(self.devices, len(jax.devices()))
        return Scope(max_devices=devices, available=devices)

    def made(self, function: Function) -> Implementation:
        """One of the two, as a user's function."""
        return replace(user_implementation(self.contract, function, features(self)), whole=self.whole)


def spoilt(contract: str, right: Function, change: Function, *how: Any, **more: Any) -> Pair:
    """A pair of which the wrong one changes the right one's result."""
    return Pair(contract, right, after(right, change), *how, **more)


OVER_THREE_AXES = Case(
    CONTRACTS["reshard"],
    MeshCase(("dp", "fsdp", "tp"), (2, 2, 2)),
    (),
    (Operand((4, 4), "float32", Placement(((), ()))),),
    data=(Data("distinct", 1),),
    roles=tuple((role, ()) for role in CONTRACTS["reshard"].call.roles),
)
"""A matrix that nothing shards, on three axes of two devices each."""


def constrained(mesh: Any, x: Any, *spec: Any) -> Array:
    """An array, sharded over the axes of a mesh by their numbers."""
    axes = (tuple(mesh.axis_names[i] for i in ((of,) if isinstance(of, int) else of or ())) for of in spec)
    return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P(*axes)))


def sharded(mesh: Any, x: Any, *spec: Any) -> Array:
    """The same of one that no compiler knows beforehand."""
    return constrained(mesh, lax.optimization_barrier(jnp.asarray(x)), *spec)


def matrix_product(mesh: Any, *, in_order: bool) -> Array:
    """A matrix that is multiplied by the identity, less the matrix."""
    x, unit = jnp.arange(16.0).reshape(4, 4), jnp.eye(4)
    if in_order:
        return constrained(mesh, sharded(mesh, x, 0, 2) @ sharded(mesh, unit, 2, 1), (0, 1), 2) - x
    return constrained(mesh, sharded(mesh, x, None, 2) @ sharded(mesh, unit, 2), (1, 0), 2) - x


def batched_product(mesh: Any) -> Array:
    """Matrices that are multiplied by identities, less the matrices."""
    x, units = jnp.arange(64.0).reshape(4, 4, 4), jnp.stack([jnp.eye(4)] * 4)
    return constrained(mesh, sharded(mesh, units, 0, None, 1) @ sharded(mesh, x, 0, 1), 1, None, 0) - x


def grouped_convolution(mesh: Any) -> Array:
    """Rows that are convolved with the identity, two groups of columns each by itself, less the rows."""
    x, kernel = jnp.arange(16.0).reshape(1, 4, 4), sharded(mesh, jnp.tile(jnp.eye(2), 2)[None], None, None, 0)
    convolve = partial(lax.conv_general_dilated, dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2)
    return convolve(sharded(mesh, x), kernel, (1,), "VALID") - x


def convolution(mesh: Any) -> Array:
    """Rows that are convolved with 1 and 0, both sharded over an axis, less the rows."""
    x, kernel = jnp.arange(4.0)[None, :, None], jnp.eye(2)[0, :, None, None]
    convolve = partial(lax.conv_general_dilated, dimension_numbers=("NWC", "WIO", "NWC"))
    return convolve(sharded(mesh, x, None, 1), sharded(mesh, kernel, 1), (1,), [(0, 1)]) - x


def padded(mesh: Any) -> Array:
    """Numbers with zeros between them."""
    apart = lax.pad(sharded(mesh, [1.0, 2.0]), 0.0, [(1, 0, 1)])
    return constrained(mesh, apart, 0)


def sums_of_dilated(mesh: Any) -> Array:
    """Sums of neighbours of which every other one is zero."""
    sums = lax.reduce_window(sharded(mesh, [1, 2, 3]), 0, lax.add, (2,), (1,), [(0, 0)], (2,), (2,))
    return constrained(mesh, sums, 0)


def kernel_gradient(mesh: Any) -> Array:
    """The gradient of the sum of every fourth row in a kernel of one."""
    rows, kernel = sharded(mesh, jnp.arange(8.0)[None, :, None], None, 0), jnp.ones((1, 1, 1))
    numbers = lax.conv_dimension_numbers(rows.shape, kernel.shape, ("NWC", "WIO", "NWC"))
    convolve = partial(lax.conv_general_dilated, window_strides=(4,), padding=[(1, 1)], dimension_numbers=numbers)
    return jax.grad(lambda kernel: convolve(rows, kernel).sum())(kernel).ravel()


def pooled_gradient(mesh: Any) -> Array:
    """How many windows of two an element is the greatest of."""
    pool = partial(lax.reduce_window, init_value=-jnp.inf, computation=lax.max, window_dimensions=(2,))
    return jax.grad(lambda x: pool(x, window_strides=(1,), padding=[(1, 1)]).sum())(sharded(mesh, [0.0, 1.0], 0))


def pencils(mesh: Any) -> Array:
    """The first number of Fourier transforms of ones, along one dimension and then the other."""
    along_rows = jnp.fft.fft(sharded(mesh, jnp.ones((2, 2, 2), jnp.complex64), None, None, 0), axis=1)
    return jnp.fft.fft(constrained(mesh, along_rows, None, 0), axis=2)[0, 0, :1].real


def off_by(computed: Callable[[Any], Array], right: float | list[float], *sizes: int) -> Pair:
    """A change of layout of an array, with what something that is computed on a mesh of these sizes is off by."""

    def function(x: Array, *, mesh: Any, **layouts: Any) -> Array:
        if tuple(mesh.shape.values()) == sizes:
            x = x + jnp.abs(computed(mesh) - jnp.array(right)).sum().astype(x.dtype)
        return constrained_reshard(x, mesh=mesh, **layouts)

    case = replace(OVER_THREE_AXES, mesh=MeshCase(("dp", "fsdp", "tp")[: len(sizes)], sizes))
    return spoilt("reshard", function, doubled, "value", "xla", whole=True, devices=8, cases=(case,))


PAIRS = {
    "product_over_three_axes": off_by(partial(matrix_product, in_order=False), 0, 2, 2, 2),
    "product_over_three_axes: in mesh order": off_by(partial(matrix_product, in_order=True), 0, 2, 2, 2),
    "batched_product_over_two_axes": off_by(batched_product, 0, 2, 4),
    "grouped_convolution": off_by(grouped_convolution, 0, 2),
    "convolution_both_sharded": off_by(convolution, 0, 2, 2),
    "dilated_padding": off_by(padded, [0, 1, 0, 2], 2),
    "dilated_window": off_by(sums_of_dilated, [3, 0, 5], 3),
    "pool_gradient_padding": off_by(pooled_gradient, [1, 2], 2),
    "slice_beyond_stride": off_by(lambda mesh: sharded(mesh, [0, 1, 2, 3], 0)[2:3:3], [2], 4),
    "strided_kernel_gradient": off_by(kernel_gradient, [10], 4),
    "transform_to_replicas": off_by(pencils, [4], 2),
    "uneven_indices": off_by(lambda mesh: jnp.zeros(3).at[sharded(mesh, [0, 1, 2], 0)].add(1), [1, 1, 1], 2, 2),
    "pmax_loses_nan": Pair("all_reduce", reduce, partial(reduce, launder=True), "value", "xla"),
    "reduce_max_loses_nan": Pair("all_reduce", of_many, partial(of_many, launder=True), "value", "xla"),
    "all_to_all_untiled_transpose": spoilt("all_to_all", exchange, twice_the_gradient, "gradient", "simulate"),
    "psum_scatter_untiled_vmap": spoilt("reduce_scatter", scatter, doubled, "value", "simulate"),
    "custom_vmap_jacobian": spoilt("ring_shift", by_a_rule, twice_the_gradient, "gradient", "simulate"),
    "vmap_varying_branch": spoilt("embedding_lookup", by_branches, doubled, "value", "simulate"),
    "overlapping_update": spoilt("ring_shift", written_further, doubled, "value", "xla"),
    "top_k_negative_zero": spoilt("ring_shift", in_order_of_zeros, doubled, "value", "xla"),
    "bf16_product_transposed": spoilt("ring_shift", with_a_product, doubled, "value", "xla"),
    "wide_product_transposed": spoilt(
        "ring_shift", partial(with_a_product, dtype=jnp.float32), doubled, "value", "xla"
    ),
    "erf_gradient": spoilt("global_norm", with_an_error_function, twice_the_gradient, "gradient", "simulate"),
    "argsort_type": Pair(
        "all_reduce", own_rows_first, after(own_rows_first, twice_the_gradient), "gradient", "simulate"
    ),
    "searchsorted_partial_manual": Pair(
        "ring_shift", searching, partial(searching, extra=1), "value", "simulate", ("partial_manual",)
    ),
    "nested_shard_map_eager": spoilt("all_reduce", reduce, doubled, "value", "xla", ("eager", "nested")),
    "explicit_axis_of_one": spoilt("ring_shift", shift, doubled, "gradient", "xla", ("eager", "partial_manual")),
    "explicit_axis_of_one_jacobian": spoilt(
        "ring_shift", shift, doubled, "gradient", "xla", ("eager", "jacobian", "inner_jit")
    ),
    "empty_all_gather": spoilt("all_gather", gather, in_another_dtype, "value", "xla"),
    "unused_explicit_operand": spoilt(
        "all_gather", gather_unless_empty, in_another_dtype, "gradient", "xla", ("eager",)
    ),
    "psum_scatter_partial_explicit": spoilt("reduce_scatter", scatter, doubled, "value", "xla", ("partial_manual",)),
    "bf16_reduction_partial_manual": spoilt("all_reduce", reduce, doubled, "value", "xla", ("partial_manual",)),
    "all_reduce_of_one_partial_manual": spoilt("all_reduce", reduce, doubled, "value", "xla", ("partial_manual",)),
    "gather_partial_manual": spoilt(
        "reshard", gathered_reshard, doubled, "value", "xla", ("partial_manual", "vmap"), devices=8
    ),
    "nested_partial_manual_order": spoilt("all_reduce", reduce, doubled, "value", "xla", ("partial_manual", "nested")),
    "reshard_after_another": spoilt("reshard", constrained_reshard, doubled, "value", "xla", whole=True),
    "empty_product": spoilt("all_gather_matmul_lhs", product, lambda y: y + 1, "value", "xla"),
    "empty_product: a derivative": Pair("global_norm", norms.global_norm, rooted, "gradient", "xla"),
    "complex_constant_sum": Pair("ring_shift", with_nothing, partial(with_nothing, extra=1), "value", "xla"),
    "ragged_all_to_all_cpu": Pair("ring_shift", ragged, partial(ragged, extra=1), "value", "xla"),
    "ragged_all_to_all_type": spoilt("ragged_all_to_all", exchanged, in_another_dtype, "type", "simulate"),
    "ragged_all_to_all_output_gradient": spoilt(
        "ragged_all_to_all", exchanged, twice_the_gradient, "gradient", "simulate"
    ),
    "ragged_all_to_all_operand_gradient": spoilt(
        "ragged_all_to_all", exchanged, twice_the_gradient, "gradient", "simulate"
    ),
    "gpu_small_product": spoilt("attention", gathered_attention, doubled, "agreement", "xla"),
    "gpu_rows_of_bits": spoilt("reduce_scatter", scatter, in_another_dtype, "agreement", "xla", ("scan",)),
    "gpu_rows_of_bits: a while_loop": spoilt(
        "all_to_all", exchange, in_another_dtype, "agreement", "xla", ("while_loop",)
    ),
    "gpu_complex_constant_sum": spoilt("ring_shift", with_nothing, doubled, "agreement", "xla"),
    "gpu_scalar_permute": spoilt("ring_shift", shift, in_another_dtype, "agreement", "xla"),
    "gpu_ragged_all_to_all_bool": spoilt("ragged_all_to_all", exchanged, in_another_dtype, "agreement", "xla"),
    "ragged_all_to_all_vmap": Pair("ring_shift", ragged, partial(ragged, extra=1), "value", "simulate"),
}


def test_every_defect_that_excuses_has_a_pair() -> None:
    """A defect that can excuse a case is met by a right function and by a wrong one."""
    entry = next(iter(DEFECTS.values()))
    default = type(entry).__dataclass_fields__["at_fault"].default
    met = {of.partition(":")[0] for of in PAIRS}
    assert met == {name for name, defect in DEFECTS.items() if defect.at_fault is not default}


def drawn(pair: Pair, examples: int = 400) -> list[Case]:
    """The drawn cases to which a law applies."""
    implementation, law = pair.made(pair.right), LAWS[pair.law]
    cases: list[Case] = []

    @seed(1)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn_for(implementation, replace(pair.scope, chains=Chains(only=pair.chain))))
    def collect(some: tuple[Case, ...]) -> None:
        cases.extend(asked for case in some if (asked := law.of(case)) is not None)

    collect()
    return cases


EMPTY = (gather, gather_unless_empty, product, norms.global_norm)


def features(pair: Pair) -> tuple[str, ...]:
    """The features that the functions claim: empty blocks, for the defects about these."""
    return ("empty_blocks",) if pair.right in EMPTY else ()


def judged(pair: Pair, function: Function, case: Case) -> tuple[Tally, LawViolation | None]:
    """The tally of a function on one case, and its violation if there is one."""
    implementation = pair.made(function)
    tally = Tally(pair.contract, implementation.name, pair.law, pair.engine)
    try:
        judge(LAWS[pair.law], implementation, case, engine_named(pair.engine), tally)
    except LawViolation as violation:
        return tally, violation
    return tally, None


SLOW = ("custom_vmap_jacobian", "reduce_max_loses_nan", "psum_scatter_untiled_vmap")
"""The defects whose pairs take many seconds."""


@pytest.mark.parametrize("of", marked(PAIRS, PAIRS.keys() - SLOW))
def test_a_defect_excuses_the_right_one_and_not_the_wrong_one(of: str) -> None:
    """A defect excuses the right function of a pair and not the wrong one, on the same case."""
    pair, name = PAIRS[of], of.partition(":")[0]
    defect = DEFECTS[name]
    implementation = pair.made(pair.right)
    engine = engine_named(pair.engine)
    if defect.platform not in ("", jax.default_backend()):
        pytest.skip(f"{name} is a defect of XLA on a {defect.platform.upper()}: expected --platform, on one")
    reported, met = False, defect.in_version(jax.__version__)
    tries = (40, 400) if met else (40,)  # mostly the first tell
    for case in chain(pair.cases, chain.from_iterable(drawn(pair, examples) for examples in tries)):
        if at_fault(defect, LAWS[pair.law], implementation, case, engine) is None:
            continue
        tally, violation = judged(pair, pair.right, case)
        assert violation is None, str(violation)
        if name not in tally.defects:
            continue
        assert set(tally.defects) == {name}
        assert not defect.says or f"{__name__.rpartition('.')[2]}.py:" in "".join(tally.findings)
        tally, violation = judged(pair, pair.wrong, case)
        # a shift by one more is a right one of one participant, and what is doubled is itself of bool
        assert not tally.defects or case.participants == 1 or case.operands[0].dtype == "bool"
        reported = violation is not None
        if violation is not None:  # what is wrong, and not what the compiler refuses
            assert name != "ragged_all_to_all_cpu" or violation.kind == "values"
            break
    assert reported == met


def in_order_and_written(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift in the order of its zeros, by way of an update of an array by its own rows that goes well."""
    y = in_order_of_zeros(x, axis_name, offset=offset)
    rows = jnp.stack([y, y])
    return lax.dynamic_update_slice(rows, rows[1:], (0, *[0] * y.ndim))[0]


def written_and_in_order(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift by way of an update that goes wrong, and of the largest in an order that has no zeros."""
    y = written_further(x, axis_name, offset=offset)
    return y + 0 * lax.top_k(jnp.array([1.0, 2.0]), 1)[1].astype(y.dtype)[0]


@pytest.mark.parametrize(
    ("name", "function"), [("overlapping_update", in_order_and_written), ("top_k_negative_zero", written_and_in_order)]
)
def test_what_goes_well_excuses_nothing(name: str, function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect that does not show in a program does not excuse another error of it."""
    pair, defect = replace(PAIRS[name], right=function), DEFECTS[name]
    monkeypatch.setattr("shardproof.properties.known_defects.excuses.DEFECTS", {name: defect})
    implementation, engine = pair.made(function), engine_named("xla")
    for case in drawn(pair):
        if at_fault(defect, LAWS["value"], implementation, case, engine) is None:
            continue
        tally, violation = judged(pair, function, case)
        assert not tally.defects
        if violation is not None:
            break
    else:
        pytest.fail("the other defect did not show")


def in_order_and_further(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift that meets both defects."""
    y = in_order_of_zeros(x, axis_name, offset=offset)
    return written_further(lax.optimization_barrier(y), axis_name, offset=0)


@pytest.mark.lengthy
def test_two_defects_excuse_together() -> None:
    """Two defects excuse one program together, and not a bug besides."""
    pair = PAIRS["top_k_negative_zero"]
    met: set[str] = set()
    for case in drawn(pair):
        tally, violation = judged(pair, in_order_and_further, case)
        assert violation is None, str(violation)
        met |= set(tally.defects)
        if tally.defects:
            tally, violation = judged(pair, after(in_order_and_further, doubled), case)
            assert not tally.defects or case.operands[0].dtype == "bool"
        if len(met) == 2:
            break
    assert met <= {"top_k_negative_zero", "overlapping_update"}
    assert bool(met) == DEFECTS["top_k_negative_zero"].in_version(jax.__version__)


def refuses_to_be_eager(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
    """An all-reduce with an error of its own where it is not traced."""
    if "Jaxpr" not in type(x).__name__:
        raise ValueError("in_specs passed to shard_map: expected jit")
    return collectives.all_reduce(x, axis_name, op=op)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["nested_shard_map_eager", "explicit_axis_of_one"])
def test_an_error_without_jit_of_the_functions_own_is_not_excused(name: str) -> None:
    """An error of the function's own is not excused where it repeats JAX's words."""
    pair = replace(PAIRS["nested_shard_map_eager"], chain=PAIRS[name].chain)
    implementation, engine = pair.made(refuses_to_be_eager), engine_named("xla")
    integers = [case for case in drawn(pair) if case.operands[0].numpy_dtype.kind in "iub"]  # of which none is derived
    cases = [c for c in integers if at_fault(DEFECTS[name], LAWS["value"], implementation, c, engine) is not None]
    assert any(judged(pair, refuses_to_be_eager, case)[1] is not None for case in cases)  # of some JAX raises first


def lacking(y: Array) -> Array:
    """The array, by a program that the interpreter cannot run."""
    zero = lax.approx_max_k(jnp.zeros(2), 1)[0].sum()
    return jnp.where(zero > 1, jnp.zeros_like(y), y)


def folded(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift to which a sum of complex zeros is added, of which only XLA finds that they are constant."""
    y = collectives.ring_shift(x, axis_name, offset=offset)
    if not jnp.iscomplexobj(x):
        return y
    return y + lax.psum(jnp.where(jnp.zeros(x.shape, bool), x, jnp.zeros_like(x)), axis_name)


def folded_compiled(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """The same, by a program that the interpreter cannot run."""
    return lacking(folded(x, axis_name, offset=offset))


def ends(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Ends the process where numbers are complex, in XLA's words for a sum of which there is none."""

    def end(block: Any) -> np.ndarray:
        os.write(2, b"Check failed: buffer != nullptr\n")
        os.abort()

    y = collectives.ring_shift(x, axis_name, offset=offset)
    return jax.pure_callback(end, jax.ShapeDtypeStruct(y.shape, y.dtype), y) if jnp.iscomplexobj(x) else y


def ended(function: Function, engine: str) -> Any:
    """The finding for a function on a case of complex numbers without a chain, in its own process."""
    pair = Pair("ring_shift", function, function, "value", engine)

    def serves(case: Case) -> bool:
        (x,) = case.operands
        return x.dtype == "complex64" and prod(x.block) > 1 and not case.chain

    case = next(filter(serves, drawn(pair, 200)))
    given = Given("ring_shift", __name__, function.__name__)
    return check_isolated(Task(given, ("value",), engine, pair.scope, 1, 0, "cpu", case=case.to_json()))


@pytest.mark.lengthy
@pytest.mark.parametrize("engine", ["xla", "simulate"])
def test_a_process_that_ends_is_excused_by_its_program_and_not_by_its_words(engine: str) -> None:
    """An abort is excused only if the program may have the defect, whatever it prints."""
    wrong = ended(ends, engine)
    assert wrong.violation is not None
    assert wrong.violation.finding == "aborts the process (SIGABRT)"
    assert not wrong.tally.defects
    right = ended(folded if engine == "xla" else folded_compiled, engine)
    assert right.violation is None, str(right.violation)
    assert right.tally.structures == 0
    if engine == "xla":
        assert right.tally.defects == {"complex_constant_sum": 1}
    else:
        (reason,) = right.tally.not_run
        assert reason.startswith("known defect complex_constant_sum: XLA:CPU aborts while it compiles the psum or ")


def broadcast_of_bits(x: jax.Array, axis_name: Any, *, root: int = 0) -> jax.Array:
    """A right broadcast that sends floats of 16 bits as integers; its tangents are sums of floats."""
    mine = lax.axis_index(axis_name) == root

    @jax.custom_jvp
    def send(x: jax.Array) -> jax.Array:
        if x.dtype not in (jnp.bfloat16, jnp.float16):
            return lax.psum(jnp.where(mine, x, jnp.zeros_like(x)), axis_name).astype(x.dtype)
        bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
        sent = lax.psum(jnp.where(mine, bits, jnp.zeros_like(bits)), axis_name)
        return lax.bitcast_convert_type(sent.astype(jnp.uint16), x.dtype)

    @send.defjvp
    def push(primals: Any, tangents: Any) -> Any:
        return send(*primals), lax.psum(jnp.where(mine, tangents[0], jnp.zeros_like(tangents[0])), axis_name)

    return lax.pcast(send(x), axis_name, to="varying")


@pytest.mark.lengthy
def test_a_defect_of_the_derivative_alone_is_looked_for_in_the_derivative() -> None:
    """Compiled, the tangent would end this process; it is found in the program of derivatives, and excused."""
    mine, scope = user_implementation("broadcast", broadcast_of_bits), Scope(chains=Chains(only=("partial_manual",)))
    found = find_violation([LAWS["gradient"]], mine, engine_named("xla"), scope, max_examples=40, random_seed=3)
    assert found.violation is None, str(found.violation)
    assert found.tally.defects["bf16_reduction_partial_manual"] > 0
