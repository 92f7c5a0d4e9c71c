"""References of users' programs, functions of whole arrays: in doubles, with derivatives.

A reference that JAX can trace is traced on doubles, so that its constants are those of its source, and run in float64,
in which its casts round nothing; so are its derivatives, which are JAX's. Another one is called with doubles, and
differentiated by central differences. Derivatives are not known at kinks.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases import suggestion
from shardproof.properties.contracts.described import Signature
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.precision.compiled import narrow_floats
from shardproof.properties.precision.runs import interpret_doubles
from shardproof.properties.references.kinds import (
    DOUBT_OF_TABLES,
    Arrays,
    JaxReference,
    NumpyReference,
    Options,
    WrongTree,
    arrays_like,
    has_tables,
    narrow_casts,
)

__all__ = ["JaxReference", "NumpyReference", "reference_of"]

LARGER = 4
"""The factor of sizes with which it is tried once more, since a loop over few may have no iteration."""

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""The errors of JAX for functions that it cannot trace."""


def reference_of(
    function: Callable[..., Any],
    signature: Signature,
    sizes: Mapping[str, int],
    options: Options,
    participants: Mapping[str, int] | None = None,
) -> JaxReference | NumpyReference:
    """The reference of a function of trees of whole arrays: a JaxReference if JAX can trace it, else a NumpyReference.

    It is tried with these sizes of dimensions, options, and numbers of participants of roles (by default one each).

    Raises:
        ValueError: if it cannot be called with arrays as they are described, or returns others.
    """
    participants = dict.fromkeys(signature.roles, 1) if participants is None else participants
    shapes = [array.shape(sizes, participants) for array in signature.arrays]
    dtypes = [np.dtype("float32") if a.dtype == "float" else np.dtype(a.dtype) for a in signature.arrays]
    small = arrays_like(signature, shapes, dtypes)
    traceable = JaxReference(function, signature)
    traced = True
    try:
        traceable.result_dtypes(shapes, dtypes, options)
    except Exception:
        traced = False  # JAX refuses NumPy's functions in many ways: below it is called
    larger, more = ({name: LARGER * n for name, n in given.items()} for given in (sizes, participants))
    try:
        traceable.result_dtypes([array.shape(larger, more) for array in signature.arrays], dtypes, options)
    except NEEDS_VALUES:
        traced = False
    except Exception:  # it may not support such sizes
        pass
    if traced:
        program, exact = traceable.run_program("value", traceable.called, shapes, dtypes, options)
        _check_results(signature, program.out_avals, sizes, options, participants)
        _check_run(traceable, program, small, options, exact=exact)
        casts = narrow_casts(traceable.program("value", traceable.called, shapes, dtypes, options))
        return JaxReference(function, signature, DOUBT_OF_TABLES if has_tables(program) else traceable.doubt, casts)
    own = NumpyReference(function, signature)
    try:
        results = own.value(small, dtypes, options)
    except WrongTree:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        given = zip(signature.names, shapes, signature.arrays, strict=True)
        called_with = ", ".join(f"{name}{[*shape]} ({str(array)!r})" for name, shape, array in given)
        called_with += "".join(f", {name}={value!r}" for name, value in options.items())
        alone = ", and no role" if isinstance(error, TypeError) and signature.roles else ""
        own_file = getattr(getattr(function, "__code__", None), "co_filename", None)
        lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == own_file]
        where = f" in `{lines[-1]}`" if lines else ""
        raise ValueError(
            f"the reference cannot be called with {called_with}{alone}: {type(error).__name__}{where}: {first}"
        ) from error
    _check_results(signature, results, sizes, options, participants)
    return own


def _check_run(reference: JaxReference, program: Any, arrays: Arrays, options: Options, *, exact: bool) -> None:
    """Raises ValueError if the interpreter cannot run it, and it has to round if it is compiled in doubles instead."""
    try:
        interpret_doubles(program, [arrays])
    except InterpreterLimit as limit:
        since = f"since the interpreter cannot run {limit.lacks}"
        if not exact:
            fault = "depends on a dtype, or takes no doubles"
            remedy = "expected one that does neither, as one that gets a sample as an argument, or holds= in its place"
            raise ValueError(f"the reference {fault}, {since}: {remedy}") from limit
        with jax.enable_x64(True):
            doubles = jax.make_jaxpr(lambda *leaves: reference.called(options, *leaves))(*arrays)
        cast = sorted(dtype.name for dtype in narrow_floats(doubles))
        if cast:
            fault = f"casts to {cast[0]}, which rounds it"
            raise ValueError(f"the reference {fault}, {since}: expected no cast") from limit


def _check_results(
    signature: Signature,
    found: Sequence[Any],
    sizes: Mapping[str, int],
    options: Options,
    participants: Mapping[str, int],
) -> None:
    """Raises ValueError unless results have the dimensions, and the kind of dtype, of their descriptions."""
    named = {dimension.name for one in signature.arrays for dimension in one.dimensions}
    chosen = {name: n for name, n in options.items() if type(n) is int and name not in named}
    known, sizes = named | {*chosen}, {**sizes, **chosen}
    for name, array, result in zip(jax.tree.leaves(signature.result_tree), signature.results, found, strict=True):
        shape = array.shape(sizes, participants)
        if tuple(result.shape) != shape:
            given = ", ".join(str(one.shape(sizes, participants)) for one in signature.arrays)
            strange = dict.fromkeys(
                d.name for d in array.dimensions if d.name and d.simple and d.fixed is None and d.name not in known
            )
            hints = [
                f"; no argument or option has {one}: {suggestion.near(one, known)}".removesuffix(": ")
                for one in strange
            ]
            expected = f"{shape}, {str(array)!r}, of arguments of shapes {given}{''.join(hints)}"
            raise ValueError(f"{name}: the reference returns shape {tuple(result.shape)}: expected {expected}")
        if is_float(np.dtype(result.dtype)) != array.floating:
            described = "floats" if array.floating else array.dtype
            expected = f'expected {described}, as it is described, or Array(…, "{result.dtype}") in its place'
            raise ValueError(f"{name}: the reference returns {result.dtype}: {expected}")
