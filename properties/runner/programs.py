"""Users' programs: a sharded function, the same on whole arrays, and a description of their arrays."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import chain, islice, product
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypedDict

from shardproof.oracles.dtypes import as_dtype
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand
from shardproof.properties.cases.reading import shown
from shardproof.properties.cases.strategies.meshes import known_names
from shardproof.properties.contracts import CONTRACTS, Contract
from shardproof.properties.contracts.described import Array, Signature, sizes_in
from shardproof.properties.contracts.operation import operation
from shardproof.properties.contracts.roles import LONG, Conditions, axes_of
from shardproof.properties.contracts.whole import relation_oracle
from shardproof.properties.engines.engine import trace
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.programs.expectation import Expectation, Overlap, names_of
from shardproof.properties.programs.implementations import OF_PROGRAMS, WHERE_ASKED, Implementation
from shardproof.properties.programs.program import Seen, forward, precision_of
from shardproof.properties.references import JaxReference, NumpyReference, reference_of
from shardproof.properties.runner.platforms import DEVICES
from shardproof.properties.runner.stated import by_name, check_call, check_conditions, several, split_names

Described = Any
"""Dimensions, an `Array`, or a pytree of them."""

CALLED_FROM = (__name__, "dataclasses", "shardproof.properties.report.checking")
"""The modules through which a user makes a program."""

Example = tuple[Mapping[str, int], Mapping[str, Any], Mapping[str, int]]
"""Sizes of dimensions, values of options, and numbers of participants of roles."""


class Description(TypedDict, total=False):
    """The keyword arguments of a `Program`, for functions that pass them on."""

    arguments: Sequence[Described]
    results: Described
    holds: Callable[..., Any] | None
    whole: bool
    roles: Iterable[str]
    options: Mapping[str, Iterable[Any]] | None
    one_axis: Iterable[str]
    sizes: Mapping[str, int | Iterable[int]] | None
    multiples: Mapping[str, int] | None
    dtypes: Iterable[str]
    most_devices: int | None
    powers_of_two: Iterable[str]
    optional: Iterable[str]
    serves: Callable[..., bool] | None
    differentiates: bool
    check_vma: bool
    gradients: bool | None
    accumulator: str
    within: float
    relative_to: str
    data: str | Iterable[str]
    communication: str
    overlap: str


@dataclass(frozen=True, eq=False)
class Program:
    """A sharded function, and what it means on whole arrays.

    Every array is described by its dimensions, and each dimension by the *role* that shards it, if one does:
    `"batch@data features"` is `[batch, features]`, its rows sharded over `data`. A role is an axis or an axis tuple of
    the mesh, drawn for every case, that the function gets as a keyword argument of that name; `@data` is a dimension
    with one element for every participant.

    Arguments:
        function: what is checked, called as `function(*arguments, **roles, **options)`: inside `shard_map` with every
            device's blocks; or, if it is `whole`, with global arrays and `mesh=`, to do its own `shard_map` or `jit`.
        reference: the same on whole arrays, without roles, in NumPy or in JAX. Where JAX can trace it, its derivatives
            are JAX's, otherwise central differences.
        arguments: of each argument, its dimensions, an `Array`, or a pytree of them: a dict, a `NamedTuple`, a
            registered dataclass.
        results: the same of what is returned.
        holds: in place of a reference, where results are right only up to a relation, as are noise, the signs of a QR,
            or the order of candidates: called as `holds(results, *arguments, **options)` with whole arrays in their own
            dtypes, it returns whether they are right, or raises AssertionError with what is wrong. Devices that hold
            the same part of a result must hold the same bits. There are no gradients to compare.
        whole: whether the function takes global arrays.
        roles: further roles, which shard no dimension.
        options: keyword arguments of both functions, with the values to draw them from. A dimension of results that no
            argument has may be one: `"batch k"`, as of the k largest.
        one_axis: the roles for which the function takes a single axis, and no tuple.
        sizes: the sizes that a dimension may have; others are small multiples of what shards them.
        multiples: what each device's part of a dimension must be a multiple of.
        dtypes: the dtypes, or the one dtype, of arrays that state no other.
        most_devices: the most devices of a mesh.
        powers_of_two: the roles of which the number of participants must be a power of two.
        optional: the roles that may be no axis at all, as on a mesh that has none for them: the function gets `()`.
        serves: anything else that the function needs: called with sizes of dimensions (of global arrays), numbers of
            participants of roles, and values of options, by the names of its parameters, it says whether the function
            serves such a case; others are drawn and dropped, and their share is reported.
        differentiates: whether the function takes gradients itself, which is detected where its trace on a small mesh
            has some: `check_vma=False` changes these in JAX, so that it is not drawn then; and its own gradients, which
            are second derivatives, are not checked unless `gradients` is True.
        check_vma: whether the types in `shard_map` are checked; `False` is for code from before there were any. Then
            there is no law of types; and none of gradients, which JAX has wrong inside of `shard_map` then, unless
            `gradients` is True.
        gradients: whether gradients are checked, taken outside of `shard_map`; by default where types are checked, and
            nothing is off by design. A derivative that code from before the types defines itself may be right either
            inside or outside.
        accumulator: the dtype, `"float32"` or `"float64"`, in which sums of narrower floats are carried, on a device
            and between devices: no part of a sum is rounded to fewer bits. Without it each may be rounded as it is
            written, which the summary reports. It is not checked of gradients: JAX adds up cotangents in their own
            dtypes.
        within: what the function may be off by design, relative to the largest number of the right result: what is sent
            in fewer bits, or approximated. Its roundings are checked all the same.
        relative_to: `"array"`, or `"row"`: the largest number of each row, along the last dimension.
        data: the kinds of data that it is run on: `"real"` numbers, and `"exact"` ones, whole and small, of which sums
            have no rounding; by default both. Others are `"nan"`, whole numbers some of which are NaN, `"special"`,
            some of which are infinite or negative zeros, or the extremes of integers, and `"large"`, of some of which
            `exp` overflows; they have no gradients.
        communication: what it sends, as `--expect-communication` takes it; `p` is how many devices all roles connect.
        overlap: how it hides that, as `--expect-overlap` takes it.

    Raises:
        ValueError: for a description that cannot be read, or a function that cannot be called so.
    """

    function: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    _: KW_ONLY
    arguments: Sequence[Described]
    results: Described
    holds: Callable[..., Any] | None = None
    whole: bool = False
    roles: Iterable[str] = ()
    options: Mapping[str, Iterable[Any]] | None = None
    one_axis: Iterable[str] = ()
    sizes: Mapping[str, int | Iterable[int]] | None = None
    multiples: Mapping[str, int] | None = None
    dtypes: Iterable[str] = ("float32", "bfloat16")
    most_devices: int | None = None
    powers_of_two: Iterable[str] = ()
    optional: Iterable[str] = ()
    serves: Callable[..., bool] | None = None
    differentiates: bool = False
    check_vma: bool = True
    gradients: bool | None = None
    accumulator: str = ""
    within: float = 0.0
    relative_to: str = "array"
    data: str | Iterable[str] = ()
    communication: str = ""
    overlap: str = ""

    place = ""  # the file and line that made it, for messages

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", _place_of_caller())
        with self._naming_its_place():
            self._check()

    @contextmanager
    def _naming_its_place(self) -> Iterator[None]:
        """Adds the line of a program to what is wrong with its description."""
        try:
            yield
        except ValueError as error:
            error.args = (f"{error} (the Program at {self.place})",) if self.place else error.args
            raise

    def _check(self) -> None:
        for what in ("function", "reference", "holds", "serves"):
            value = getattr(self, what)
            if not callable(value) and (what == "function" or value is not None):
                raise ValueError(f"{what}={shown(value)}: expected a function")
        for what in ("whole", "differentiates", "check_vma", "gradients"):
            value = getattr(self, what)
            if not isinstance(value, bool) and not (what == "gradients" and value is None):
                raise ValueError(f"{what}={shown(value)}: expected True or False")
        if (self.reference is None) == (self.holds is None):
            given = "neither" if self.holds is None else "both"
            raise ValueError(f"reference, holds: {given} given: expected the same on whole arrays, or a predicate")
        check_conditions(self.signature, self.conditions)
        arguments = {dimension.name for array in self.signature.arrays for dimension in array.dimensions}
        chosen = {*self.conditions.options} - arguments
        for dimension in (d for array in self.signature.results for d in array.dimensions if d.roles):
            if dimension.name in chosen:
                raise ValueError(f"results: {dimension.name!r} is an option: expected no role, which may not divide it")
        if self.holds is not None:
            self._check_holds(self.holds, arguments | chosen)
        if self.differentiates and not self.check_vma:
            raise ValueError("check_vma=False, differentiates=True: with unchecked types JAX has wrong gradients")
        if self.whole and not self.check_vma:
            raise ValueError("check_vma=False, whole=True: a function of global arrays says it in its own shard_map")
        if self.whole and any(array.only for array in self.signature.results):
            raise ValueError("only, whole=True: a function of global arrays returns all of a result")
        if self.accumulator not in ("", "float32", "float64"):
            raise ValueError(f"accumulator={self.accumulator!r}: expected 'float32' or 'float64'")
        within: Any = self.within
        if not isinstance(within, int | float) or not 0 <= within < 1:
            raise ValueError(f"within={self.within!r}: expected a part of the largest number, such as 0.01")
        if self.relative_to not in ("array", "row"):
            raise ValueError(f"relative_to={self.relative_to!r}: expected 'array' or 'row'")
        if unknown := [kind for kind in self.kinds if kind not in (*OF_PROGRAMS, *WHERE_ASKED)]:
            expected = ", ".join((*OF_PROGRAMS, *WHERE_ASKED))
            raise ValueError(f"data={unknown[0]!r}: expected some of {expected}, which programs have")
        if self.serves is not None:
            self._check_serves(self.serves)
        check_call(self.function, self.signature, self.conditions, whole=self.whole)

    def __getstate__(self) -> dict[str, Any]:
        """The fields, and what a trace showed, so that another process makes its contract without a call."""
        names = [each.name for each in dataclasses.fields(self)]
        return {name: value for name, value in vars(self).items() if name in (*names, "takes_gradients")}

    @cached_property
    def signature(self) -> Signature:
        """The arguments and results."""
        arguments = self.arguments
        if isinstance(arguments, str | Mapping | Array) or not isinstance(arguments, Sequence):
            raise ValueError(f"arguments={shown(arguments)}: expected a description for each argument, in a tuple")  # noqa: TRY004
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):
            parameters = {}.values()
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named += [f"x{i}" for i in range(len(named), len(arguments))]
        return Signature.of(named[: len(arguments)], arguments, self.results, split_names("roles", self.roles))

    @cached_property
    def conditions(self) -> Conditions:
        """The conditions on what is drawn for it."""
        return Conditions(
            frozenset(split_names("one_axis", self.one_axis)),
            {name: several(sizes) for name, sizes in by_name("sizes", self.sizes).items()},
            dict(by_name("multiples", self.multiples)),
            tuple(as_dtype(name).name for name in several(self.dtypes)),
            {name: _choices(name, values) for name, values in by_name("options", self.options).items()},
            self.most_devices,
            self.differentiates,
            frozenset(split_names("powers_of_two", self.powers_of_two)),
            frozenset(split_names("optional", self.optional)),
            self.check_vma,
            (self.check_vma and not self.within and not self.holds) if self.gradients is None else self.gradients,
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of data that it is run on; all, if empty."""
        return split_names("data", self.data)

    @cached_property
    def takes_gradients(self) -> bool:
        """True if the function takes gradients itself: it states so, or its trace on a small mesh has derivatives."""
        if self.differentiates:
            return True
        roles, ((sizes, options, participants), _) = self.signature.roles, self._example
        axes = dict(zip(roles, known_names(len(roles)), strict=False))
        mesh = MeshCase(tuple(axes.values()), tuple(participants[role] for role in axes))
        operands = []
        for array in self.signature.arrays:
            layout = array.placement({role: (axis,) for role, axis in axes.items()})
            dtype = self.conditions.dtypes[0] if array.dtype == "float" else array.dtype
            operands.append(Operand(array.block(sizes, participants), dtype, layout))
        params, of_roles = tuple(sorted(options.items())), tuple(axes.items())
        case = Case(self._described, mesh, mesh.axis_names, tuple(operands), params, roles=of_roles)
        tried = Implementation(self._described, self.name, self.function, whole=self.whole, check_vma=self.check_vma)
        try:
            with precision_of(case):
                jaxpr = trace(forward(case, tried, Seen()), mesh)
        except Exception:  # the laws will report what is wrong with it
            return False
        return any("jvp(" in str(equation.source_info.name_stack) for equation in equations(jaxpr))

    @cached_property
    def name(self) -> str:
        """The name of its function, or that of a `partial`; changed if it is a contract's or a keyword (`lambda_`)."""
        function = self.function
        while isinstance(function, partial):
            function = function.func
        name = getattr(function, "__name__", type(function).__name__).strip("<>")
        while iskeyword(name) or name in CONTRACTS:
            name += "_"
        return name

    @cached_property
    def contract(self) -> Contract:
        """Its own contract; raises ValueError if the reference cannot be called so."""
        if not self.takes_gradients:
            return self._described
        second = self.conditions.gradients and self.gradients is not None
        return self._contract(dataclasses.replace(self.conditions, differentiates=True, gradients=second))

    @cached_property
    def _described(self) -> Contract:
        """The contract by the description alone, whatever the function does."""
        return self._contract(self.conditions)

    def _contract(self, conditions: Conditions) -> Contract:
        kinds = ("real", *(kind for kind in WHERE_ASKED if kind in self.kinds), "exact", "real")  # two on large meshes
        oracle = relation_oracle(self.holds, self.signature) if self.holds else self._known
        return operation(
            self.name, oracle, self.signature, conditions=conditions, kinds=kinds, features=frozenset[str]()
        )

    @cached_property
    def _known(self) -> JaxReference | NumpyReference | None:
        """Its reference, if it has one."""
        if self.reference is None:
            return None
        example, served = self._example
        try:
            return reference_of(self.reference, self.signature, *example)
        except ValueError as error:
            if served:
                raise
            raise ValueError(f"serves: no case that was tried satisfies it; on another one {error}") from error

    @cached_property
    def _example(self) -> tuple[Example, bool]:
        """A case to call the reference on, and whether the function supports it."""
        examples = _examples(self.signature, self.conditions, _parameters(self.serves))
        first = next(examples, ({}, {}, {}))
        tried = islice(chain([first], examples), 20_000)
        served = first if self.serves is None else next((one for one in tried if self._serves(*one)), None)
        return served or first, served is not None

    @cached_property
    def implementation(self) -> Implementation:
        """The implementation of its contract; raises ValueError for a reference or claim that does not fit."""
        with self._naming_its_place():
            names = names_of(self.contract)
        expectation = Expectation.parse(self.communication, names) if self.communication else None
        return Implementation(
            self.contract,
            self.name,
            self.function,
            communication=expectation,
            overlap=Overlap.parse(self.overlap, names) if self.overlap else None,
            serves=None if self.serves is None else self.supports,
            whole=self.whole,
            check_vma=self.check_vma,
            program=self,
            accumulator=self.accumulator,
            within=self.within,
            by_row=self.relative_to == "row",
            data=self.kinds,
        )

    @cached_property
    def stated(self) -> tuple[str, ...]:
        """The conditions that it states, in words."""
        second = self.conditions.gradients and (self.gradients is not None or not self.takes_gradients)
        unchecked = f"check_vma=False, so that no types are checked{'' if second else ', and no gradients'}"
        chosen, a_row_or_array = self.conditions, "each row" if self.relative_to == "row" else "an array"
        return tuple(
            text
            for stated, text in (
                (not self.check_vma, unchecked),
                (self.holds, "holds, which says nothing of gradients, and by which engines may differ"),
                (
                    self.check_vma and not second and not self.holds and not self.takes_gradients,
                    "gradients=False" if self.gradients is False else "no gradients",
                ),
                (self.accumulator, f"accumulator: {self.accumulator}"),
                (self.within, f"within: {self.within:g} of the largest number of {a_row_or_array}"),
                (
                    self.takes_gradients,
                    "differentiates" + ", so that no second derivatives are checked" * (not second),
                ),
                (chosen.one_axis, f"one_axis: {', '.join(sorted(chosen.one_axis))}"),
                (chosen.powers_of_two, f"powers_of_two: {', '.join(sorted(chosen.powers_of_two))}"),
                (chosen.optional, f"optional: {', '.join(sorted(chosen.optional))}"),
                (chosen.sizes, f"sizes: {', '.join(f'{n} in {sizes}' for n, sizes in chosen.sizes.items())}"),
                (chosen.multiples, f"multiples: {', '.join(f'{n} of {m}' for n, m in chosen.multiples.items())}"),
                (chosen.dtypes != Conditions().dtypes, f"dtypes: {', '.join(chosen.dtypes)}"),
                (chosen.most, f"most_devices: {chosen.most}"),
                (self.serves, f"serves: some {', '.join(_parameters(self.serves))}"),
            )
            if stated
        )

    def supports(self, case: Case) -> bool:
        """True if `serves` accepts a case; raises ValueError if it raises."""
        participants = {role: case.mesh.axis_size(axes) for role, axes in axes_of(case.roles).items()}
        return self._serves(sizes_in(self.signature, case), case.keywords, participants)

    def _serves(self, sizes: Mapping[str, int], options: Mapping[str, Any], participants: Mapping[str, int]) -> bool:
        assert self.serves is not None
        known = {**sizes, **participants, **options}
        given = {name: known[name] for name in _parameters(self.serves)}
        try:
            return bool(self.serves(**given))
        except Exception as error:
            call = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(f"serves({call}) raises {type(error).__name__}: {error}") from error

    def _check_holds(self, holds: Callable[..., Any], known: Collection[str]) -> None:
        """Raises ValueError unless the predicate can be called with what is described."""
        for name, value in (("gradients", self.gradients), ("accumulator", self.accumulator), ("within", self.within)):
            if value:
                raise ValueError(f"{name}={value!r}, holds: expected a reference besides, which says what is right")
        for name in sorted({d.name for a in self.signature.results for d in a.dimensions if d.simple} - {*known}):
            if name and not name.isdigit():
                expected = "a dimension of an argument, an option, or a size"
                raise ValueError(f"results: {name!r}: expected {expected}, beside holds")
        options = self.conditions.options
        try:
            inspect.signature(holds).bind(None, *self.signature.tree, **dict.fromkeys(options))
        except TypeError as error:
            given = ", ".join(["results", *map(str, self.signature.tree), *(f"{name}=" for name in options)])
            raise ValueError(f"holds={holds!r}: cannot be called as holds({given}): {error}") from None

    @property
    def named(self) -> list[str]:
        """The parameters that `serves` may have: dimensions of arguments, roles, and options."""
        sizes = {d.name for a in self.signature.arrays for d in a.dimensions if d.name and d.simple and not d.fixed}
        return [*sorted(sizes), *self.signature.roles, *self.conditions.options]

    def _check_serves(self, serves: Callable[..., bool]) -> None:
        names = self.named
        unknown = [name for name in _parameters(serves) if name not in names]
        if unknown:
            raise ValueError(f"serves: {unknown[0]!r}: expected parameters out of {', '.join(names)}")
        twice = [name for name in _parameters(serves) if names.count(name) > 1]
        if twice:
            raise ValueError(f"serves: {twice[0]!r} is a dimension or option and a role: expected different names")


