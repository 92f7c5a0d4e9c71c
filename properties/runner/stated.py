"""Checks of what a user states about a program or a check, before anything is drawn, with one clear message."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any

from shardproof.properties.cases import suggestion
from shardproof.properties.cases.case import parameter
from shardproof.properties.cases.data import KINDS
from shardproof.properties.cases.reading import Unreadable, shown
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.operation import MOST_STATED
from shardproof.properties.contracts.roles import Conditions


class GivenError(RequestError):
    """An argument that cannot be used; the message says why in one line."""


def by_name(what: str, values: object) -> Mapping[str, Any]:
    """The entries of an argument that is a dict, or None."""
    if values is not None and not isinstance(values, Mapping):
        raise ValueError(f"{what}={shown(values)}: expected a dict, by names")
    return values or {}


def several(values: Any) -> tuple[Any, ...]:
    """Some values, or one by itself."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)


def check_conditions(signature: Signature, conditions: Conditions) -> None:
    """Raises ValueError unless the conditions of a program are possible, and name its own roles and dimensions."""
    described = [d for array in (*signature.arrays, *signature.results) for d in array.dimensions]
    dimensions = {d.name for d in described if d.name and d.simple and not d.fixed}
    for what, names, known in (
        ("one_axis", conditions.one_axis, set(signature.roles)),
        ("powers_of_two", conditions.powers_of_two, set(signature.roles)),
        ("optional", conditions.optional, set(signature.roles)),
        ("sizes", conditions.sizes, dimensions),
        ("multiples", conditions.multiples, dimensions),
    ):
        for name in names:
            if name not in known:
                raise ValueError(f"{what}: {name!r}: expected some of {', '.join(sorted(known)) or 'none'}")
    for name in conditions.optional & conditions.one_axis:
        raise ValueError(f"optional: {name!r}: expected none of one_axis, which is an axis always")
    for what, numbers in (
        *((f"sizes: {name}", sizes) for name, sizes in conditions.sizes.items()),
        *((f"multiples: {name}", (number,)) for name, number in conditions.multiples.items()),
        ("most_devices", () if conditions.most is None else (conditions.most,)),
    ):
        if not numbers and what != "most_devices":
            raise ValueError(f"{what}: expected at least one")
        for number in numbers:
            if type(number) is not int or number < 1:
                raise ValueError(f"{what}={number!r}: expected a whole number of at least 1")
    for name, factor in conditions.multiples.items():
        if odd := [size for size in conditions.sizes.get(name, ()) if size % factor]:
            raise ValueError(f"sizes: {name}={odd[0]}, multiples: {name}={factor}: expected a size that is a multiple")
    _check_elements(signature, conditions)
    if not signature.roles:
        raise ValueError("arguments: expected a role that shards a dimension, as in 'batch@data features'")
    if not conditions.dtypes:
        raise ValueError("dtypes: expected at least one")
    for name, values in conditions.options.items():
        if not values:
            raise ValueError(f"options: {name}: expected at least one value")
        for value in values:
            _check_option(name, value)


def _check_elements(signature: Signature, conditions: Conditions) -> None:
    """Raises ValueError if an array of the largest stated sizes does not fit into memory."""
    for name, array in zip(signature.names, signature.arrays, strict=True):
        stated = {
            name: d.fixed or max(conditions.sizes.get(name, ()), default=conditions.multiples.get(name, 1))
            for d in array.dimensions
            for name in ([d.name] if d.simple else d.terms[0])
        }
        if (elements := math.prod(stated.values())) > MOST_STATED:
            where = next((w for w in ("sizes", "multiples") if {*stated} & {*getattr(conditions, w)}), "arguments")
            own = ", ".join(f"{each}={stated[each]}" for each in stated if each in getattr(conditions, where, ()))
            had = f"{name}, {str(array)!r}, has {elements:,} elements at least"
            raise ValueError(f"{where}: {own}{': ' * bool(own)}{had}: expected at most {MOST_STATED:,}")


def _check_option(name: str, value: Any) -> None:
    """Raises ValueError unless a case, and its file, can hold a value."""
    with suppress(Unreadable):
        if parameter(name, value) == value:
            return
    expected = "None, a bool, a finite number, a short text without quotes, or a tuple of such"
    raise ValueError(f"options: {name}={value!r}: expected {expected}")


def check_call(function: Callable[..., Any], signature: Signature, conditions: Conditions, *, whole: bool) -> None:
    """Raises ValueError unless a function takes the arguments, roles and options, as far as Python knows."""
    by_name = [*signature.roles, *conditions.options, *(["mesh"] if whole else [])]
    try:
        inspect.signature(function).bind(*signature.tree, **dict.fromkeys(by_name))
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        wanted = ", ".join([*(f"<{tree}>" for tree in signature.tree), *(f"{n}=" for n in by_name)])
        reason = f"{name}{inspect.signature(function)} cannot be called as {name}({wanted}): {error}"
        raise ValueError("; ".join([reason, *_unknown(function, signature, by_name)])) from None
    except ValueError:  # some callables in C have no signature
        return


def _unknown(function: Callable[..., Any], signature: Signature, by_name: Sequence[str]) -> Iterator[str]:
    """The roles that are no parameters of a function, each with where it is stated, and the parameter nearest to it."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [*by_place[len(signature.tree) :], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
    names = [p.name for p in named if p.kind is not p.POSITIONAL_ONLY]
    required = [p.name for p in named if p.default is p.empty]
    missing = [name for name in required if name not in by_name]
    places = {"arguments": signature.arrays, "hidden": signature.hidden, "results": signature.results}
    for role in signature.roles:
        if role not in names:
            place = next((p for p, arrays in places.items() if any(role in a.roles for a in arrays)), "roles")
            near = suggestion.near(role, required)
            expected = f"one of {', '.join(missing)}" if missing else f"a parameter {role!r} of the function"
            yield f"{place}: role {role!r}: {near or f'expected {expected}'}"


def split_names(argument: str, names: object, default: Iterable[str] = ()) -> tuple[str, ...]:
    """The names that an argument lists, as text with commas as well; raises GivenError for anything else."""
    if names is None:
        return tuple(default)
    if isinstance(names, str):
        return tuple(part for name in names.split(",") if (part := name.strip()))
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in found):
        raise GivenError(f"{argument}={shown(names)}: expected a name, some names, or None for the default")
    return found


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises GivenError for an unknown kind of data."""
    for kind in kinds:
        if kind not in KINDS:
            raise GivenError(
                f"data={kind!r}: no such kind of data; {suggestion.did_you_mean(kind, KINDS, of='some of')}"
            )


def check_draws(max_examples: object, random_seed: object, max_seconds: object = None) -> None:
    """Raises GivenError unless the numbers of draws and seconds and the seed are in their ranges."""
    whole = isinstance(random_seed, Integral) and not isinstance(random_seed, bool)
    if random_seed is not None and not (whole and random_seed >= 0):  # type: ignore[operator]
        raise GivenError(f"random_seed={random_seed!r}: expected None, or a whole number that is not negative")
    if isinstance(max_examples, bool) or not isinstance(max_examples, Integral) or max_examples < 1:
        raise GivenError(f"max_examples={max_examples!r}: expected a whole number, at least 1")
    if max_seconds is not None and not (isinstance(max_seconds, int | float) and max_seconds > 0):
        raise GivenError(f"max_seconds={max_seconds!r}: expected None, or a number of seconds above 0")
