"""The two kinds of references, those that JAX can trace and those that are called; and a search for their kinks.

Both are run in doubles. Derivatives of traced ones are JAX's, those of others, in NumPy, or in JAX with branches in
Python, are differences. They are not known at kinks, nor near them unless JAX differentiates.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend import core

from shardproof.oracles.dtypes import is_float, unit_roundoff
from shardproof.oracles.whole import OfWholes
from shardproof.properties.contracts.contract import replace_leaves
from shardproof.properties.contracts.described import Signature
from shardproof.properties.engines.engine import differentiating
from shardproof.properties.engines.simulate import InterpreterLimit, Simulated
from shardproof.properties.engines.simulate.jaxprs import equations, open_jaxpr, subjaxprs
from shardproof.properties.precision.arithmetic import Sampled, double
from shardproof.properties.precision.comparison import magnitude
from shardproof.properties.precision.formats import FORMATS
from shardproof.properties.precision.runs import SAMPLES, interpret_doubles, run_samples
from shardproof.properties.programs.transformations import of_some

Arrays = Sequence[np.ndarray]
Dtypes = Sequence[np.dtype]
Options = Mapping[str, Any]


class WrongTree(ValueError):
    """A reference returns another tree than its description."""


def leaves_of(signature: Signature, result: Any) -> list[Any]:
    """The leaves of a reference's result; raises WrongTree if it has another tree than described."""
    trees: list[Any] = [jax.tree.structure(tree) for tree in (signature.result_tree, result)]
    if trees[0] != trees[1]:
        texts = map(str, trees)
        right, found = (text.removeprefix("PyTreeDef(").removesuffix(")") for text in texts)
        also = "; a list is no tuple" if ("[" in found) != ("[" in right) else ""
        if right != found:
            raise WrongTree(
                f"the reference returns {found}: expected {right}, as results are described; * is an array{also}"
            )
    return list(jax.tree.leaves(result))


def together_of(signature: Signature, dtypes: Dtypes) -> np.dtype:
    """The dtype that the floats among some arguments promote to."""
    floats = [d for d, array in zip(dtypes, signature.arrays, strict=True) if array.dtype == "float"]
    return np.dtype(jax.numpy.result_type(*floats)) if floats else np.dtype("float32")


def is_wider(dtype: np.dtype, other: np.dtype) -> bool:
    """True if one float has more bytes than another one."""
    return is_float(dtype) and is_float(other) and dtype.itemsize > other.itemsize


def arrays_like(signature: Signature, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes) -> list[np.ndarray]:
    """Arrays to try a reference with, in doubles: ones, and zeros for indices."""
    return [
        np.full(shape, not array.below, double(np.dtype(dtype)))
        for array, shape, dtype in zip(signature.arrays, shapes, dtypes, strict=True)
    ]


SMOOTH = 0.75
"""The most of the gap between both one-sided derivatives that half the step may leave, which is half if smooth."""

ROUGH = 1e-8
"""The most by which two central differences of a smooth function may differ."""

NEARBY = 2.0**-36
"""The distance from an array, relative to its elements and to 1, at which derivatives are compared to find kinks."""

JUMP = 1e-7
"""The most by which derivatives on two sides of a smooth function may differ, relative to them and to their mean."""


