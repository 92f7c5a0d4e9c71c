"""Checking any sharded program against what it means on whole arrays, without a mesh."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.contracts import CONTRACTS, added
from shardproof.properties.contracts.contract import refilled
from shardproof.properties.contracts.described import Array, Signature
from shardproof.properties.contracts.roles import Conditions
from shardproof.properties.contracts.whole import whole_contract
from shardproof.properties.counting.sizes import names_of
from shardproof.properties.engines.references import reference_of
from shardproof.properties.laws import communication as communication_law
from shardproof.properties.laws import running
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.reports.checking import checked
from shardproof.properties.reports.summary import Summary

Described = str | Array | Mapping[str, Any] | Sequence[Any]


def check_program(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *,
    arguments: Sequence[Described],
    results: Described,
    whole: bool = False,
    roles: Iterable[str] = (),
    options: Mapping[str, Iterable[Any]] | None = None,
    one_axis: Iterable[str] = (),
    sizes: Mapping[str, int | Iterable[int]] | None = None,
    multiples: Mapping[str, int] | None = None,
    dtypes: Iterable[str] = ("float32", "bfloat16"),
    most_devices: int | None = None,
    differentiates: bool = False,
    laws: str | Iterable[str] | None = None,
    max_examples: int = 100,
    random_seed: int | None = None,
    communication: str = "",
) -> Summary:
    """Checks a sharded function against the same on whole arrays: values, gradients, types, on any mesh and layout.

    Every array is described by its dimensions, and each dimension by the *role* that shards it, if one does:
    `"batch@data features"` is `[batch, features]`, its rows sharded over `data`. A role is an axis or an axis tuple of
    the mesh, drawn for every case, that the function gets as a keyword argument of that name; `@data` is a dimension
    with one element for every participant.

    Arguments:
        function: what is checked, called as `function(*arguments, **roles, **options)`: inside `shard_map` with every
            device's blocks; or, if it is `whole`, with global arrays and `mesh=`, to do its own `shard_map` or `jit`.
        reference: the same on whole arrays, without roles, in NumPy or in JAX. Where JAX can trace it, its derivatives
            are JAX's, otherwise central differences.
        arguments: of each argument, its dimensions, an `Array`, or a dict, list or tuple of them.
        results: the same of what is returned.
        whole: whether the function takes global arrays.
        roles: those that shard no dimension, and that the function gets all the same.
        options: keyword arguments of both functions, with the values to draw them from.
        one_axis: the roles for which the function takes a single axis, and no tuple.
        sizes: the sizes that a dimension may have; others are small multiples of what shards them.
        multiples: what each device's part of a dimension must be a multiple of.
        dtypes: the dtypes of arrays that are not said to have another.
        most_devices: the most devices of a mesh.
        differentiates: whether the function takes gradients itself: with `check_vma=False` these are others in JAX, so
            that it is not drawn then.
        laws: the laws to check; None: all of them.
        max_examples: the structures that a law of share 1 draws to be simulated; fewer are compiled.
        random_seed: another seed draws other cases; None draws the same every time.
        communication: what it sends, as `--expect-communication` takes it; `p` is how many devices all roles connect.

    Returns:
        What was checked, law by law.

    Raises:
        AssertionError: with the whole report, if a law does not hold, or held on nothing.
        ValueError: for a description that cannot be read, or functions that cannot be called so.

    Example:
        >>> import jax
        >>> def loss(x, w, *, data):
        ...     return jax.lax.pmean(((x @ w) ** 2).mean(), data)
        >>> def unsharded(x, w):
        ...     return ((x @ w) ** 2).mean()
        >>> summary = check_program(
        ...     loss, unsharded, arguments=("batch@data k", "k n"), results="", laws=["value"], max_examples=5
        ... )
    """
    __tracebackhide__ = True
    signature = _signature(function, arguments, results, roles)
    conditions = Conditions(
        frozenset(one_axis),
        {name: (size,) if isinstance(size, int) else tuple(size) for name, size in (sizes or {}).items()},
        dict(multiples or {}),
        tuple(as_dtype(dtype).name for dtype in dtypes),
        {name: tuple(values) for name, values in (options or {}).items()},
        most_devices,
        differentiates,
    )
    _check_conditions(signature, conditions)
    _check_call(function, signature, conditions, whole=whole)
    known = reference_of(reference, signature, _small(signature, conditions), _first(conditions))
    name = getattr(function, "__name__", type(function).__name__).strip("<>")
    while name in CONTRACTS:
        name += "_"
    contract = whole_contract(name, signature, known, conditions=conditions, local=not whole, listed=False)
    running.forget()  # the same function may have been checked as another program
    communication_law.forget()
    with added(contract):
        expectation = Expectation.parse(communication, names_of(name)) if communication else None
        implementation = Implementation(name, name, function, expectation=expectation, whole=whole)
        return checked(implementation, laws, max_examples=max_examples, random_seed=random_seed)


def _signature(
    function: Callable[..., Any], arguments: Sequence[Described], results: Described, roles: Iterable[str]
) -> Signature:
    if not callable(function):
        raise ValueError(f"function={function!r}: expected a function")  # noqa: TRY004 (one kind for all that is given)
    if isinstance(arguments, str | Mapping | Array) or not isinstance(arguments, Sequence):
        raise ValueError(f"arguments={arguments!r}: expected a description for each argument, in a tuple")  # noqa: TRY004
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named += [f"x{i}" for i in range(len(named), len(arguments))]
    return Signature.of(named[: len(arguments)], arguments, results, roles)


def _check_conditions(signature: Signature, conditions: Conditions) -> None:
    dimensions = {d.name for a in (*signature.arrays, *signature.results) for d in a.dimensions}
    for what, names, known in (
        ("one_axis", conditions.one_axis, set(signature.roles)),
        ("sizes", conditions.sizes, dimensions),
        ("multiples", conditions.multiples, dimensions),
    ):
        for name in names:
            if name not in known:
                raise ValueError(f"{what}: {name!r}: expected some of {', '.join(sorted(known)) or 'none'}")
    if not signature.roles:
        raise ValueError("arguments: expected a role that shards a dimension, as in 'batch@data features'")
    if not conditions.dtypes:
        raise ValueError("dtypes: expected at least one")
    for name, values in conditions.options.items():
        if not values:
            raise ValueError(f"options: {name}: expected at least one value")


def _small(signature: Signature, conditions: Conditions) -> dict[str, int]:
    """Sizes of all dimensions that are possible on one device."""
    found = {}
    for name in signature.parts(dict.fromkeys(signature.roles, 1)):
        found[name] = conditions.sizes[name][0] if name in conditions.sizes else 2 * conditions.multiples.get(name, 1)
    return found


def _first(conditions: Conditions) -> dict[str, Any]:
    return {name: values[0] for name, values in conditions.options.items()}


def _check_call(function: Callable[..., Any], signature: Signature, conditions: Conditions, *, whole: bool) -> None:
    by_name = [*signature.roles, *conditions.options, *(["mesh"] if whole else [])]
    leaves = refilled(signature.tree, signature.names)
    try:
        inspect.signature(function).bind(*leaves, **dict.fromkeys(by_name))
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        wanted = ", ".join([*(f"<{tree}>" for tree in leaves), *(f"{n}=" for n in by_name)])
        told = f"{name}{inspect.signature(function)} cannot be called as {name}({wanted}): {error}"
        raise ValueError(told) from error
    except ValueError:  # some callables in C do not tell
        return
