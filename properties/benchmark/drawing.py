"""What a checked case costs: few structures with many data sets, against one compilation per example."""

import resource
import time

import numpy as np
from hypothesis import HealthCheck, given, settings
from rich.console import Console
from rich.table import Table

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import XlaEngine
from shardproof.properties.engines.batches import oracle_blocks
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.runner.search import find_violation

EXAMPLES = 150
MEASURED = (("all_gather", "value"), ("all_reduce", "value"), ("all_to_all", "gradient"))


def measure(devices: int) -> None:
    """Prints checked cases per second and compilations per case, for cheap and costly laws."""
    table = Table(title=f"checked cases on {devices} virtual devices, one process")
    for column in ("contract", "law", "cases", "structures", "compilations per case", "cases per second"):
        table.add_column(column, justify="left" if column in ("contract", "law") else "right")
    scope = Scope(max_devices=devices, available=devices)
    for contract, law in MEASURED:
        implementation = next(i for i in IMPLEMENTATIONS if i.contract == contract)
        found = find_violation(LAWS[law], implementation, XlaEngine(), scope, max_examples=EXAMPLES)
        if found.violation is not None:
            raise found.violation
        tally = found.tally
        table.add_row(
            contract,
            law,
            f"{tally.cases:,}",
            str(tally.structures),
            f"{tally.compilations / tally.cases:.3f}",
            f"{tally.cases / found.seconds:.0f}",
        )
    checked, seconds = plain(scope)
    table.add_row("all_gather", "plain Hypothesis", str(checked), str(checked), "1.000", f"{checked / seconds:.0f}")
    console = Console(width=110)
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"peak memory of this process: {peak:.2f} GiB")


def plain(scope: Scope) -> tuple[int, float]:
    """A test as one writes it by hand: one data set per drawn structure, compiled for every example."""
    implementation = next(i for i in IMPLEMENTATIONS if i.contract == "all_gather")
    engine = XlaEngine()
    checked = 0

    @settings(max_examples=EXAMPLES // 3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=LAWS["value"].cases(implementation, scope))
    def compiles_every_example(case: Case) -> None:
        nonlocal checked
        array = case.global_array(0, case.data[0], terms=1)
        run = engine.prepare(forward(case, implementation, Seen()), case.mesh)
        expected = oracle_blocks(case, [case.blocks(0, array)])[0]
        np.testing.assert_array_equal(run([array, *others(case)])[0], expected)
        checked += 1

    start = time.perf_counter()
    compiles_every_example()
    return checked, time.perf_counter() - start


def others(case: Case) -> list[np.ndarray]:
    """The further operands of a case that passes a tree."""
    return [case.global_array(i, case.data[0], terms=1) for i in range(1, len(case.operands))]
