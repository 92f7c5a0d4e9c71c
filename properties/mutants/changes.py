"""Kinds of changes of a traced equation that make a program wrong, each one function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Literal

from shardproof.impl.collectives import cast_varying
from shardproof.properties.engines.simulate.collectives import axes_of

Results = list[Any] | None
"""Other results of an equation; None: its own, since the change does not apply."""

Change = Callable[[Any, list[Any]], Results]
"""From an equation and its operands."""

SUMS = ("psum", "psum_invariant")
EXTREMA = ("pmax", "pmin")
GATHERS = ("all_gather", "all_gather_invariant")
ORDERED = (*GATHERS, "reduce_scatter", "all_to_all")
"""Collectives whose result depends on the order of an axis tuple."""

COLLECTIVES = (*SUMS, *EXTREMA, *ORDERED, "ppermute", "ragged_all_to_all")
NARROWER = {"float64": "float32", "float32": "bfloat16"}
"""The narrower dtype of a sum, by its own."""


@dataclass(frozen=True)
class Kind:
    """One way to change an equation.

    Arguments:
        name: that on the command line.
        law: the law that catches it.
        primitives: those that it changes.
        sentence: the change of a `{primitive}`, in words.
        change: the equation's other results.
        applies: whether it may change an equation of these primitives.
    """

    name: str
    law: str
    primitives: tuple[str, ...]
    sentence: str
    change: Change
    applies: Callable[[Any], bool] = lambda equation: True


def again(equation: Any, operands: list[Any], **params: Any) -> list[Any]:
    """The results of an equation with other parameters."""
    results = equation.primitive.bind(*operands, **{**equation.params, **params})
    return list(results) if equation.primitive.multiple_results else [results]


def with_axes(equation: Any, operands: list[Any], axes: tuple[str, ...]) -> list[Any]:
    """The results of a collective over another axis tuple."""
    return again(equation, operands, **{"axes" if "axes" in equation.params else "axis_name": axes})


def drop(equation: Any, operands: list[Any]) -> Results:
    """Every participant's own block, in the shape of the result."""
    (x, *_), params = operands, equation.params
    name, p = equation.primitive.name, lax.axis_size(axes_of(equation))
    if params.get("axis_index_groups") is not None:
        return None
    if name in GATHERS:
        dimension = params["all_gather_dimension"]
        return [jnp.concatenate([x] * p, dimension) if params["tiled"] else jnp.stack([x] * p, dimension)]
    if name == "reduce_scatter":
        dimension, index = params["scatter_dimension"], lax.axis_index(axes_of(equation))
        size = x.shape[dimension] // p
        piece = lax.dynamic_slice_in_dim(x, index * size, size, dimension)
        return [piece if params["tiled"] else jnp.squeeze(piece, dimension)]
    return operands if [v.aval.shape for v in equation.outvars] == [jnp.shape(y) for y in operands] else None


def forget_an_axis(equation: Any, operands: list[Any]) -> Results:
    """A reduction over all axes of a tuple but the last."""
    axes = axes_of(equation)
    return with_axes(equation, operands, axes[:-1]) if len(axes) > 1 else None


def reverse_the_axes(equation: Any, operands: list[Any]) -> Results:
    """A collective over the axis tuple backwards."""
    axes = axes_of(equation)
    return with_axes(equation, operands, axes[::-1]) if len(axes) > 1 else None


def permute(change: Callable[[int, int, int], tuple[int, int]]) -> Change:
    """A permute whose pairs are changed: from source, destination, and the number of participants."""

    def changed(equation: Any, operands: list[Any]) -> Results:
        p = lax.axis_size(axes_of(equation))
        pairs = tuple(change(int(source), int(to), p) for source, to in equation.params["perm"])
        same = sorted(pairs) == sorted((int(source), int(to)) for source, to in equation.params["perm"])
        return None if same else again(equation, operands, perm=pairs)

    return changed


