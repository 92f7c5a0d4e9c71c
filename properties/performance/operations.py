"""The kernels, transfers and loops of one device, from a program's trace, and which of them need which.

A kernel is what a compiler would fuse into one: a product with the slices, casts and elementwise arithmetic around it
that need nothing else, or such arithmetic by itself. Indexing, casts and renaming cost nothing and join whatever reads
them. No kernel waits for a transfer that a part of it does not need.

Left out: copies of a loop's carry, memory layouts, caches, and operations on global arrays outside of
`shard_map`, which a compiler divides.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.interpreters import partial_eval

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import trace
from shardproof.properties.engines.simulate.env import bytes_of
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.engines.simulate.jaxprs import open_jaxpr, subjaxprs, variables
from shardproof.properties.performance.memory import array_bytes, inline_calls, peak_bytes
from shardproof.properties.performance.routes import Loads, Undetermined, loads_of
from shardproof.properties.programs.program import Program

LOOPS, BRANCHES = ("scan", "while"), ("cond",)
NOT_CALLED = (*LOOPS, *BRANCHES)

FREE = frozenset((
     "axis_index", "broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "empty", "expand_dims", "iota",
     "name", "optimization_barrier", "partition_id", "platform_index", "pcast", "preduced", "pvary",
     "reduced_vary_cast", "reshape", "reshard", "sharding_constraint", "slice", "split", "squeeze", "stop_gradient",
     "transpose", "unstack", "vary_unreduced_cast",
))  # fmt: skip
"""Primitives that compilers fold into what reads their results."""

IN_PLACE = frozenset({"dynamic_update_slice"})
"""Primitives that write a part of their first operand, which nothing else holds, and leave the rest where it is."""


@dataclass(frozen=True)
class Operation:
    """A kernel, a transfer, or a loop."""

    name: str  # the primitive; that of its product, if a kernel has one
    where: str  # the place in the source
    reads: frozenset[int]  # the operations of the same block, by their places, that it needs
    # multiplications and additions, by the dtype of what is multiplied
    flops: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0  # what it reads from memory and writes there
    loads: Loads = field(default_factory=Loads)  # the bytes that a transfer sends over every link
    body: tuple["Operation", ...] = ()  # the operations that a loop repeats
    times: int = 1  # how often

    @property
    def transfers(self) -> bool:
        """True for a transfer."""
        return bool(self.loads)


def operations_of(program: Program, on: MeshCase) -> tuple[Operation, ...]:
    """The operations of every device in the `shard_map`s of a program, one after the other."""
    return operations_in(trace(program, on), on)


def operations_in(jaxpr: Any, on: MeshCase) -> tuple[Operation, ...]:
    """The same of a traced program."""
    bodies = enumerate(_bodies(jaxpr))
    return tuple(Operation("shard_map", "", frozenset(range(i)), body=block_of(body, on)) for i, body in bodies)


def peak_in(jaxpr: Any) -> int:
    """The most bytes that a device holds at one time in a `shard_map` of a traced program; see `peak_bytes`."""
    return max(peak_bytes(body) for body in _bodies(jaxpr))


def _bodies(closed_jaxpr: Any) -> list[Any]:
    """The bodies of the outermost `shard_map`s in program order, without what nothing reads."""
    jaxpr = open_jaxpr(closed_jaxpr)[0]

    def find(jaxpr: Any) -> Iterator[Any]:
        for equation in open_jaxpr(jaxpr)[0].eqns:
            for inner in subjaxprs(equation):
                yield from (inner,) if equation.primitive.name == "shard_map" else find(inner)

    bodies = [*find(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)[0])]
    if not bodies:
        raise Undetermined("there is no shard_map in it, and what a compiler makes of global arrays is its own")
    return bodies


@dataclass(frozen=True)
class Kernel:
    """An operation, with the bytes of each variable that it reads and writes; arithmetic that joins it adds to both."""

    operation: Operation
    behind: frozenset[int]  # the kernels that it needs, and that these need
    fuses: bool  # whether arithmetic may join it
    read: dict[Any, int] = field(default_factory=dict)
    written: dict[Any, int] = field(default_factory=dict)


def block_of(jaxpr: Any, mesh: MeshCase) -> tuple[Operation, ...]:
    """The operations of one straight piece of a program: of a `shard_map`, or of a loop's body."""
    equations, found = inline_calls(open_jaxpr(jaxpr)[0], lambda equation: equation.primitive.name not in NOT_CALLED)
    origin: dict[Any, Any] = {}  # a variable to the one that it is a view of

    def root(variable: Any) -> Any:
        while variable in origin:
            variable = origin[variable]
        return variable

    uses = Counter[Any]()  # how often a variable is read
    for equation in equations:
        read, written = variables(equation.invars), equation.outvars
        if equation.primitive.name not in FREE:
            uses.update(map(root, read))
        elif read:
            origin.update(zip(written, read if len(read) == len(written) else read[:1] * len(written), strict=True))
    results = [root(v) for v in variables(found)]
    uses.update(results)
    kernels: list[Kernel] = []
    sources: dict[Any, frozenset[int]] = {}  # the kernels that a variable needs
    for equation in equations:
        name, read, written = equation.primitive.name, variables(equation.invars), equation.outvars
        needed = frozenset[int]().union(*(sources.get(v, ()) for v in read))
        if name in FREE:
            sources.update(dict.fromkeys(written, needed))
            continue
        body, times = _repeated(equation, mesh) if name in NOT_CALLED else ((), 1)
        loads = Loads() if name in NOT_CALLED else loads_of(equation, mesh)
        flops = {} if loads or body else flops_of(equation)
        operation = Operation(name, location(equation), needed, flops, loads=loads, body=body, times=times)
        kernel = Kernel(operation, needed.union(*(kernels[i].behind for i in needed)), fuses=not loads and not body)
        if kernel.fuses:
            part = bytes_of(equation.invars[1].aval) if name in IN_PLACE else None
            kernel.written.update({v: array_bytes(v) if part is None else part for v in written})
            kernel.read.update({root(v): array_bytes(v) for v in (read if part is None else read[1:])})
        place = len(kernels)
        if kernel.fuses and not flops:  # joins the only kernel that it reads from, if that adds no dependency
            joinable = [(i, root(v)) for v in read if uses[root(v)] == 1 for i in sources.get(v, ())]
            for i, v in joinable:
                own = kernels[i]
                if own.fuses and v in own.written and needed <= {i, *own.behind}:
                    place = i
                    own.read.update({v: size for v, size in kernel.read.items() if v not in own.written})
                    del own.written[v]
                    own.written.update(kernel.written)
                    break
        if place == len(kernels):
            kernels.append(kernel)
        sources.update(dict.fromkeys(written, frozenset({place})))
    wanted = set(results).union(*(kernel.read for kernel in kernels))

    def moved(kernel: Kernel) -> int:
        return sum(kernel.read.values()) + sum(size for v, size in kernel.written.items() if v in wanted)

    return tuple(replace(kernel.operation, bytes=moved(kernel)) for kernel in kernels)


