"""References that JAX can trace: run in float64, as are their derivatives, which are JAX's."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend import core

from shardproof.oracles.dtypes import is_float, unit_roundoff
from shardproof.properties.contracts.contract import replace_leaves
from shardproof.properties.contracts.described import Signature
from shardproof.properties.engines.simulate import InterpreterLimit, Simulated
from shardproof.properties.engines.simulate.liveness import equations, open_jaxpr, subjaxprs
from shardproof.properties.precision.arithmetic import Sampled, double
from shardproof.properties.precision.comparison import magnitude
from shardproof.properties.precision.formats import FORMATS
from shardproof.properties.precision.runs import SAMPLES, interpret_doubles, run_samples
from shardproof.properties.programs.transformations import of_some
from shardproof.properties.references.evaluated import (
    Arrays,
    Dtypes,
    Options,
    arrays_like,
    as_single,
    is_wider,
    leaves_of,
    together_of,
    without_kinks,
)

MAX_CACHED = 512
"""The most traced programs that are cached."""

DOUBT = (1e-11, 1e-10)
"""The errors, of values and of derivatives, of a reference that is run in doubles."""

DOUBT_OF_TABLES = (1e-5, 1e-5)
"""The same if it has arrays of constants."""

RANDOM = ("random", "threefry", "rng")
"""Parts of the names of primitives that draw bits, other ones for other dtypes."""


class JaxReference:
    """A reference that JAX can trace, whose function takes and returns the trees of the signature.

    One that depends on the dtype, as random bits do, is traced in the dtypes of the case, and so is one that does not
    take doubles, such as a scan whose carry has a dtype of its own. Their constants are rounded. So are arrays of
    constants, to float32: JAX caches one conversion of a NumPy array for all traces (`x64_constant.py`).

    Arguments:
        doubt: errors of values and of derivatives (see `Oracle`).
        casts: the floats below float32 that its function casts to.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        doubt: tuple[float, float] = DOUBT,
        casts: tuple[np.dtype, ...] = (),
    ) -> None:
        self.function, self.signature, self.doubt, self.casts = function, signature, doubt, casts
        self._known: OrderedDict[Hashable, Any] = OrderedDict()

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results."""
        return self._run("value", self.called, [arrays], dtypes, options)[0]

    def nearby(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results with the errors that doubles may have: where large numbers cancel, nothing but roundings is left.

        That is four times the largest error in samples of a program that rounds doubles alone, and 0 for others.
        """
        program, exact = self.run_program("value", self.called, [a.shape for a in arrays], dtypes, options)
        right = self.value(arrays, dtypes, options)
        if not exact:
            return right
        try:
            (samples,) = run_samples(Simulated(program), [arrays], Sampled(), SAMPLES)
        except InterpreterLimit:
            return right
        with np.errstate(invalid="ignore"):  # of infinities
            return [
                y + 4 * magnitude(x - y).max(axis=0, initial=0) if is_float(y.dtype) else y
                for x, y in zip(samples, right, strict=True)
            ]

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """Their tangents, given those of some leaves."""
        count, moving = len(arrays), tuple(tangents)

        def pushed(options: Options, *given: Any) -> list[Any]:
            of_moving, primal = of_some(partial(self._floats, options), given[:count], moving)
            return list(jax.jvp(of_moving, primal, given[count:])[1])

        more = [dtypes[i] for i in moving]

        def at(sets: Sequence[Arrays]) -> list[list[np.ndarray]]:
            given = [[*arrays, *tangents.values()] for arrays in sets]
            return self._run(("pushed", moving), pushed, given, [*dtypes, *more], options)

        return without_kinks(at, arrays, moving)

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangents of some leaves, given those of the results."""
        count = len(arrays)

        def pulled(options: Options, *given: Any) -> list[Any]:
            of_moving, primal = of_some(partial(self._floats, options), given[:count], moving)
            results, pull = jax.vjp(of_moving, *primal)
            return list(pull([ct.astype(y.dtype) for ct, y in zip(given[count:], results, strict=True)]))

        found = self.result_dtypes([a.shape for a in arrays], dtypes, options)
        more = [d if is_float(d) else np.dtype(np.float32) for d in found]

        def at(sets: Sequence[Arrays]) -> list[list[np.ndarray]]:
            given = [[*arrays, *cotangents] for arrays in sets]
            return self._run(("pulled", *moving), pulled, given, [*dtypes, *more], options)

        return without_kinks(at, arrays, moving)

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtypes of the results: those of the traced program, but where a constant of NumPy made a float wider.

        Such a constant has a dtype, which in NumPy, where arrays are doubles, is that of all of them.
        """
        found = [np.dtype(y.dtype) for y in self.program("value", self.called, shapes, dtypes, options).out_avals]
        together = together_of(self.signature, dtypes)
        if not any(is_wider(dtype, together) for dtype in found):
            return found
        with jax.enable_x64(True):
            avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
            in_doubles = jax.eval_shape(lambda *leaves: self.called(options, *leaves), *avals)
        return [
            together if is_wider(np.dtype(other.dtype), dtype) and own and is_wider(dtype, together) else dtype
            for dtype, other, own in zip(found, in_doubles, self._in_numpy(shapes, dtypes, options), strict=True)
        ]

    def _in_numpy(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[bool]:
        """For each result, whether it is a NumPy array if the arguments are."""
        try:
            found = self.called(options, *arrays_like(self.signature, shapes, dtypes))
        except Exception:  # NumPy refuses JAX's methods in many ways
            return [False] * len(self.signature.results)
        return [isinstance(leaf, np.ndarray | np.generic) for leaf in found]

    def called(self, options: Options, *leaves: Any) -> list[Any]:
        """The leaves of its results, given those of its arguments."""
        return leaves_of(self.signature, self.function(*replace_leaves(self.signature.tree, leaves), **options))

    def _floats(self, options: Options, *leaves: Any) -> list[Any]:
        """Its results as floats; those of other dtypes are constants."""
        found = zip(self.called(options, *leaves), self.signature.results, strict=True)
        return [y if result.floating else jax.numpy.asarray(y, "float32") for y, result in found]

    def program(
        self, key: Any, function: Any, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options
    ) -> Any:
        """The traced program, cached."""

        def traced() -> Any:
            avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
            return jax.make_jaxpr(lambda *leaves: function(options, *leaves))(*avals)

        return self._cached(("traced", key, *traced_for(shapes, dtypes, options)), traced)

    def run_program(
        self, key: Any, function: Any, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options
    ) -> tuple[Any, bool]:
        """The traced program to run, and whether it rounds nothing unless it casts; cached."""

        def chosen() -> tuple[Any, bool]:
            count = len(self.signature.arrays)
            own = self.program("value", self.called, shapes[:count], dtypes[:count], options)
            tables = has_tables(own)
            wide = [(as_single if tables else double)(dtype) for dtype in dtypes]
            try:
                with nullcontext() if tables else jax.enable_x64(True):
                    value = self.program("value", self.called, shapes[:count], wide[:count], options)
                    if is_the_same(own, value):
                        return self.program(key, function, shapes, wide, options), True
            except Exception:  # it needs other dtypes; if it is wrong, it fails on these as well
                pass
            return self.program(key, function, shapes, dtypes, options), False

        known: tuple[Any, bool] = self._cached(("run", key, *traced_for(shapes, dtypes, options)), chosen)
        return known

    def _cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
            if len(self._known) > MAX_CACHED:
                self._known.popitem(last=False)
        return self._known[key]

    def _run(
        self, key: Any, function: Any, sets: Sequence[Arrays], dtypes: Dtypes, options: Options
    ) -> list[list[np.ndarray]]:
        """Results on several sets of arrays of one shape, in doubles; by JAX where the interpreter cannot run it."""
        shapes = [a.shape for a in sets[0]]
        program, exact = self.run_program(key, function, shapes, dtypes, options)
        doubles = [[a.astype(double(a.dtype), copy=False) for a in arrays] for arrays in sets]  # some are longer
        try:
            return interpret_doubles(program, doubles)
        except InterpreterLimit:
            if not exact:
                raise
            with jax.enable_x64(True):
                compiled = jax.jit(lambda *leaves: function(options, *leaves))
                return [[np.asarray(x) for x in compiled(*arrays)] for arrays in doubles]


def traced_for(shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> tuple[Hashable, ...]:
    """The key of a traced program."""
    return tuple(shapes), tuple(map(str, dtypes)), tuple(sorted(options.items()))


def has_tables(program: Any) -> bool:
    """True if a program has arrays of constants."""
    inner = (jaxpr for equation in equations(program) for jaxpr in subjaxprs(equation))
    return any(np.ndim(constant) for jaxpr in (program, *inner) for constant in open_jaxpr(jaxpr)[1])


def narrow_casts(program: Any) -> tuple[np.dtype, ...]:
    """The floats below float32 that a program casts to."""
    found = set()
    for equation in equations(program):
        if equation.primitive.name == "convert_element_type":
            found.add(np.dtype(equation.outvars[0].aval.dtype))
        if equation.primitive.name == "reduce_precision":
            name = FORMATS.get((equation.params["exponent_bits"], equation.params["mantissa_bits"]))
            found |= set() if name is None else {np.dtype(name)}
    return tuple(d for d in found if is_float(d) and unit_roundoff(d) > unit_roundoff(np.dtype("float32")))


def is_the_same(program: Any, wide: Any) -> bool:
    """True if a program that was traced on doubles is the one on the case's dtypes, but for roundings.

    It is not if it draws random bits, or if a constant is another one for each dtype, such as `finfo(dtype).eps`.
    """
    if any(part in equation.primitive.name for equation in equations(program) for part in RANDOM):
        return False
    known = list(_constants(program))
    with np.errstate(over="ignore"):
        return all(
            any(np.array_equal(one, other.astype(one.dtype)) for one in known if one.shape == other.shape)
            for other in _constants(wide)
        )


def _constants(program: Any) -> Iterator[np.ndarray]:
    """The constants of a program that are floats, but for NaN."""
    found: list[Any] = list(open_jaxpr(program)[1])
    for equation in equations(program):
        found += [
            np.asarray(v.val, getattr(v.aval, "dtype", None)) for v in equation.invars if isinstance(v, core.Literal)
        ]
        found += [constant for inner in subjaxprs(equation) for constant in open_jaxpr(inner)[1]]
    for constant in found:
        if is_float(np.dtype(constant.dtype)) and not np.isnan(constant).any():
            yield np.asarray(constant)