def swap_sum_and_maximum(equation: Any, operands: list[Any]) -> Results:
    """A sum for a maximum, or a maximum for a sum."""
    (x,), (variable,), name = operands, equation.outvars, equation.primitive.name
    if jnp.issubdtype(variable.aval.dtype, jnp.complexfloating) or x.size == 0:
        return None
    if name.startswith("reduce"):
        reduction = jnp.max if name == "reduce_sum" else jnp.sum
        return [reduction(x, axis=tuple(equation.params["axes"])).astype(variable.aval.dtype)]
    axes = axes_of(equation)
    if equation.params.get("axis_index_groups") is not None or lax.axis_size(axes) == 1:
        return None
    reduce: Callable[..., Any] = lax.pmax if name in SUMS else lax.psum
    return [reduce(x, axes).astype(variable.aval.dtype)]


def narrow(equation: Any, operands: list[Any]) -> Results:
    """A sum in a narrower dtype, cast back."""
    (variable,) = equation.outvars
    wide = str(variable.aval.dtype)
    if wide not in NARROWER:
        return None
    dtype = jnp.dtype(NARROWER[wide])
    cast = [x.astype(dtype) if str(x.dtype) == wide else x for x in operands]
    params = {"preferred_element_type": dtype} if "preferred_element_type" in equation.params else {}
    return [y.astype(wide) for y in again(equation, cast, **params)]


def subtract(equation: Any, operands: list[Any]) -> Results:
    """A difference for a sum."""
    left, right = operands
    return None if equation.outvars[0].aval.dtype == bool else [lax.sub(jnp.asarray(left), jnp.asarray(right))]


def ignore_the_mask(equation: Any, operands: list[Any]) -> Results:
    """The operand of a True mask, everywhere."""
    return [operands[2]] if len(operands) == 3 else None


def begin_one_late(equation: Any, operands: list[Any]) -> Results:
    """A slice that begins one further along the first dimension whose start is computed."""
    first = 1 if equation.primitive.name == "dynamic_slice" else 2
    for i in range(first, len(operands)):
        if not isinstance(equation.invars[i], Literal):
            return again(equation, [*operands[:i], operands[i] + 1, *operands[i + 1 :]])
    return None


def take_the_neighbours_index(equation: Any, operands: list[Any]) -> Results:
    """The index of the next participant along the axis."""
    (index,), size = again(equation, operands), lax.axis_size(axes_of(equation))
    return [(index + 1) % size] if size > 1 else None


def forget_the_gradient(equation: Any, operands: list[Any]) -> Results:
    """Results that are constants to a derivative."""
    return [lax.stop_gradient(y) for y in again(equation, operands)]


def scale_the_gradient(equation: Any, operands: list[Any]) -> Results:
    """Results whose derivative is multiplied by the number of participants."""
    p = lax.axis_size(axes_of(equation))
    if p == 1 or not all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in equation.outvars):
        return None

    @jax.custom_jvp
    def scaled(x: Array) -> Array:
        return x

    scaled.defjvp(lambda primals, tangents: (primals[0], tangents[0] * p))
    return [scaled(y) for y in again(equation, operands)]


def with_gradient(forward: Callable[[Array], Array], backward: Callable[[Array], Array], x: Array) -> list[Array]:
    """The result of a function, with another function of the cotangent as its gradient."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda x: (forward(x), None), lambda _, ct: (backward(ct),))
    return [function(x)]


def leave_the_gradient_unsummed(equation: Any, operands: list[Any]) -> Results:
    """A gradient by the first participant's cotangent, or each one's own, in place of the sum of all."""
    (x, *_), params, axes = operands, equation.params, axes_of(equation)
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact) or lax.axis_size(axes) == 1:
        return None

    def of_the_first(ct: Array) -> Array:
        return lax.psum(jnp.where(lax.axis_index(axes) == 0, ct, jnp.zeros_like(ct)), axes)

    def of_its_own(ct: Array) -> Array:
        dimension, index = params["all_gather_dimension"], lax.axis_index(axes)
        if params["tiled"]:
            size = x.shape[dimension]
            return lax.dynamic_slice_in_dim(ct, index * size, size, dimension)
        return lax.dynamic_index_in_dim(ct, index, dimension, keepdims=False)

    if equation.primitive.name == "all_gather":
        return with_gradient(lambda x: again(equation, [x])[0], of_its_own, x)
    return with_gradient(lambda x: cast_varying(x, axes), of_the_first, jnp.asarray(x))


def has_a_gradient(equation: Any) -> bool:
    """True if the program computes an equation's first operand, of floats."""
    x = equation.invars[0]
    return not isinstance(x, Literal) and jnp.issubdtype(x.aval.dtype, jnp.inexact)


