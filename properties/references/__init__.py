"""What an operation means on whole arrays, as its user wrote it down: in doubles, with derivatives.

A reference that JAX can trace is traced on doubles, so that its constants are what its source says, and run in float64,
in which its casts round nothing; so are its derivatives, which are JAX's. Another one gets doubles, and is
differentiated by central differences. Derivatives are not known where there is a kink.
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
from shardproof.properties.references.evaluated import Arrays, NumpyReference, Options, WrongTree, arrays_like
from shardproof.properties.references.traced import DOUBT_OF_TABLES, JaxReference, has_tables, narrow_casts

__all__ = ["JaxReference", "NumpyReference", "reference_of"]

LARGER = 4
"""How many times as large arrays are on which it is tried once more, since a loop over few may have no iteration."""

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises of a function that it cannot trace."""


def reference_of(
    function: Callable[..., Any],
    signature: Signature,
    sizes: Mapping[str, int],
    options: Options,
    participants: Mapping[str, int] | None = None,
) -> JaxReference | NumpyReference:
    """The reference that a function is: of JAX if it can trace it, else of NumPy.

    Arguments:
        function: takes and returns whole arrays, in trees.
        signature: these trees.
        sizes: sizes of the dimensions to try it with.
        options: keyword arguments to try it with.
        participants: numbers of participants of roles to try it with; None: one each.

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
        traced = False  # what NumPy does and JAX does not, JAX refuses in many ways: below it is called
    larger, more = ({name: LARGER * n for name, n in given.items()} for given in (sizes, participants))
    try:
        traceable.result_dtypes([array.shape(larger, more) for array in signature.arrays], dtypes, options)
    except NEEDS_VALUES:
        traced = False
    except Exception:  # it may serve no such sizes
        pass
    if traced:
        program, exact = traceable.run_program("value", traceable.called, shapes, dtypes, options)
        _check_results(signature, program.out_avals, sizes, participants)
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
        told = ", ".join(f"{name}{[*shape]} ({str(array)!r})" for name, shape, array in given)
        told += "".join(f", {name}={value!r}" for name, value in options.items())
        alone = ", and no role" if isinstance(error, TypeError) and signature.roles else ""
        own_file = getattr(getattr(function, "__code__", None), "co_filename", None)
        lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == own_file]
        where = f" in `{lines[-1]}`" if lines else ""
        told = f"the reference cannot be called with {told}{alone}: {type(error).__name__}{where}: {first}"
        raise ValueError(told) from error
    _check_results(signature, results, sizes, participants)
    return own


def _check_run(reference: JaxReference, program: Any, arrays: Arrays, options: Options, *, exact: bool) -> None:
    """What the interpreter lacks is compiled, in doubles, where a cast to a narrower dtype would really round."""
    try:
        interpret_doubles(program, [arrays])
    except InterpreterLimit as limit:
        since = f"since the interpreter cannot run {limit.lacks}"
        if not exact:
            told = f"the reference depends on a dtype, or takes no doubles, {since}: expected one that does neither"
            raise ValueError(told) from limit
        with jax.enable_x64(True):
            doubles = jax.make_jaxpr(lambda *leaves: reference.called(options, *leaves))(*arrays)
        cast = sorted(dtype.name for dtype in narrow_floats(doubles))
        if cast:
            told = f"the reference casts to {cast[0]}, which rounds it, {since}: expected no cast"
            raise ValueError(told) from limit


def _check_results(
    signature: Signature, found: Sequence[Any], sizes: Mapping[str, int], participants: Mapping[str, int]
) -> None:
    """What a reference returns is of the kind, and has the dimensions, that its description says."""
    known = {dimension.name for one in signature.arrays for dimension in one.dimensions}
    for name, array, result in zip(jax.tree.leaves(signature.result_tree), signature.results, found, strict=True):
        shape = array.shape(sizes, participants)
        if tuple(result.shape) != shape:
            given = ", ".join(str(one.shape(sizes, participants)) for one in signature.arrays)
            strange = dict.fromkeys(
                d.name for d in array.dimensions if d.name and d.simple and d.fixed is None and d.name not in known
            )
            told = [f"; no argument has {one}: {suggestion.near(one, known)}".removesuffix(": ") for one in strange]
            expected = f"{shape}, {str(array)!r}, of arguments of shapes {given}{''.join(told)}"
            raise ValueError(f"{name}: the reference returns shape {tuple(result.shape)}: expected {expected}")
        if is_float(np.dtype(result.dtype)) != array.floating:
            described = "floats" if array.floating else array.dtype
            expected = f'expected {described}, as it is described, or Array(…, "{result.dtype}") in its place'
            raise ValueError(f"{name}: the reference returns {result.dtype}: {expected}")
