"""What one device does while a program runs, from its trace: kernels, transfers and loops, and what waits for what.

A kernel is what a compiler would make one of: a product with the slices, casts and element by element arithmetic around
it that need nothing else, or such arithmetic by itself. What only moves indices, casts or renames costs nothing, and is
part of whatever reads it. No kernel is made that would wait for a transfer that a part of it does not need.

Left out: the copies that a loop makes of what it carries, memory layouts, what fits into a cache, and operations on
global arrays outside of `shard_map`, which a compiler divides.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.engines.simulate.liveness import Value, flattened, opened, peak_bytes, subjaxprs
from shardproof.properties.engines.simulate.record import bytes_of
from shardproof.properties.performance.routes import Loads, Untold, loads_of
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

    name: str  # the primitive, of a kernel its product if it has one
    where: str  # the place in the source
    reads: frozenset[int]  # the operations of the same block, by their places, that it needs
    # multiplications and additions, by the dtype of what is multiplied
    flops: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0  # what it reads from memory and writes there
    loads: Loads = field(default_factory=Loads)  # of a transfer, what goes over every link; empty of what is none
    body: tuple["Operation", ...] = ()  # of a loop, what it repeats
    times: int = 1  # how often

    @property
    def transfers(self) -> bool:
        """Whether it sends something, and multiplies nothing."""
        return bool(self.loads)


def operations_of(program: Program, on: MeshCase) -> tuple[Operation, ...]:
    """What every device does in the `shard_map`s of a program, one after the other."""
    return operations_in(_traced(program, on), on)


def operations_in(jaxpr: Any, on: MeshCase) -> tuple[Operation, ...]:
    """The same of a program that is traced."""
    bodies = enumerate(_bodies(jaxpr))
    return tuple(Operation("shard_map", "", frozenset(range(i)), body=block_of(body, on)) for i, body in bodies)


def peak_of(program: Program, on: MeshCase) -> int:
    """The most bytes that a device holds at one time in a `shard_map`, as `memory.peak_bytes` counts them."""
    return peak_in(_traced(program, on))


def peak_in(jaxpr: Any) -> int:
    """The same of a program that is traced."""
    return max(peak_bytes(body) for body in _bodies(jaxpr))


def _traced(program: Program, on: MeshCase) -> Any:
    mesh = abstract_mesh(on)
    return jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))


def _bodies(closed_jaxpr: Any) -> list[Any]:
    jaxpr = opened(closed_jaxpr)[0]
    bodies = _mapped(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)[0])  # nothing that nobody reads
    if not bodies:
        raise Untold("there is no shard_map in it, and what a compiler makes of global arrays is its own")
    return bodies


def _mapped(jaxpr: Any) -> list[Any]:
    """The bodies of the outermost `shard_map`s, in program order."""
    found = []
    for equation in opened(jaxpr)[0].eqns:
        inner = list(subjaxprs(equation))
        found += inner if equation.primitive.name == "shard_map" else [each for one in inner for each in _mapped(one)]
    return found


@dataclass(frozen=True)
class Kernel:
    """An operation, with the bytes of each value that it reads and writes: arithmetic that joins it adds to these."""

    operation: Operation
    behind: frozenset[int]  # what it reads, with what that needs
    fuses: bool  # whether arithmetic may join it
    read: dict[Value, int] = field(default_factory=dict)
    written: dict[Value, int] = field(default_factory=dict)


def block_of(jaxpr: Any, mesh: MeshCase) -> tuple[Operation, ...]:
    """The operations of one straight piece of a program: of a `shard_map`, or of a loop's body."""
    inner = opened(jaxpr)[0]
    names = {v: Value(v.aval) for v in (*inner.invars, *inner.constvars)}
    steps, found = flattened(inner, names, lambda equation: equation.primitive.name not in NOT_CALLED)
    origin: dict[Value, Value] = {}  # of a value that is another one, looked at in another way

    def root(value: Value) -> Value:
        while value in origin:
            value = origin[value]
        return value

    uses = Counter[Value]()  # how often a value is read
    for step in steps:
        if step.name not in FREE:
            uses.update(map(root, step.reads))
        elif step.reads:
            one_each = len(step.reads) == len(step.writes)
            origin.update(zip(step.writes, step.reads if one_each else step.reads[:1] * len(step.writes), strict=True))
    results = [root(v) for v in found if isinstance(v, Value)]
    uses.update(results)
    kernels: list[Kernel] = []
    sources: dict[Value, frozenset[int]] = {}  # the kernels that a value needs
    for equation, read, written in steps:
        name, needed = equation.primitive.name, frozenset[int]().union(*(sources.get(v, ()) for v in read))
        if name in FREE:
            sources.update(dict.fromkeys(written, needed))
            continue
        body, times = _repeated(equation, mesh) if name in NOT_CALLED else ((), 1)
        loads = Loads() if name in NOT_CALLED else loads_of(equation, mesh)
        flops = {} if loads or body else flops_of(equation)
        operation = Operation(name, location(equation), needed, flops, loads=loads, body=body, times=times)
        behind = needed.union(*(kernels[i].behind for i in needed))
        kernel = Kernel(operation, behind, fuses=not loads and not body)
        if kernel.fuses:
            part = bytes_of(equation.invars[1].aval) if name in IN_PLACE else None
            kernel.written.update({value: value.bytes if part is None else part for value in written})
            kernel.read.update({root(v): v.bytes for v in (read if part is None else read[1:])})
        place = len(kernels)
        if kernel.fuses and not flops:  # joins the only kernel that it reads from, if that adds no dependency
            sole = [(v, i) for v in read if uses[root(v)] == 1 for i in sources.get(v, ())]
            joined = [
                (i, root(v))
                for v, i in sole
                if kernels[i].fuses and root(v) in kernels[i].written and needed <= {i, *kernels[i].behind}
            ]
            if joined:
                place, value = joined[0]
                own = kernels[place]
                own.read.update({v: size for v, size in kernel.read.items() if v not in own.written})
                del own.written[value]
                own.written.update(kernel.written)
        if place == len(kernels):
            kernels.append(kernel)
        sources.update(dict.fromkeys(written, frozenset({place})))
    wanted = set(results).union(*(kernel.read for kernel in kernels))

    def moved(kernel: Kernel) -> int:
        return sum(kernel.read.values()) + sum(size for v, size in kernel.written.items() if v in wanted)

    return tuple(replace(kernel.operation, bytes=moved(kernel)) for kernel in kernels)


def _repeated(equation: Any, mesh: MeshCase) -> tuple[tuple[Operation, ...], int]:
    """What a loop does and how often, or the costliest branch; nothing where only indices are computed."""
    bodies = [block_of(inner, mesh) for inner in subjaxprs(equation)]
    if equation.primitive.name in BRANCHES:
        return max(bodies, key=lambda body: (flops_in(body), len(body))), 1
    if not any(o.loads or o.body or o.flops for body in bodies for o in body):
        return (), 1
    if equation.primitive.name == "while":
        raise Untold(f"the iterations of the while at {location(equation)} depend on data")
    (body,), times = bodies, equation.params["length"]
    return (body, times) if times else ((), 1)


def flops_of(equation: Any) -> dict[str, int]:
    """Multiplications and additions of a product, by the dtype of its operands; of what is none, nothing."""
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
