"""The compiling process: reads requests, one JSON object a line, and answers each with one."""

import dataclasses
import functools
import importlib
import json
import os
import sys
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding

from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.performance.tpu_compiler import BACKWARD, COMPILER, Request
from shardproof.properties.performance.tpu_compiler.topology import Topology, in_rings
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Argument, Global, Program, Seen, arguments, derivatives, forward

RESULT: dict[str, int | None] = {
    "all_gather_matmul_lhs_contracting": 1,
    "all_gather_matmul_lhs": 1,
    "all_gather_matmul_rhs": 0,
    "matmul_all_reduce": None,
    "transformer_block": 1,
}
"""The dimension in which each product's result is sharded, as `product_cases.SHARDED` has it of the operands."""


def product(*operands: jax.Array) -> jax.Array:
    """`lhs @ rhs`, or `relu(x @ w_in) @ w_out`, in the operands' dtype, as it is written for one device."""
    *first, last = operands
    return functools.reduce(lambda x, w: jax.nn.relu(x @ w), first) @ last


def partition(case: Case, *, backward: bool = False) -> Program:
    """The product under `jit`, with layouts of its operands and result, and nothing between; or its gradients alone.

    Sums are in the operands' dtype, in which a compiler may send them too. Raises ValueError for another contract.
    """
    if case.contract.name not in (*RESULT, "matmul_reduce_scatter"):
        raise ValueError(f"contract={case.contract.name!r}: expected one of {', '.join(RESULT)}, matmul_reduce_scatter")
    given = arguments(case)
    dimension = RESULT.get(case.contract.name, case.keywords.get("scatter_dimension"))
    shape = (*given[0].shape[:-1], given[-1].shape[-1])
    at = None if dimension is None else len(shape) - 2 + dimension
    spec: Entries = tuple(case.axes if i == at else () for i in range(len(shape)))
    result = Argument(shape, given[0].dtype, spec)

    def build(mesh: Any) -> Global:
        def forward(*arrays: jax.Array) -> jax.Array:
            return lax.with_sharding_constraint(product(*arrays), NamedSharding(mesh, result.partition_spec))

        def gradients(*arrays: jax.Array) -> list[jax.Array]:
            pull = jax.vjp(forward, *arrays[:-1])[1]
            layouts = [NamedSharding(mesh, a.partition_spec) for a in given]
            return [lax.with_sharding_constraint(g, s) for g, s in zip(pull(arrays[-1]), layouts, strict=True)]

        return gradients if backward else lambda *arrays: [forward(*arrays)]

    return Program(build, (*given, result) if backward else given)


CHIPS: dict[str, dict[str, Any]] = {"v4": {"chip_config_name": "megacore"}}
"""Options of a topology: by default the two cores of a chip of v4 are one device, as of v5p."""


def implementation_of(contract: str, name: str) -> Implementation:
    """One of this project's own by `contract[name]`, or a user's by `MODULE:FUNCTION`."""
    found = [i for i in IMPLEMENTATIONS if i.contract.name == contract and str(i) == name]
    if found:
        return found[0]
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"implementation={name!r}: expected contract[name] of one of {contract}, or MODULE:FUNCTION")
    return Implementation(CONTRACTS[contract], function, getattr(importlib.import_module(module), function))


def program_of(request: Request) -> Program:
    """The program of a request."""
    if request.implementation == COMPILER:
        return partition(request.case, backward=request.way == BACKWARD)
    implementation, seen = implementation_of(request.case.contract.name, request.implementation), Seen()
    program = forward(request.case, implementation, seen)
    if request.way != BACKWARD:
        return program
    mesh = abstract_mesh(request.case.mesh)
    jax.eval_shape(program.build(mesh), *program.abstract_arguments(mesh))  # fills `seen`
    whole, _ = derivatives(request.case, implementation, seen, forward_mode=False)
    gradients = len(request.case.contract.call.moving(request.case))
    return dataclasses.replace(whole, build=lambda mesh: lambda *arrays: whole.build(mesh)(*arrays)[-gradients:])


def answer(request: Request) -> dict[str, Any]:
    """Compiles the program of a request."""
    case, topology = request.case, Topology.parse(request.topology)
    options = CHIPS.get(topology.generation, {})
    described: Any = topologies.get_topology_desc(platform="tpu", topology_name=str(topology), **options)
    # the last axis of the mesh lies on rings of chips
    devices, chips = zip(*in_rings(described.devices, topology, case.mesh.sizes[-1]), strict=True)
    if len(devices) != case.mesh.size:
        raise ValueError(f"mesh={case.mesh}: expected {len(devices)} devices, as many as {topology} has")
    kinds = (AxisType.Auto,) * len(case.mesh.sizes)
    mesh = Mesh(np.array(devices).reshape(case.mesh.sizes), case.mesh.axis_names, axis_types=kinds)
    program = program_of(request)
    compiled = jax.jit(program.build(mesh)).lower(*program.abstract_arguments(mesh)).compile()
    memory: Any = compiled.memory_analysis()
    return {
        "text": compiled.as_text(),
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "result_bytes": memory.output_size_in_bytes,
        "chips": chips,
    }


def main() -> None:
    """Answers all requests."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        try:
            said = answer(Request.from_json(json.loads(line)))
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
