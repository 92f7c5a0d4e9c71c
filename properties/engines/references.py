"""What an operation means on whole arrays, as its user wrote it down: in doubles, with derivatives.

A reference in JAX is traced in the case's dtypes and run in wide arithmetic, casts and all; so are its derivatives,
which are JAX's. One in NumPy gets doubles, and is differentiated by central differences.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.trees import names_of, refilled
from shardproof.properties.engines.simulate import InterpreterLimit, interpret_wide
from shardproof.properties.engines.simulate.liveness import equations

Arrays = Sequence[np.ndarray]
Dtypes = Sequence[np.dtype]
Options = Mapping[str, Any]

KEPT = 256
"""How many traced references are kept."""

STEP = 2.0**-9
"""The larger step of central differences, relative to arrays of the size of 1."""

SMOOTH = 0.75
"""How much of the gap between both one-sided derivatives half the step may leave: half, if a function is smooth."""

ROUGH = 1e-8
"""By how much two central differences of a smooth function may differ."""

MOST_DIFFERENCES = 64
"""Of so many elements of an argument, central differences give the derivative; of the others it is not known."""


class WrongTree(ValueError):
    """What a reference returns has another tree than its description."""


def leaves_of(signature: Signature, result: Any) -> list[Any]:
    """The leaves of what a reference returns.

    Raises:
        WrongTree: if it has another tree than its description.
    """
    right, found = (_drawn(tree) for tree in (signature.result_tree, result))
    if right != found:
        raise WrongTree(f"the reference returns {found}: expected {right}, as results are described; * is an array")
    return list(jax.tree.leaves(result))


def _drawn(tree: Any) -> str:
    return str(jax.tree.structure(tree)).removeprefix("PyTreeDef(").removesuffix(")")


class JaxReference:
    """A reference that JAX can trace.

    Arguments:
        function: takes and returns whole arrays, in trees.
        signature: these trees.
    """

    doubt = (1e-11, 1e-10)
    """How far off it may be, of values and of derivatives (see `Contract`)."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function, self.signature = function, signature
        self._traced: OrderedDict[Any, Any] = OrderedDict()

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results."""
        return self._run("value", self.called, arrays, dtypes, options)

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """Their tangents, given those of some leaves."""
        count, moving = len(arrays), tuple(tangents)

        def pushed(options: Options, *given: Any) -> list[Any]:
            primal = [given[i] for i in moving]
            return list(jax.jvp(self._of(moving, given[:count], options), primal, [*given[count:]])[1])

        more = [dtypes[i] for i in moving]
        return self._run(("pushed", moving), pushed, [*arrays, *tangents.values()], [*dtypes, *more], options)

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangents of some leaves, given those of the results."""
        count = len(arrays)

        def pulled(options: Options, *given: Any) -> list[Any]:
            _, pull = jax.vjp(self._of(tuple(moving), given[:count], options), *[given[i] for i in moving])
            return list(pull([*given[count:]]))

        more = self.result_dtypes([a.shape for a in arrays], dtypes, options)
        return self._run(("pulled", *moving), pulled, [*arrays, *cotangents], [*dtypes, *more], options)

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtypes of the results."""
        return [np.dtype(aval.dtype) for aval in self.program("value", self.called, shapes, dtypes, options).out_avals]

    def called(self, options: Options, *leaves: Any) -> list[Any]:
        """The leaves of its results, of those of its arguments."""
        return leaves_of(self.signature, self.function(*refilled(self.signature.tree, leaves), **options))

    def _of(self, moving: Sequence[int], leaves: Sequence[Any], options: Options) -> Callable[..., list[Any]]:
        def of_moving(*chosen: Any) -> list[Any]:
            whole = dict(enumerate(leaves)) | dict(zip(moving, chosen, strict=True))
            return self.called(options, *whole.values())

        return of_moving

    def program(
        self, key: Any, function: Any, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options
    ) -> Any:
        """The traced program, kept."""
        known = (key, tuple(shapes), tuple(map(str, dtypes)), tuple(sorted(options.items())))
        if known not in self._traced:
            avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
            self._traced[known] = jax.make_jaxpr(lambda *leaves: function(options, *leaves))(*avals)
            if len(self._traced) > KEPT:
                self._traced.popitem(last=False)
        return self._traced[known]

    def _run(self, key: Any, function: Any, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results of a traced program in double precision; what the interpreter lacks, JAX computes in doubles."""
        program = self.program(key, function, [a.shape for a in arrays], dtypes, options)
        try:
            return [np.asarray(result.value) for result in interpret_wide(program, *arrays)]
        except InterpreterLimit:
            with jax.enable_x64(True):
                return [np.asarray(x) for x in jax.jit(lambda *leaves: function(options, *leaves))(*arrays)]