def without_kinks(
    at: Callable[[Sequence[Arrays]], Sequence[Arrays]], arrays: Arrays, moving: Sequence[int]
) -> list[np.ndarray]:
    """The derivatives `at` some arrays, by the `moving` ones; NaN at kinks, where those beside them differ."""
    random = np.random.default_rng(0)
    steps = {i: NEARBY * random.standard_normal(arrays[i].shape) * np.maximum(np.abs(arrays[i]), 1) for i in moving}
    here, *sides = at([[a + sign * steps[i] if i in steps else a for i, a in enumerate(arrays)] for sign in (0, 1, -1)])
    found = []
    for middle, up, down in zip(here, *sides, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(middle)
            gap = np.maximum(np.abs(up - down), np.abs(middle - up))
            jumps = gap > JUMP * (size + (size.mean() if size.size else 0)) + JUMP**2
        found.append(np.where(jumps, np.nan, middle) if jumps.any() else middle)
    return found


ASIDE = 2.0**-20
"""The distance to further places at which differences are taken, for arrays of the size of 1."""

SHORT = 2.0**-21
"""The part of a step that is taken there, which crosses no kink at that distance."""

ASIDES = 8
"""The number of such places: at a tie of three, in a sort, one in three agrees by chance."""

TURN = 2.0**-10
"""The most by which the derivative of a smooth function may differ there."""


def aside(x: np.ndarray, number: int) -> np.ndarray:
    """The floats for 0, and others near them for each number."""
    if number == 0:
        return x
    return x + ASIDE * np.random.default_rng(number).standard_normal(x.shape)


def differences(at: Callable[[float, int], list[np.ndarray]], step: float, asides: int = ASIDES) -> list[np.ndarray]:
    """The derivative at 0 of arrays that depend on a number, by central differences of the fourth order.

    `at(number, n)` gives the arrays along the n-th line, of which those other than 0 are `aside`. NaN unless it is
    smooth nearby, which shows in three ways: half the step halves the gap between the derivatives from both sides,
    central differences of different steps agree, and so do those aside. A sort of three equal elements looks smooth
    along one line.
    """
    middle = at(0.0, 0)
    sides = [(at(step / n, 0), at(-step / n, 0), step / n) for n in (4, 2, 1)]
    beside = [(at(step * SHORT, n), at(0.0, n)) for n in range(1, asides + 1)]
    found = []
    for i, here in enumerate(middle):
        with np.errstate(invalid="ignore", over="ignore"):
            noise = 256 * np.finfo(np.float64).eps * np.abs(here) / step + 1e-12
            near, middling, far = ((up[i] - down[i]) / (2 * h) for up, down, h in sides)
            bent = [np.abs(up[i] + down[i] - 2 * here) / h for up, down, h in sides]
            one, other = (4 * near - middling) / 3, (4 * middling - far) / 3
            rough = np.abs(one - other) > ROUGH * np.maximum(np.abs(one), 1) + noise
            allowed = TURN * np.maximum(np.abs(one), 1) + noise / SHORT
            turns = [np.abs((up[i] - there[i]) / (step * SHORT) - one) > allowed for up, there in beside]
            found.append(np.where((bent[0] > SMOOTH * bent[1] + noise) | rough | np.any(turns, axis=0), np.nan, one))
    return found


STEP = 2.0**-9
"""The larger step of central differences, relative to arrays of the size of 1."""

MOST_DIFFERENCES = 64
"""The most elements of an argument for which the derivative is computed; for the others it is not known."""

FEWEST_DIFFERENCES, MOST_PRODUCTS = 8, 2**30
"""The fewest, where the arguments, multiplied by square matrices of the longest side for each, would be more."""


FEW_ASIDES = 3
"""The number of places aside for each of these: sums weighed by cotangents rarely look smooth at a kink."""


def _spread(x: np.ndarray, most: int) -> np.ndarray:
    """Flat indices of an array, one of each of equal parts: the last, and others at random, by its numbers."""
    parts = min(x.size, most)
    start = np.arange(parts) * x.size // max(parts, 1)
    chosen = np.random.default_rng(zlib.crc32(x.tobytes())).integers(start, np.append(start[1:], x.size))
    return np.append(chosen[:-1], x.size - 1) if parts else chosen


class NumpyReference(OfWholes):
    """A reference in NumPy, or in JAX where it cannot be traced, whose dtypes are those of its description.

    Its function takes and returns the trees of the signature; floats are doubles, or complex,
    in JAX as well.
    """

    doubt = (1e-11, 1e-7)
    generic = True
    differences = True

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function, self.signature = function, signature

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results."""
        with np.errstate(all="ignore"), jax.enable_x64(True):
            own = [np.array(a) for a in arrays]  # which it may write to
            found = leaves_of(self.signature, self.function(*replace_leaves(self.signature.tree, own), **options))
        return [
            np.asarray(leaf, np.result_type(np.asarray(leaf), np.float64) if array.dtype == "float" else None)
            for leaf, array in zip(found, self.signature.results, strict=True)
        ]

    def floats(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results, of which those that are no floats are constants: zeros."""
        found = zip(self.value(arrays, dtypes, options), self.signature.results, strict=True)
        return [y if result.floating else np.zeros(y.shape) for y, result in found]

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """Their tangents, given those of some leaves; NaN where they are not known."""

        def at(step: float, number: int) -> list[np.ndarray]:
            moved = [aside(a, number) + step * tangents[i] if i in tangents else a for i, a in enumerate(arrays)]
            return self.floats(moved, dtypes, options)

        size = max((float(np.abs(t).max(initial=0)) for t in tangents.values()), default=0.0)
        return differences(at, STEP / max(size, 1.0))

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangents of some leaves, given those of the results; NaN where they are not known."""

        def weighed(at: Arrays) -> list[np.ndarray]:
            results = self.floats(at, dtypes, options)
            with np.errstate(invalid="ignore"):
                return [np.asarray(sum(np.sum(y * ct) for y, ct in zip(results, cotangents, strict=True)))]

        def at(step: float, number: int, i: int, k: int, places: Arrays, there: Sequence[Any]) -> Any:
            if step == 0:
                return there[number]
            moved = places[number].copy()
            moved.flat[k] += step
            return weighed([*arrays[:i], moved, *arrays[i + 1 :]])

        products = max((n for a in arrays for n in a.shape), default=1) * sum(a.size for a in arrays)
        most = min(MOST_DIFFERENCES, max(FEWEST_DIFFERENCES, MOST_PRODUCTS // max(products, 1)))
        found = []
        for i in moving:
            if arrays[i].dtype.kind == "c":  # along real numbers alone nothing is known of them
                found.append(np.full_like(arrays[i], np.nan))
                continue
            places = [aside(arrays[i].astype(np.float64), number) for number in range(1 + FEW_ASIDES)]
            there = [weighed([*arrays[:i], place, *arrays[i + 1 :]]) for place in places]
            gradient = np.full(arrays[i].size, np.nan)
            for k in _spread(arrays[i], most):
                along = partial(at, i=i, k=int(k), places=places, there=there)
                gradient[k] = differences(along, STEP, FEW_ASIDES)[0]
            found.append(gradient.reshape(arrays[i].shape))
        return found

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtypes of the results: as described, and of floats that of the arguments together."""
        together = together_of(self.signature, dtypes)
        return [together if a.dtype == "float" else np.dtype(a.dtype) for a in self.signature.results]


MAX_CACHED = 512
"""The most traced programs that are cached."""

DOUBT = (1e-11, 1e-10)
"""The errors, of values and of derivatives, of a reference that is run in doubles."""

DOUBT_OF_TABLES = (1e-5, 1e-5)
"""The same if it has arrays of constants."""

RANDOM = ("random", "threefry", "rng")
"""Parts of the names of primitives that draw bits, other ones for other dtypes."""


class JaxReference(OfWholes):
    """A reference that JAX can trace, whose function takes and returns the trees of the signature.

    One that depends on the dtype, as random bits do, is traced in the dtypes of the case, and so is one that does not
    take doubles, such as a scan whose carry has a dtype of its own. Their constants are rounded. So are arrays of
    constants, to float32: JAX caches one conversion of a NumPy array for all traces (`x64_constant.py`).

    Arguments:
        doubt: errors of values and of derivatives (see `Oracle`).
        casts: the floats below float32 that its function casts to.
    """

    generic = True

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
            single = np.dtype(np.float32)  # at least
            wide = [(single if is_wider(single, d) else d) if tables else double(d) for d in dtypes]
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

    @differentiating()
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

    def like(x: np.ndarray) -> tuple[tuple[int, ...], bool]:
        return x.shape, x.dtype.kind == "c"

    with np.errstate(over="ignore"):
        return all(
            any(np.array_equal(one, other.astype(one.dtype)) for one in known if like(one) == like(other))
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
