"""Measurements for accelerators, tested on virtual devices and with a manual clock."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax import Array, lax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.compiled import UNSHARDED
from shardproof.properties.performance.measured import (
    COLLECTIVES,
    KINDS,
    MEASURED,
    NAIVE,
    TABLE,
    Form,
    Row,
    Traffic,
    Wrong,
    chip_of,
    collective_case,
    exact,
    forms,
    measure,
    medians,
    mesh_of,
    sparsen,
    table,
    tracer,
    traffic,
    violations,
)
from shardproof.properties.programs.built_in import OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHARDED, product_case
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import oracle_blocks

MESH = MeshCase(("data", "model"), (1, 4))
SMALL: dict[str, tuple[int, ...]] = {**dict.fromkeys(COLLECTIVES, (16, 4)), **dict.fromkeys(SHARDED, (32, 32, 32))}


class Clock:
    """A clock advanced by hand, and functions that advance it."""

    def __init__(self) -> None:
        self.now, self.called = 0.0, list[str]()

    def __call__(self) -> float:
        """The time."""
        return self.now

    def function(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes so long, each time the next of these times, and from the last on always that."""
        left = list(seconds)

        def call() -> None:
            self.called.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.mark.either_end
def test_functions_are_measured_in_turns() -> None:
    """Functions are measured in rounds, each of which begins with another one."""
    clock = Clock()
    found = medians({name: clock.function(name, 1.0) for name in "abc"}, clock=clock, rounds=4, least=0.5)
    assert "".join(clock.called) == "abc" + "abc" + "abc" + "bca" + "cab" + "abc"
    assert found == {"a": 1.0, "b": 1.0, "c": 1.0}


NCCL: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: Fraction(2 * (n - 1), n),
    "all_gather": lambda n: Fraction(n - 1, n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "all_to_all": lambda n: Fraction(n - 1, n),
    "broadcast": lambda n: Fraction(1),
    "ring_shift": lambda n: Fraction(1),
}
"""The table of nccl-tests, doc/PERFORMANCE.md; a shift is its sendrecv."""


@pytest.mark.either_end
@pytest.mark.parametrize("contract", COLLECTIVES)
@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_factors_are_those_of_nccl_tests(contract: str, p: int) -> None:
    """Bus bandwidth factors and sizes are those of nccl-tests."""
    found = traffic(collective_case(contract, MeshCase(("data", "model"), (1, p)), 240, 4))
    assert found.bus / found.size == NCCL[contract](p)
    assert found.size == 240 * 4 * 4


@pytest.mark.either_end
def test_bandwidths_of_a_row() -> None:
    """A row has bytes over seconds, and a product alone has no bandwidth."""
    row = Row("all_reduce", "lax", "float32 8", 2e-3, Traffic(Fraction(8_000_000), Fraction(12_000_000)), Wrong(0, 8))
    assert (row.algorithm, row.bus) == (4e9, 6e9)
    assert row.cells == ("all_reduce", "lax", "float32 8", "2000", "4", "6", "0", "8")
    assert Row("x", UNSHARDED, "", 1.0, None, Wrong(0, 1)).cells[4:6] == ("-", "-")
    assert [column.header for column in table([row]).columns] == [*TABLE]


@pytest.mark.parametrize(
    "contract", [pytest.param(c, marks=pytest.mark.lengthy) if c in SHARDED else c for c in MEASURED]
)
def test_every_form_is_right(contract: str) -> None:
    """Every measured form runs on virtual devices without a wrong element."""
    measured = forms(contract, MESH, size=SMALL[contract])
    rows = measure(measured, jax.devices()[:4], rounds=1, least=0.0)
    assert [*rows] == [form.name for form in measured]
    assert not [row for row in rows.values() if row.wrong.count or not row.wrong.elements or row.seconds <= 0]
    plain = {"lax"} if contract in COLLECTIVES else {UNSHARDED, NAIVE}
    assert plain <= set(rows)
    ours = {one.name.removesuffix(f"_{contract}") for one in OVERLAPPED if one.contract.name == contract}
    assert set(rows) - plain >= ours - {"nested"}


def of_the_wrong_rows(lhs: Array, rhs: Array, axis_name: Any) -> Array:
    """Gathers the blocks of the left operand the wrong way round."""
    gathered = lax.all_gather(lhs, axis_name, axis=0)[::-1]
    return gathered.reshape(-1, lhs.shape[-1]) @ rhs


def test_a_wrong_function_shows_wrong_elements() -> None:
    """A wrong form's row has its wrong elements and the first of them."""
    mine = Implementation(CONTRACTS["all_gather_matmul_lhs"], "mine", of_the_wrong_rows)
    rows = measure(
        forms(mine.contract.name, MESH, more=[mine], size=SMALL[mine.contract.name]), jax.devices()[:4], rounds=1
    )
    assert [*rows] == [UNSHARDED, NAIVE, "mine"]
    assert rows[NAIVE].wrong.count == 0
    assert 0 < rows["mine"].wrong.count <= rows["mine"].wrong.elements == 4 * 32 * 8
    (text,) = violations(rows, MESH, None, hides=False)
    assert text.startswith(f"all_gather_matmul_lhs: mine: {rows['mine'].wrong.count:,} of 1,024 elements wrong; ")
    assert "the first: element [0, " in text
    assert " on device (data=0, model=0) is " in text