class NumpyReference:
    """A reference in NumPy, or in JAX where it cannot be traced: what it returns is what its results are described as.

    Arguments:
        function: takes and returns whole arrays, in trees; floats are doubles, in JAX as well.
        signature: these trees.
    """

    doubt = (1e-11, 1e-7)
    """How far off it may be, of values and of derivatives (see `Contract`)."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function, self.signature = function, signature

    def value(self, arrays: Arrays, dtypes: Dtypes, options: Options) -> list[np.ndarray]:
        """The results."""
        with np.errstate(all="ignore"), jax.enable_x64(True):
            found = leaves_of(self.signature, self.function(*refilled(self.signature.tree, arrays), **options))
        return [
            np.asarray(leaf, np.float64 if array.dtype == "float" else None)
            for leaf, array in zip(found, self.signature.results, strict=True)
        ]

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """Their tangents, given those of some leaves; NaN where they are not known."""

        def at(step: float) -> list[np.ndarray]:
            moved = [a + step * tangents[i] if i in tangents else a for i, a in enumerate(arrays)]
            return self.value(moved, dtypes, options)

        size = max((float(np.abs(t).max(initial=0)) for t in tangents.values()), default=0.0)
        return differences(at, STEP / max(size, 1.0))

    def pullback(
        self, arrays: Arrays, cotangents: Arrays, moving: Sequence[int], dtypes: Dtypes, options: Options
    ) -> list[np.ndarray]:
        """The cotangents of some leaves, given those of the results; NaN where they are not known."""
        found = []
        for i in moving:
            gradient = np.full(arrays[i].size, np.nan)
            # spread over all elements
            for k in np.unique(np.linspace(0, arrays[i].size - 1, min(arrays[i].size, MOST_DIFFERENCES)).astype(int)):

                def at(step: float, i: int = i, k: int = int(k)) -> list[np.ndarray]:
                    moved = arrays[i].astype(np.float64)  # a copy
                    moved.flat[k] += step
                    results = self.value([*arrays[:i], moved, *arrays[i + 1 :]], dtypes, options)
                    with np.errstate(invalid="ignore"):
                        return [np.asarray(sum(np.sum(y * ct) for y, ct in zip(results, cotangents, strict=True)))]

                gradient[k] = differences(at, STEP)[0]
            found.append(gradient.reshape(arrays[i].shape))
        return found

    def result_dtypes(self, shapes: Sequence[tuple[int, ...]], dtypes: Dtypes, options: Options) -> list[np.dtype]:
        """The dtypes of the results: as described, and of floats that of the arguments together."""
        floats = [d for d, array in zip(dtypes, self.signature.arrays, strict=True) if array.dtype == "float"]
        together = np.dtype(jax.numpy.result_type(*floats)) if floats else np.dtype("float32")
        return [together if a.dtype == "float" else np.dtype(a.dtype) for a in self.signature.results]


def differences(at: Callable[[float], list[np.ndarray]], step: float) -> list[np.ndarray]:
    """The derivative at zero of arrays that depend on a number, by central differences of the fourth order.

    NaN unless it is smooth nearby, which shows in two ways: half the step halves the gap between the derivatives from
    both sides, and central differences of different steps agree.
    """
    middle = at(0.0)
    sides = [(at(step / n), at(-step / n), step / n) for n in (4, 2, 1)]
    found = []
    for i, here in enumerate(middle):
        with np.errstate(invalid="ignore", over="ignore"):
            noise = 256 * np.finfo(np.float64).eps * np.abs(here) / step + 1e-12
            near, middling, far = ((up[i] - down[i]) / (2 * h) for up, down, h in sides)
            bent = [np.abs(up[i] + down[i] - 2 * here) / h for up, down, h in sides]
            one, other = (4 * near - middling) / 3, (4 * middling - far) / 3
            rough = np.abs(one - other) > ROUGH * np.maximum(np.abs(one), 1) + noise
            found.append(np.where((bent[0] > SMOOTH * bent[1] + noise) | rough, np.nan, one))
    return found


def reference_of(
    function: Callable[..., Any], signature: Signature, sizes: Mapping[str, int], options: Options
) -> JaxReference | NumpyReference:
    """The reference that a function is: of JAX if it can trace it, else of NumPy.

    Arguments:
        function: takes and returns whole arrays, in trees.
        signature: these trees.
        sizes: sizes of the dimensions to try it with.
        options: keyword arguments to try it with.

    Raises:
        ValueError: if it cannot be called with arrays as they are described, or returns others.
    """
    shapes = [array.shape(sizes, dict.fromkeys(signature.roles, 1)) for array in signature.arrays]
    dtypes = [np.dtype("float32") if a.dtype == "float" else np.dtype(a.dtype) for a in signature.arrays]
    small = [
        np.full(shape, not array.below, np.float64 if is_float(dtype) else dtype)  # indices: the first
        for array, shape, dtype in zip(signature.arrays, shapes, dtypes, strict=True)
    ]
    traceable = JaxReference(function, signature)
    try:
        traceable.result_dtypes(shapes, dtypes, options)
    except Exception:
        pass  # what NumPy does and JAX does not, JAX refuses in many ways: below it is called
    else:
        program = traceable.program("value", traceable.called, shapes, dtypes, options)
        _check_results(signature, program.out_avals, sizes)
        _check_casts(function, signature, program, small, options)
        return traceable
    own = NumpyReference(function, signature)
    try:
        results = own.value(small, dtypes, options)
    except WrongTree:
        raise
    except Exception as error:
        first = str(error).partition("\n")[0]
        told = ", ".join(map(str, signature.arrays))
        raise ValueError(f"the reference cannot be called with {told}: {type(error).__name__}: {first}") from error
    _check_results(signature, results, sizes)
    return own


def _check_casts(
    function: Callable[..., Any], signature: Signature, program: Any, arrays: Arrays, options: Options
) -> None:
    """What the interpreter lacks is compiled in doubles, where a cast to a narrower dtype would really round."""
    try:
        interpret_wide(program, *arrays)
    except InterpreterLimit as limit:
        with jax.enable_x64(True):
            doubles = jax.make_jaxpr(lambda *xs: function(*refilled(signature.tree, xs), **options))(*arrays)
        dtypes = {np.dtype(out.aval.dtype) for equation in equations(doubles) for out in equation.outvars}
        cast = sorted(d.name for d in dtypes if is_float(d) and unit_roundoff(d) > unit_roundoff(np.dtype(np.float64)))
        if cast:
            told = f"the reference casts to {cast[0]}, which rounds it, since the interpreter cannot run {limit.lacks}"
            raise ValueError(f"{told}: expected no cast") from limit


def _check_results(signature: Signature, found: Sequence[Any], sizes: Mapping[str, int]) -> None:
    """What a reference returns is of the kind, and has the dimensions, that its description says."""
    alone = dict.fromkeys(signature.roles, 1)
    for name, array, result in zip(names_of(signature.result_tree), signature.results, found, strict=True):
        shape = array.shape(sizes, alone)
        if tuple(result.shape) != shape:
            given = ", ".join(str(one.shape(sizes, alone)) for one in signature.arrays)
            expected = f"{shape}, {str(array)!r}, of arguments of shapes {given}"
            raise ValueError(f"{name}: the reference returns shape {tuple(result.shape)}: expected {expected}")
        if is_float(np.dtype(result.dtype)) != array.floating:
            raise ValueError(f"{name}: the reference returns {result.dtype}: expected it to be described so: {array}")
