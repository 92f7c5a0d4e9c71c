"""How many bytes a program holds at one time on each device, if it is arranged as a compiler would.

Four things make it less than all values from the equation that makes them to the last that reads them:

- what is only typed in another way is where it was (`RENAMED`);
- a part of a block, or a block in another order, is read where it stands (`VIEWS`);
- a product that is only made to be added, or written into a larger block, is added or written there (`INTO`);
- what is read for the last time gives its place to a result of the same size (`IN_PLACE`).

Arguments stay: nobody has given them away. A loop keeps one copy of what it carries. Single numbers, indices
above all, have no place: registers hold them.
"""

import weakref
from collections.abc import Iterator
from typing import Any

from shardproof.properties.engines.simulate.control import scan_counts
from shardproof.properties.engines.simulate.liveness import Step, Value, flattened, opened, subjaxprs

RENAMED = frozenset({"pvary", "preduced", "reduced_vary_cast", "vary_unreduced_cast"})
"""What changes a type along mesh axes alone: no compiler is told of it."""

SAME = RENAMED | {"squeeze", "expand_dims", "reshape", "convert_element_type"}
VIEWS = SAME | {"slice", "dynamic_slice", "split", "transpose", "broadcast_in_dim"}
INTO = frozenset({"add", "add_any", "sub", "dynamic_update_slice"})
IN_PLACE = INTO | SAME | {"mul", "max", "min", "select_n", "scatter", "scatter-add", "scan", "while"}
READS_VIEWS = VIEWS | INTO | {"dot_general", "concatenate", "mul", "div", "max", "min", "select_n", "reduce_sum"}
"""What needs no copy of a part of a block to read it."""

CALLS = frozenset({"jit", "custom_jvp_call", "custom_vjp_call", "remat2", "closed_call"})


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
