"""Checks of what a matrix product of sharded operands is called with."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, get_args

from jax import lax

from shardproof.impl.arguments import check_axes, check_divides, refuse

Sums = Literal["accumulator", "operands"]
"""The dtype in which sums travel: that in which products are added up, or that of the operands."""

Form = TypeVar("Form", bound=Callable[..., Any])


def check_operands(form: Form) -> Form:
    """Decorate `form(lhs, rhs, axis_name, …)`, or a transformer block's `form(x, w_in, w_out, axis_name, …)`.

    Its arguments are checked, and `axis_name` arrives as a tuple. The end of its name, which is that of its contract,
    says which operand's blocks have a part of the contracted dimension alone: `lhs_contracting`, `rhs`, or neither.
    """
    name, signature = form.__name__, inspect.signature(form)

    @functools.wraps(form)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        given["axis_name"] = check_axes(name, given["axis_name"])
        p = lax.axis_size(given["axis_name"])
        if "w_in" in given:
            lhs, w_in, rhs = given["x"], given["w_in"], given["w_out"]
            check_contraction(name, "w_in", w_in.shape[0], lhs.shape[-1] * p)
            check_contraction(name, "w_out", rhs.shape[0], w_in.shape[-1])
        else:
            lhs, rhs = given["lhs"], given["rhs"]
            rows = rhs.shape[0] * (p if name.endswith("matmul_rhs") else 1)
            check_contraction(name, "rhs", rows, lhs.shape[-1] * (p if name.endswith("lhs_contracting") else 1))
        if "w_in" in given or "scatter_dimension" in given:
            dimension = given.get("scatter_dimension", 1)
            if dimension not in (0, 1):
                refuse(name, "scatter_dimension", dimension, "0 or 1")
            sizes = (lhs.shape[-2], rhs.shape[-1])
            check_divides(name, "scatter_dimension", dimension, sizes[dimension], p, tiled=True)
        if given.get("sums", "operands") not in get_args(Sums):
            refuse(name, "sums", given["sums"], " or ".join(map(repr, get_args(Sums))))
        return form(*bound.args, **bound.kwargs)

    return cast(Form, call)


def check_contraction(function: str, argument: str, rows: int, columns: int) -> None:
    """As many rows of the right operand as columns of the left one, once both are whole."""
    if rows != columns:
        refuse(function, argument, f"{rows} rows", f"{columns} rows, as many as the left operand has columns in all")