def _repeated(equation: Any, mesh: MeshCase) -> tuple[tuple[Operation, ...], int]:
    """A loop's operations and how often they run, or those of the costliest branch; none of a loop over indices."""
    bodies = [block_of(inner, mesh) for inner in subjaxprs(equation)]
    if equation.primitive.name in BRANCHES:
        return max(bodies, key=lambda body: (flops_in(body), len(body))), 1
    if not any(o.loads or o.body or o.flops for body in bodies for o in body):
        return (), 1
    if equation.primitive.name == "while":
        raise Undetermined(f"the iterations of the while at {location(equation)} depend on data")
    (body,), times = bodies, equation.params["length"]
    return (body, times) if times else ((), 1)


def flops_of(equation: Any) -> dict[str, int]:
    """Multiplications and additions of a product, by the dtype of its operands; empty for anything else."""
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        inner = math.prod(equation.invars[0].aval.shape[i] for i in contracted)
    elif name == "ragged_dot_general":
        numbers = equation.params["ragged_dot_dimension_numbers"]
        (contracted, _), _ = numbers.dot_dimension_numbers
        inner = math.prod(equation.invars[0].aval.shape[i] for i in contracted)
        if {*numbers.lhs_ragged_dimensions} & {*contracted}:  # every row is a term of one group's sums alone
            inner //= max(1, equation.invars[2].aval.shape[-1])
    elif name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
        inner = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    else:
        return {}
    dtype = np.result_type(*(v.aval.dtype for v in equation.invars[:2]))  # a third one holds the sizes of groups
    return {str(dtype): 2 * inner * math.prod(equation.outvars[0].aval.shape)}


def within(operations: Sequence[Operation], times: int = 1) -> Iterator[tuple[Operation, int]]:
    """All operations, those of loops as well, and how often each runs."""
    for operation in operations:
        yield operation, times
        yield from within(operation.body, times * operation.times)


def flops_in(operations: Sequence[Operation]) -> int:
    """The multiplications and additions of all products, loops as often as they run."""
    return sum(times * sum(one.flops.values()) for one, times in within(operations))
