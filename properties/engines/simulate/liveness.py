"""Programs inside of programs: all equations of a jaxpr, its values without calls, and the bytes that it holds.

On each device it holds at one time what it would if a compiler arranged it. Four things make that less than all values
from the equation that makes them to the last that reads them:

- what is only typed in another way is where it was (`RENAMED`);
- a part of a block, or a block in another order, is read where it stands (`VIEWS`);
- a product that is only made to be added, or written into a larger block, is added or written there (`INTO`);
- what is read for the last time gives its place to a result of the same size (`IN_PLACE`).

Arguments stay: nobody has given them away. A loop keeps one copy of what it carries. Single numbers, indices
above all, have no place: registers hold them.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jax.extend import core

from shardproof.properties.engines.simulate.record import bytes_of

ELEMENTS = 250
"""So many numbers count as an equation more, where each is rounded in many samples."""


def opened(jaxpr: Any) -> tuple[Any, list[Any]]:
    """A jaxpr, closed or not, as its equations and its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", ()))


def subjaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters, as they stand there."""
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr in program order, those of inner jaxprs behind the one that they belong to."""
    for equation in opened(jaxpr)[0].eqns:
        yield equation
        for inner in subjaxprs(equation):
            yield from equations(inner)


def scan_counts(equation: Any) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in equation.params:
        return equation.params["num_consts"], equation.params["num_carry"]
    constants, carried, _ = equation.params["ft_in"].unpack()
    return len(list(constants)), len(list(carried))


def steps_of(jaxpr: Any, devices: int) -> float:
    """How long a program takes to interpret, in equations of few numbers; those of a loop count in every iteration.

    A `while` loop, of which the trace does not say how often it runs, counts once.
    """
    total = 0.0
    for equation in opened(jaxpr)[0].eqns:
        elements = sum(math.prod(getattr(one.aval, "shape", ())) for one in equation.outvars)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += 1 + elements * devices / ELEMENTS + times * sum(steps_of(one, devices) for one in subjaxprs(equation))
    return total


def widest(jaxpr: Any) -> int:
    """The most numbers of one value of a program, on all devices together; at least 1."""
    most = 1
    for equation in opened(jaxpr)[0].eqns:
        manual = equation.params.get("newly_manual_axes", ())
        devices = math.prod(equation.params["mesh"].shape[name] for name in manual)
        sizes = [math.prod(getattr(v.aval, "shape", ())) for v in (*equation.invars, *equation.outvars)]
        most = max([most, *sizes, *(devices * widest(inner) for inner in subjaxprs(equation))])
    return most


class Value:
    """What an equation makes, each time that it is called."""

    def __init__(self, aval: Any) -> None:
        self.bytes = bytes_of(aval) if getattr(aval, "shape", ()) else 0


class Step(NamedTuple):
    """An equation that is no call."""

    equation: Any
    reads: list[Value]
    writes: list[Value]

    @property
    def name(self) -> str:
        """The primitive's."""
        return str(self.equation.primitive.name)