def send_the_gradient_the_same_way(equation: Any, operands: list[Any]) -> Results:
    """A permute whose cotangent is permuted the same way as the blocks, and not back."""
    pairs = [(int(source), int(to)) for source, to in equation.params["perm"]]
    if sorted(pairs) == sorted((to, source) for source, to in pairs):
        return None

    def forward(x: Array) -> Array:
        return again(equation, [x])[0]

    return with_gradient(forward, forward, operands[0])


KINDS = (
    Kind("drop", "value", COLLECTIVES, "Leaves out the {primitive}", drop),
    Kind("axis", "value", (*SUMS, *EXTREMA), "Forgets the last axis of a tuple in the {primitive}", forget_an_axis),
    Kind("order", "value", ORDERED, "Takes an axis tuple backwards in the {primitive}", reverse_the_axes),
    Kind(
        "shifted",
        "value",
        ("ppermute",),
        "Sends one participant too far in the {primitive}",
        permute(lambda source, to, p: (source, (to + 1) % p)),
    ),
    Kind(
        "reversed",
        "value",
        ("ppermute",),
        "Sends the other way round in the {primitive}",
        permute(lambda source, to, p: (to, source)),
    ),
    Kind(
        "maximum",
        "value",
        (*SUMS, *EXTREMA, "reduce_sum", "reduce_max"),
        "Takes a sum for a maximum, or the other way round, in the {primitive}",
        swap_sum_and_maximum,
    ),
    Kind(
        "narrow",
        "value",
        (*SUMS, "reduce_scatter", "reduce_sum", "dot_general"),
        "Adds up in a narrower dtype in the {primitive}",
        narrow,
    ),
    Kind("sign", "value", ("add",), "Subtracts in place of the {primitive}", subtract),
    Kind("mask", "value", ("select_n",), "Takes the mask of the {primitive} to be True everywhere", ignore_the_mask),
    Kind(
        "late",
        "value",
        ("dynamic_slice", "dynamic_update_slice"),
        "Begins one further in the {primitive}",
        begin_one_late,
    ),
    Kind(
        "index", "value", ("axis_index",), "Takes the neighbour's index from the {primitive}", take_the_neighbours_index
    ),
    Kind(
        "constant",
        "gradient",
        (*COLLECTIVES, "dot_general"),
        "Stops the gradient behind the {primitive}",
        forget_the_gradient,
    ),
    Kind("scaled", "gradient", COLLECTIVES, "Has p times the gradient behind the {primitive}", scale_the_gradient),
    Kind(
        "unsummed",
        "gradient",
        ("all_gather", "pvary", "pcast"),
        "Does not add up the gradient of the {primitive} over the participants",
        leave_the_gradient_unsummed,
        has_a_gradient,
    ),
    Kind(
        "same way",
        "gradient",
        ("ppermute",),
        "Sends the gradient of the {primitive} the same way",
        send_the_gradient_the_same_way,
    ),
)
"""All kinds that change an equation."""

MESH_ORDER = Kind(
    "mesh order", "value", (), "Takes axis tuples in the order of the mesh", lambda equation, operands: None
)
"""A kind that changes the function's arguments."""