def _place_of_caller() -> str:
    """The file and line that called this project; the file from the working directory on, if it is there."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "") in CALLED_FROM:
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{frame.f_lineno}"


def _parameters(function: Callable[..., Any] | None) -> list[str]:
    return [] if function is None else [*inspect.signature(function).parameters]


def _examples(signature: Signature, conditions: Conditions, varied: Collection[str]) -> Iterator[Example]:
    """Possible sizes of dimensions, options and participants of roles: one of each, more of those that are varied.

    First comes one device, with sizes that differ where that is free. With a dimension, what shards it is varied.
    """
    sharding = {role for a in signature.every for d in a.dimensions if d.name in varied for role in d.roles}
    names, roles = [*signature.parts(dict.fromkeys(signature.roles, 1))], signature.roles
    factors = [conditions.sizes.get(n) or (i, *range(1, 7), *LONG) for i, n in enumerate(names, start=2)]
    counts = range(1, min(conditions.most or DEVICES, DEVICES) + 1)
    of_roles = [[p for p in counts if role not in conditions.powers_of_two or p & (p - 1) == 0] for role in roles]
    choices = zip(
        (*names, *conditions.options, *roles), (*factors, *conditions.options.values(), *of_roles), strict=True
    )
    for chosen in product(*(values if name in {*varied, *sharding} else values[:1] for name, values in choices)):
        options = dict(zip(conditions.options, chosen[len(names) :], strict=False))
        participants = dict(zip(roles, chosen[len(chosen) - len(roles) :], strict=True))
        parts = signature.parts(participants)
        sizes = {
            name: n if name in conditions.sizes else n * parts[name] * conditions.multiples.get(name, 1)
            for name, n in zip(names, chosen, strict=False)
        } | {name: int(name) for name in names if name.isdigit()}
        if all(size % (parts[name] * conditions.multiples.get(name, 1)) == 0 for name, size in sizes.items()):
            yield sizes, options, participants


def _choices(name: str, values: Any) -> tuple[Any, ...]:
    """The values that an option is drawn from; raises ValueError for none, or for one by itself."""
    choices = () if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if not choices:
        raise ValueError(f"options: {name}={values!r}: expected the values to draw from, such as ({values!r},)")
    return choices