def flattened(body: Any, names: dict[Any, Any], calls: Callable[[Any], bool]) -> tuple[list[Step], list[Any]]:
    """The equations of a body, calls replaced by what they call, and its results: values, and literals.

    Arguments:
        names: the values of its arguments; those of the rest are added.
        calls: whether an equation with a single inner jaxpr is a call of that.
    """
    steps: list[Step] = []

    def resolve(atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else names[atom]

    for equation in body.eqns:
        inner = list(subjaxprs(equation))
        operands = [resolve(atom) for atom in equation.invars]
        if calls(equation) and len(inner) == 1:
            called, _ = opened(inner[0])
            constants = {v: Value(v.aval) for v in called.constvars}
            given = operands[len(operands) - len(called.invars) :]
            own, results = flattened(called, {**constants, **dict(zip(called.invars, given, strict=True))}, calls)
            steps += own
        else:
            results = [Value(v.aval) for v in equation.outvars]
            steps.append(Step(equation, [v for v in operands if isinstance(v, Value)], results))
        names.update(zip(equation.outvars, results, strict=True))
    return steps, [resolve(atom) for atom in body.outvars]


RENAMED = frozenset({"pvary", "preduced", "reduced_vary_cast", "vary_unreduced_cast"})
"""What changes a type along mesh axes alone: no compiler is told of it."""

SAME = RENAMED | {"squeeze", "expand_dims", "reshape", "convert_element_type"}
VIEWS = SAME | {"slice", "dynamic_slice", "split", "transpose", "broadcast_in_dim"}
INTO = frozenset({"add", "add_any", "sub", "dynamic_update_slice"})
IN_PLACE = INTO | SAME | {"mul", "max", "min", "select_n", "scatter", "scatter-add", "scan", "while"}
READS_VIEWS = VIEWS | INTO | {"dot_general", "concatenate", "mul", "div", "max", "min", "select_n", "reduce_sum"}
"""What needs no copy of a part of a block to read it."""

CALLS = frozenset({"jit", "eval_jaxpr", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"}) | {
    "composite", "linear_call", "closed_call",
}  # fmt: skip
"""What does nothing but call a jaxpr with its operands."""


_PEAKS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def peak_bytes(jaxpr: Any) -> int:
    """The most bytes that a body holds at one time: its arguments, and what it makes of them."""
    body, _ = opened(jaxpr)
    arguments = (Value(v.aval) for v in (*body.invars, *body.constvars))
    return sum(value.bytes for value in arguments) + _besides_arguments(jaxpr, slice(0))


def _besides_arguments(jaxpr: Any, carried: slice) -> int:
    """The most bytes at one time besides the arguments, of which results may take the place of those `carried`."""
    if jaxpr not in _PEAKS:
        _PEAKS[jaxpr] = _Arrangement(jaxpr, carried).peak()
    return _PEAKS[jaxpr]


def _inside(equation: Any) -> int:
    """The most bytes at one time inside of an equation, besides its operands and results."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        constants, carried = scan_counts(equation)
        return _besides_arguments(params["jaxpr"], slice(constants, constants + carried))
    if name == "while":
        return _besides_arguments(params["body_jaxpr"], slice(params["body_nconsts"], None))
    return max((_besides_arguments(inner, slice(0)) for inner in subjaxprs(equation)), default=0)


class _Arrangement:
    """Which values of a body have a place of their own, and until when."""

    def __init__(self, jaxpr: Any, carried: slice) -> None:
        body, _ = opened(jaxpr)
        names: dict[Any, Any] = {v: Value(v.aval) for v in (*body.invars, *body.constvars)}
        self.arguments = set(names.values())
        self.carried = {names[v] for v in body.invars[carried]}
        self.operations, results = flattened(body, names, lambda equation: equation.primitive.name in CALLS)
        self.results = {v for v in results if isinstance(v, Value) and v not in self.arguments}
        self.readers: dict[Value, list[Step]] = {}
        for operation in self.operations:
            for v in dict.fromkeys(operation.reads):
                self.readers.setdefault(v, []).append(operation)
        self.sources: dict[Value, list[Value]] = {}  # of what has no place of its own
        for operation in self.operations:
            if all(self._is_elsewhere(operation, v) for v in operation.writes):
                places = list(self._places(operation))
                self.sources.update((v, places) for v in operation.writes)

    def _is_elsewhere(self, operation: Step, v: Value) -> bool:
        """Whether a value that the operation makes needs no place."""
        if operation.name in RENAMED:
            return True
        if v in self.results:
            return False
        if operation.name in VIEWS and all(r.name in READS_VIEWS for r in self.readers.get(v, [])):
            return True
        return operation.name == "dot_general" and self._goes_into(v)

    def _goes_into(self, v: Value) -> bool:
        """Whether a product is only there to be added, or written into a larger block."""
        readers = self.readers.get(v, [])
        if v in self.results or len(readers) != 1:
            return False
        (reader,) = readers
        return reader.name in INTO or (reader.name in VIEWS and all(self._goes_into(w) for w in reader.writes))

    def _places(self, operation: Step) -> Iterator[Value]:
        """What an operation reads, as far as it has a place of its own."""
        for v in operation.reads:
            yield from self.sources.get(v, [v])

    def peak(self) -> int:
        """The most bytes at one time, besides the arguments."""
        placed = [o for o in self.operations if any(v not in self.sources for v in o.writes)]
        last: dict[Value, Step] = {}
        for operation in placed:
            last.update(dict.fromkeys([*self._places(operation), *operation.writes], operation))
        returned = self.results.union(*(self.sources.get(v, ()) for v in self.results))
        ending: dict[int, list[Value]] = {}
        for v, reader in last.items():
            if v not in returned and v not in self.arguments - self.carried:
                ending.setdefault(id(reader), []).append(v)
        alive = most = 0
        for operation in placed:
            ends = ending.get(id(operation), [])
            given = [v for v in ends if v in operation.reads] if operation.name in IN_PLACE else []
            for v in operation.writes:
                heir = next((old for old in given if old.bytes == v.bytes), None)
                if heir is None:
                    alive += v.bytes
                else:
                    given.remove(heir)
                    ends.remove(heir)
            most = max(most, alive + _inside(operation.equation))
            alive -= sum(v.bytes for v in ends if v not in self.carried)
        return most
