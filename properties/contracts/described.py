"""Global arrays described by their dimensions, data and layouts: `"batch@data features"`."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import WIDE, as_dtype, is_float
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.reading import shown

AXIS = "axis_name"
"""The one axis tuple of an operation without roles of its own, and the role of what is shared along it."""

NAME = r"([A-Za-z_]\w*|[1-9]\d*)"
DIMENSION = re.compile(rf"(?P<name>({NAME}([*+]{NAME})*)?)(?P<roles>(@[A-Za-z_]\w*)*)")


@dataclass(frozen=True)
class Dimension:
    """A dimension of a global array."""

    # what its size is called, or that size itself, or a sum of products of such, as `heads*size` is where both are
    # flattened; empty: one for every participant
    name: str
    roles: tuple[str, ...] = ()  # the axis tuples that shard it, the first varying slowest

    @property
    def fixed(self) -> int | None:
        """Its size, if that is a number."""
        return int(self.name) if self.name.isdigit() else None

    @property
    def terms(self) -> list[list[str]]:
        """The sizes that are multiplied in each of the terms that are added; none where it has no name."""
        return [term.split("*") for term in self.name.split("+")] if self.name else []

    @property
    def simple(self) -> bool:
        """True if its name is that of one size, or a number."""
        return not {*"*+"} & {*self.name}

    def size(self, sizes: Mapping[str, int]) -> int:
        """Its size, given those that have names."""
        return sum(math.prod(int(n) if n.isdigit() else sizes[n] for n in term) for term in self.terms)


@dataclass(frozen=True, init=False)
class Array:
    """A global array, by its dimensions and what it holds.

    Arguments:
        dimensions: names with the roles that shard them, or sizes: `"batch@data heads@model 64"`. `@data` alone is a
            dimension with one element for every participant of that role.
        dtype: `"float"`, which is drawn for each case and has a gradient; or `"int32"`, `"bool"`, or another dtype.
            Of a result `"float"` is what the reference gives for those that were drawn, and another one holds whatever
            it gives; in a case without operands of 64 bits JAX has 32 for them.
        below: of integers, a dimension or a number: they are indices from 0 up to it, and without it small numbers.
        upto: the same with that number itself among them, such as lengths of what is padded to a dimension.
        least: a number that none is smaller than, such as 0 of variances.
        also: an integer, or several, that stand among the indices: what marks padding, or a label that is ignored.
        gradient: whether gradients are taken of it, if it is floating.
        only: of a result, the participants of roles that have it, by their number, from the back if it is negative:
            `{"stage": -1}` is what the last one returns; what the others return is ignored.
    """

    dimensions: tuple[Dimension, ...]
    dtype: str
    below: str
    last: int
    least: float | None
    also: tuple[int, ...]
    gradient: bool
    only: tuple[tuple[str, int], ...]

    def __init__(
        self,
        dimensions: str,
        dtype: str = "float",
        *,
        below: str | int | None = None,
        upto: str | int | None = None,
        least: float | None = None,
        also: int | Sequence[int] = (),
        gradient: bool = True,
        only: Mapping[str, int] | None = None,
    ) -> None:
        for what, value, kind, wanted in (
            ("dimensions", dimensions, str, "a string, such as 'batch@data features'"),
            ("least", least, float | int | None, "a number, such as 0"),
            ("gradient", gradient, bool, "True or False"),
            ("only", only, Mapping | None, "participants by roles, such as {'stage': -1}"),
        ):
            if not isinstance(value, kind):
                raise ValueError(f"{what}={shown(value)}: expected {wanted}")  # noqa: TRY004 (one kind for all)
        if str(dtype).startswith("key"):
            words = "describe its words, Array('2', 'uint32'), and call jax.random.wrap_key_data in both functions"
            raise ValueError(f"dtype={str(dtype)!r}: no random key is drawn: {words}")
        object.__setattr__(self, "dimensions", _dimensions(dimensions))
        object.__setattr__(self, "dtype", dtype if dtype == "float" else as_dtype(dtype).name)
        bound = below if upto is None else upto
        object.__setattr__(self, "below", "" if bound is None else str(bound))
        object.__setattr__(self, "last", int(upto is not None))
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "also", (also,) if isinstance(also, int) else tuple(also))
        object.__setattr__(self, "gradient", gradient and self.floating)
        for role, number in dict[str, object](only or {}).items():
            if type(number) is not int:
                raise ValueError(f"only={only!r}: {role}={number!r}: expected a participant's number, such as -1")
        object.__setattr__(self, "only", tuple(sorted((only or {}).items())))
        self._check_range(below, upto, dtype)
        if least is not None and (self.below or self.dtype.startswith(("bool", "complex")) or not np.isfinite(least)):
            if self.below:
                raise ValueError(f"least={least!r} with {self.range_text}: indices begin at 0, and also= adds others")
            raise ValueError(f"least={least!r} of {dtype}: expected a finite number, of floats or of integers")
        roles = [role for dimension in self.dimensions for role in dimension.roles]
        if {*roles} & {role for role, _ in self.only}:
            raise ValueError(f"array {dimensions!r}: only={only!r}: expected roles that do not shard it")
        if len(set(roles)) != len(roles):
            raise ValueError(f"array {dimensions!r}: expected each role to shard one dimension at most")

    def _check_range(self, below: str | int | None, upto: str | int | None, dtype: str) -> None:
        integers = self.dtype.startswith(("int", "uint"))
        if below is not None and upto is not None:
            raise ValueError(f"below={below!r}, upto={upto!r}: expected one of them")
        if self.below and not (DIMENSION.fullmatch(self.below) and integers):
            raise ValueError(f"{self.range_text}: expected a dimension or a positive size, of integers, got {dtype}")
        if self.below.isdigit() and not _holds(self.dtype, int(self.below) + self.last - 1):
            raise ValueError(f"{self.range_text}: expected integers of {dtype} below it")
        beyond = [value for value in self.also if integers and not _holds(self.dtype, value)]
        if beyond or (self.also and not self.below):
            wanted = f"integers of {dtype}" if beyond else "below= or upto= besides"
            raise ValueError(f"also={self.also}: expected {wanted}")

    @property
    def range_text(self) -> str:
        """The range of its integers, for messages."""
        return f"{'upto' if self.last else 'below'}={self.below!r}"

    @property
    def floating(self) -> bool:
        """True if it holds numbers that have gradients."""
        return self.dtype == "float" or is_float(as_dtype(self.dtype))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that shard it, in the order in which they are named."""
        return tuple(role for dimension in self.dimensions for role in dimension.roles)

    def shape(self, sizes: Mapping[str, int], participants: Mapping[str, int]) -> tuple[int, ...]:
        """Its global shape, given the sizes of dimensions by their names, and the participants of roles."""
        each = ([participants[role] for role in d.roles] for d in self.dimensions)
        return tuple(d.size(sizes) if d.name else math.prod(p) for d, p in zip(self.dimensions, each, strict=True))

    def block(self, sizes: Mapping[str, Any], participants: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of its blocks; a size that is a tuple stands for as many dimensions, none of them shared."""
        found: list[int] = []
        for d in self.dimensions:
            parts = math.prod(participants[role] for role in d.roles)
            several = sizes.get(d.name)
            found += several if isinstance(several, tuple) else [(d.size(sizes) if d.name else parts) // parts]
        return tuple(found)

    def placement(self, roles: Mapping[str, tuple[str, ...]]) -> Placement:
        """Its sharding, given the axes of each role."""
        return Placement(tuple(tuple(a for role in d.roles for a in roles[role]) for d in self.dimensions))

    def __str__(self) -> str:
        dimensions = " ".join("@".join([d.name, *d.roles]) for d in self.dimensions)
        return dimensions if self.dtype == "float" else f"{self.dtype}[{dimensions}]"


def _dimensions(text: str) -> tuple[Dimension, ...]:
    found = []
    for word in text.split():
        match = DIMENSION.fullmatch(word)
        if match is None:
            forms = "NAME, NAME@ROLE, NAME@ROLE@ROLE, @ROLE, or a size; NAME may be a product or sum, heads*size"
            raise ValueError(f"array {text!r}: {word!r}: expected {forms}")
        found.append(Dimension(match["name"], tuple(match["roles"].split("@")[1:])))
    return tuple(found)


@dataclass(frozen=True)
class Signature:
    """The array arguments of a function, and its results, as trees."""

    tree: tuple[Any, ...]  # the arguments, in a tuple, with a name for every leaf
    arrays: tuple[Array, ...]  # the leaves of the arguments
    result_tree: Any  # what is returned, with a name for every leaf
    results: tuple[Array, ...]  # the leaves of the results
    more: tuple[str, ...] = ()  # roles that shard nothing
    hidden: tuple[Array, ...] = ()  # arrays that are laid out on the way
    feature: str = ""  # the feature whose claim it needs

    @classmethod
    def of(
        cls,
        names: Collection[str],
        arguments: Any,
        results: Any,
        more: Iterable[str] = (),
        hidden: Mapping[str, Any] | None = None,
        feature: str = "",
    ) -> "Signature":
        """The signature that descriptions make up: strings or `Array` in any pytrees."""
        named = tuple(_named(name, argument) for name, argument in zip(names, arguments, strict=True))
        tree, leaves = _named("result", results)
        signature = cls(
            tuple(name for name, _ in named),
            tuple(array for _, arrays in named for array in arrays),
            tree,
            leaves,
            tuple(more),
            _named("hidden", hidden or {})[1],
            feature,
        )
        known = {dimension.name for array in signature.arrays for dimension in array.dimensions}
        for name, array in zip((*signature.names, *jax.tree.leaves(tree)), (*signature.arrays, *leaves), strict=True):
            for dimension in (d for d in array.dimensions if not d.simple):
                own = [n for term in dimension.terms for n in term if not n.isdigit()]
                if missing := [n for n in own if n not in known]:
                    wanted = f"{missing[0]!r} to be a dimension of an argument by itself"
                    raise ValueError(f"{name}: {str(array)!r}: {dimension.name}: expected {wanted}")
        if any(array.only for array in signature.arrays):
            raise ValueError("only: expected of results alone: arguments are those that every participant gets")
        unknown = {role for array in signature.results for role, _ in array.only} - {*signature.roles}
        if unknown:
            raise ValueError(f"only: {min(unknown)!r}: expected some of {', '.join(signature.roles) or 'none'}")
        for name, array in zip(signature.names, signature.arrays, strict=True):
            if array.below and not array.below.isdigit() and array.below not in known:
                raise ValueError(f"{name}: {array.range_text}: expected a dimension of an argument, or a size")
        return signature

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leaves of the arguments: `x`, `params[0]['w']`."""
        return tuple(jax.tree.leaves(self.tree))

    @property
    def every(self) -> tuple[Array, ...]:
        """All arrays that are laid out."""
        return (*self.arrays, *self.hidden, *self.results)

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles, in the order in which they are named."""
        named = (role for array in self.every for role in array.roles)
        return tuple(dict.fromkeys((*named, *self.more)))

    def parts(self, sizes_of_roles: Mapping[str, int]) -> dict[str, int]:
        """The divisor of each dimension's size, by its name."""
        found: dict[str, int] = {}
        fixed = {d.name for array in self.every for d in array.dimensions if d.fixed}
        for dimension in (d for array in self.every for d in array.dimensions):
            parts = math.prod(sizes_of_roles[role] for role in dimension.roles)
            for term in dimension.terms:  # of a product the first size, which varies slowest, is shared
                for name in term if not dimension.simple else ():
                    found.setdefault(name, 1)
                first = next((name for name in term if not name.isdigit()), term[0])
                found[first] = math.lcm(found.get(first, 1), parts)
        return {name: n for name, n in found.items() if not name.isdigit() or name in fixed}


def sizes_in(signature: Signature, case: Case) -> dict[str, int]:
    """The sizes of the dimensions of global arrays in a case; those that no argument has may be its options."""
    return {name: value for name, value in case.keywords.items() if type(value) is int} | {
        d.name: n * case.mesh.axis_size(axes)
        for array, o in zip(signature.arrays, case.operands, strict=True)
        for d, n, axes in zip(array.dimensions, o.block, o.placement.spec, strict=True)
        if d.simple
    }


def described_dtypes(signature: Signature, case: Case, found: Sequence[np.dtype]) -> list[np.dtype]:
    """The dtypes of results: those that are described, or else those that were found."""
    pairs = zip(signature.results, found, strict=True)
    said = [np.dtype(dtype if array.dtype == "float" else array.dtype) for array, dtype in pairs]
    wide = any(operand.dtype in WIDE for operand in case.operands)  # without one JAX has none of 64 bits
    return said if wide else [jax.dtypes.canonicalize_dtype(dtype) for dtype in said]


def _named(name: str, described: Any) -> tuple[Any, tuple[Array, ...]]:
    """A tree of descriptions as one of names, and its leaves in the same order."""
    # None is part of a tree, such as a layer without a bias, but by itself it describes nothing
    found, tree = jax.tree_util.tree_flatten_with_path(described, is_leaf=lambda one: one is described is None)
    arrays = {f"{name}{jax.tree_util.keystr(path)}": one for path, one in found}
    return jax.tree.unflatten(tree, arrays), tuple(_array(*item) for item in arrays.items())


def _array(name: str, described: Any) -> Array:
    try:
        described = Array(described) if isinstance(described, str) else described
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(described, Array):
        expected = "dimensions in a string, an Array, or a pytree of them"
        raise ValueError(f"{name}={shown(described)}: expected {expected}")  # noqa: TRY004 (one kind for all descriptions)
    return described


def _holds(dtype: str, value: int) -> bool:
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


def at_least(array: np.ndarray, least: float) -> np.ndarray:
    """The numbers of an array, of which those that are smaller are as far above a number as they were below it."""
    number = np.asarray(least, array.dtype)
    return np.where(array < number, np.maximum(number + (number - array), number), array)


def indices(array: np.ndarray, below: int, also: Sequence[int] = (), *, equal: bool = False) -> np.ndarray:
    """Indices from 0 up to `below` in place of integers; one in four is one of `also`.

    They are spread over all of them, or all `equal`, so that more are counted in one place than a narrow count holds.
    """
    spread = array.astype(np.int64) * 7919 + np.arange(array.size).reshape(array.shape) * 31
    found = spread % below
    if also:
        found = np.where(spread // below % 4 == 0, np.array(also)[spread // below // 4 % len(also)], found)
    if equal and found.size:
        found = np.full_like(found, found.flat[0])
    return found.astype(array.dtype)


def with_zeros(data: Data, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays; in every other data set of integers one has a first row of zeros, where norms have no slope."""
    found = list(arrays)
    floating = [i for i, x in enumerate(arrays) if is_float(x.dtype) and x.ndim and x.size]
    if data.kind == "exact" and data.seed % 2 and floating:
        at = floating[data.seed // 2 % len(floating)]
        found[at] = found[at].copy()
        found[at][0] = 0
    return found
