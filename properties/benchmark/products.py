"""Collective matrix products: what every form sends, multiplies and holds, and how long it takes on this machine."""

import time

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from rich.console import Console

from shardproof.oracles.communication import NOTHING
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.benchmark import tables
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts.products import product_case
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.laws.communication import stated_by
from shardproof.properties.performance.machines import Balanced, flops_in
from shardproof.properties.performance.operations import Operation, operations_of
from shardproof.properties.performance.timeline import timeline
from shardproof.properties.programs.derivatives import derivatives
from shardproof.properties.programs.implementations import OVERLAPPED, PRODUCTS, Implementation
from shardproof.properties.programs.program import Program, Seen, forward

COLUMNS = (
    "product",
    "form",
    "collectives",
    "bytes of operands",
    "of the gradient's",
    "MFLOP",
    "peak bytes",
    "exposed",
    "with the gradient",
)
SMALL = (8, 32, 16)
"""Sides of the blocks that move, in the table: small enough to be interpreted at once."""

REPEATS = 5
PUBLISHED: dict[str, tuple[int, tuple[int, int, int]]] = {
    "all_gather_matmul_lhs_contracting": (4, (512, 512, 2048)),
    "all_gather_matmul_lhs": (4, (512, 1024, 2048)),
    "all_gather_matmul_rhs": (4, (256, 1024, 256)),
    "matmul_reduce_scatter": (8, (128, 512, 256)),
    "matmul_all_reduce": (4, (256, 512, 2048)),
    "transformer_block": (4, (128, 128, 512)),
}
"""Participants and sides of the published examples, with an eighth of the rows and a quarter of a block's sides."""

REMARK = (
    "Ratios on a CPU say nothing about overlap: its devices are threads that copy within one memory, so that there is "
    "nothing to hide, and every step adds slices, copies and a barrier."
)


def rows(p: int = 8) -> list[tuple[str, ...]]:
    """Every form's deterministic figures per device, over one axis of p participants, or two that make p."""
    found = []
    for one in (*PRODUCTS, *OVERLAPPED):
        nested = one.name.startswith("nested")
        mesh = MeshCase(("x", "y"), (2, p // 2)) if nested else MeshCase(("x",), (p,))
        case = product_case(one.contract, mesh, ("x", "y") if nested else "x", SMALL)
        stated = (stated_by(one, case, backward=backward) for backward in (False, True))
        sent, back = (numbers.cost if numbers else NOTHING for numbers in stated)
        program = forward(case, one, Seen())
        operations, with_gradient = traced_ways(one, case)
        machine = Balanced.of(operations, case.mesh, case.axes)
        found.append(
            (
                one.contract,
                form_of(one),
                ", ".join(f"{count} {kind}" for kind, count in sent.counts),
                f"{sent.total_bytes:,}",
                f"{back.total_bytes:,}",
                f"{flops_in(operations) / 1e6:.3f}",
                f"{peak(program, case):,}",
                f"{float(timeline(operations, machine).share):.0%}",
                f"{float(timeline(with_gradient, machine).share):.0%}",
            )
        )
    return sorted(found, key=lambda row: [i.contract for i in PRODUCTS].index(row[0]))


def traced_ways(one: Implementation, case: Case) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """The operations of the forward pass, and of the forward pass with its gradient."""
    seen = Seen()
    program = forward(case, one, seen)
    operations = operations_of(program, case.mesh)
    return operations, operations_of(derivatives(case, one, seen, forward_mode=False)[0], case.mesh)


def form_of(one: Implementation) -> str:
    """Its name without that of the contract."""
    return one.name.removesuffix(one.contract).rstrip("_")


def markdown(p: int = 8) -> str:
    """The table of `rows`, as `impl/README.md` has it."""
    return tables.markdown(COLUMNS, rows(p), left=3)


def peak(program: Program, case: Case) -> int:
    """The most bytes of blocks alive at one time, as a compiler would arrange them."""
    mesh = abstract_mesh(case.mesh)
    arrays = [generate(Data("exact", i), a.shape, np.dtype(a.dtype)) for i, a in enumerate(program.arguments)]
    return int(prepare(program.build(mesh), *program.abstract_arguments(mesh)).run_recorded(*arrays)[1].peak_bytes)


def seconds(one: Implementation, case: Case) -> float:
    """The least time of a few runs of the compiled program."""
    program = forward(case, one, Seen())
    kinds = (AxisType.Auto,) * len(case.mesh.sizes)
    devices = jax.devices()[: case.mesh.size]
    mesh = jax.make_mesh(case.mesh.sizes, case.mesh.axis_names, kinds, devices=devices)
    arrays = [
        jax.device_put(generate(Data("exact", i), a.shape, np.dtype(a.dtype)), NamedSharding(mesh, a.partition_spec))
        for i, a in enumerate(program.arguments)
    ]
    function = jax.jit(program.build(mesh))
    jax.block_until_ready(function(*arrays))
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arrays))
        taken.append(time.perf_counter() - start)
    return min(taken)


def ratios(devices: int) -> list[tuple[str, str, float, float]]:
    """Every form at its published shape: milliseconds, and as a multiple of the naive one."""
    found = []
    for naive in PRODUCTS:
        p, sides = PUBLISHED[naive.contract]
        if p > devices:
            continue
        case = product_case(naive.contract, MeshCase(("x",), (p,)), "x", sides)
        least = seconds(naive, case)
        found.append((naive.contract, naive.name, 1e3 * least, 1.0))
        for one in OVERLAPPED:
            if one.contract == naive.contract:
                pair = product_case(naive.contract, MeshCase(("x", "y"), (2, p // 2)), ("x", "y"), sides)
                taken = seconds(one, case if one.serves is None or one.serves(case) else pair)
                found.append(
                    (one.contract, one.name.removesuffix(one.contract).rstrip("_"), 1e3 * taken, taken / least)
                )
    return found


def measure(devices: int) -> None:
    """Prints both tables."""
    console = Console(width=130)
    console.print(tables.table("per device, of 8; float32 blocks with sides 8, 32 and 16", COLUMNS, rows()))
    timed = [(contract, form, f"{ms:.2f}", f"{ratio:.2f}") for contract, form, ms, ratio in ratios(devices)]
    console.print(
        tables.table("at published shapes, one process", ("product", "form", "milliseconds", "of naive"), timed)
    )
    console.print(REMARK)