@pytest.mark.either_end
def test_sums_of_what_is_checked_are_exact() -> None:
    """Data of 8,192 terms is sparse enough for exact partial sums in bfloat16."""
    ones = sparsen(jax.numpy.ones((4, 8192), "bfloat16").__array__(), -1, 256)
    assert ones.astype(float).sum(axis=1).tolist() == [256.0] * 4
    assert (ones != 0).any(axis=0).sum() == 4 * 256  # at other places in every row
    case = product_case("transformer_block", MESH, "model", (4, 256, 64), dtype="bfloat16")
    numbers = exact(case)
    assert (abs(numbers[0].astype(float)).sum(axis=-1) <= 16).all()
    assert (abs(numbers[2].astype(float)).sum(axis=0) <= 16).all()
    (right,) = oracle_blocks(case, [case.blocks(i, array) for i, array in enumerate(numbers)])
    assert (abs(right.astype(float)) <= 256).all()
    assert len({*right.astype(float).ravel().tolist()}) > 8


def row(form: str, seconds: float, *, bus: int = 0, contract: str = "all_gather_matmul_lhs") -> Row:
    """A row of which nothing is wrong."""
    sent = None if form == UNSHARDED else Traffic(Fraction(bus), Fraction(bus))
    return Row(contract, form, "", seconds, sent, Wrong(0, 1))


def rows_of(*found: Row) -> dict[str, Row]:
    """By their forms."""
    return {one.form: one for one in found}


@pytest.mark.either_end
def test_a_slow_form_breaks_its_ratio() -> None:
    """The fastest form is reported with its ratio if it is slower than the naive form."""
    fast = rows_of(row(UNSHARDED, 1e-3), row(NAIVE, 1.4e-3), row("ring", 1.1e-3), row("joined", 9e-3))
    assert not violations(fast, MESH, CHIPS["v5e"])
    slow = {**fast, "ring": row("ring", 1.5e-3)}
    (naive,) = violations(slow, MESH, CHIPS["v5e"])
    assert naive == (
        "all_gather_matmul_lhs: ring takes 1.07 times what naive takes (1500 us over 1400 us, medians of one run): "
        "expected at most 1.00: the naive form takes 1.40 local products, of which it waits for all that it sends"
    )
    assert violations(slow, MESH, None) == [naive]
    assert not violations(slow, MESH, None, hides=False)


@pytest.mark.either_end
def test_more_than_links_have_is_no_measurement() -> None:
    """A bandwidth above that of the links is reported, unless a switch may add up."""
    fast = rows_of(row("lax", 1e-3, bus=100_000_000, contract="all_reduce"))
    (text,) = violations(fast, MESH, CHIPS["v5e"])
    assert "bus bandwidth of 100 GB/s: expected at most 90 GB/s, which the links of v5e along model have" in text
    assert not violations(fast, MESH, CHIPS["v5p"])
    assert not violations(rows_of(row("lax", 1e-4, bus=10**8, contract="all_reduce")), MESH, CHIPS["h100"])


def device(kind: str) -> Any:
    """A device of a kind."""
    return SimpleNamespace(device_kind=kind)


@pytest.mark.either_end
def test_devices_are_known_chips() -> None:
    """Every kind is a published chip."""
    assert {chip_of(device(kind)).name for kind in KINDS} == set(KINDS.values())  # type: ignore[union-attr]
    assert chip_of(device("Some new chip")) is None
    assert chip_of(device("NVIDIA H100 80GB HBM3")) is CHIPS["h100"]
    assert chip_of(device("NVIDIA H100 PCIe")) is None


@pytest.mark.either_end
@pytest.mark.parametrize(
    ("devices", "sizes"), [(1, (1, 1)), (2, (1, 2)), (4, (1, 4)), (6, (2, 3)), (8, (2, 4)), (7, (1, 7))]
)
def test_four_of_the_devices_are_a_ring(devices: int, sizes: tuple[int, int]) -> None:
    """The model axis has four devices where four divides their number."""
    assert mesh_of(devices).sizes == sizes


@pytest.mark.either_end
def test_forms_have_names_and_sizes_that_fit() -> None:
    """Forms have distinct names, and sides that divide by the number of devices."""
    mine = [
        Implementation(CONTRACTS["all_gather_matmul_lhs"], name, of_the_wrong_rows)
        for name in ("naive", "unsharded", "mine")
    ]
    mesh = MeshCase(("data", "model"), (2, 3))
    found = forms("all_gather_matmul_lhs", mesh, more=mine)
    assert [form.name for form in found] == [UNSHARDED, NAIVE, "naive (2)", "unsharded (2)", "mine"]
    assert found[1].case.global_shape(0) == (8196 // 2, 8196)
    assert found[0].case.global_shape(1) == (8196, 16386 // 3)


def test_profiles_are_written(tmp_path: Path) -> None:
    """A profile is written for every measured row."""
    trace = tracer(str(tmp_path), "ring_shift")
    measure(forms("ring_shift", MESH, size=(16, 4)), jax.devices()[:4], trace=trace, rounds=1, least=0.0)
    assert [*(tmp_path / "ring_shift" / "lax").rglob("*.xplane.pb")]
    assert tracer(None, "ring_shift") is None


@pytest.mark.either_end
def test_what_is_not_measured_is_refused() -> None:
    """An unmeasured contract is refused with the measured ones."""
    with pytest.raises(ValueError, match="contract='attention': expected one of all_reduce"):
        forms("attention", MESH)
    assert all(isinstance(one, Form) for one in forms(PRODUCTS[0].contract.name, MESH))
