"""One measured form: how long it takes, what that is in bandwidth, and how much of what it gives is wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from rich.table import Table

from shardproof.oracles.dtypes import exact_limit
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.communication.counted import full_bytes, lower_bound
from shardproof.properties.contracts.numbers import is_moved, operands
from shardproof.properties.engines.running import all_blocks, oracle_blocks
from shardproof.properties.programs.examples import SHARDED, received


@dataclass(frozen=True)
class Traffic:
    """What a collective, or a product, is measured by.

    Arguments:
        size: S, in bytes.
        bus: the bytes that each device must send at least.
    """

    size: Fraction
    bus: Fraction

    @property
    def factor(self) -> Fraction:
        """The bus bandwidth over the algorithm bandwidth."""
        return self.bus / self.size if self.size else Fraction(0)


def traffic(case: Case) -> Traffic:
    """The traffic of a case.

    Raises:
        ValueError: of a contract for which nothing is known that must be sent.
    """
    p = case.participants
    if case.contract.name in SHARDED:
        bus = received(case)
        of_one = Fraction(2 if case.contract.name == "matmul_all_reduce" else 1) * Fraction(p - 1, p)
        return Traffic(bus / of_one if p > 1 else Fraction(0), bus)
    size = full_bytes(case)
    return Traffic(Fraction(size), lower_bound(case.contract.name, p, size).bytes)


COLUMNS = ("contract", "form", "of", "us", "algorithm GB/s", "bus GB/s", "wrong", "elements")


@dataclass(frozen=True)
class Wrong:
    """The elements of all devices' results that are not the oracle's.

    Arguments:
        count: how many.
        elements: of how many.
        first: where the first one is, and what it should be; empty if there is none.
    """

    count: int
    elements: int
    first: str = ""


@dataclass(frozen=True)
class Row:
    """One form of a contract at one shape, on some devices.

    Arguments:
        contract: what it computes.
        form: its name.
        arrays: dtype and global shape of each operand.
        seconds: the median of its times.
        traffic: what must be sent; None: it is alone, and sends nothing.
        wrong: what is wrong of its results.
    """

    contract: str
    form: str
    arrays: str
    seconds: float
    traffic: Traffic | None
    wrong: Wrong

    @property
    def algorithm(self) -> float:
        """The algorithm bandwidth, in bytes a second."""
        return float(self.traffic.size) / self.seconds if self.traffic is not None else 0.0

    @property
    def bus(self) -> float:
        """The bus bandwidth, in bytes a second."""
        return float(self.traffic.bus) / self.seconds if self.traffic is not None else 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table has, by `COLUMNS`."""
        gone = [f"{rate / 1e9:.3g}" if self.traffic is not None else "-" for rate in (self.algorithm, self.bus)]
        counts = (f"{self.wrong.count:,}", f"{self.wrong.elements:,}")
        return (self.contract, self.form, self.arrays, f"{1e6 * self.seconds:.4g}", *gone, *counts)


def table(rows: Sequence[Row], title: str = "") -> Table:
    """The rows as they are printed."""
    result = Table(title=title or None)
    for i, column in enumerate(COLUMNS):
        result.add_column(column, justify="left" if i < 3 else "right")
    for row in rows:
        result.add_row(*row.cells)
    return result


CONTRACTED: dict[str, tuple[int | None, ...]] = {"transformer_block": (-1, None, 0)}
"""The dimension of each operand of a product that is added up, where most of its elements are zero."""


def real(case: Case) -> list[np.ndarray]:
    """Ordinary numbers: zeros would be multiplied faster than they are, by a device that is limited by its power."""
    return [generate(Data("real", 0), case.global_shape(i), o.numpy_dtype) for i, o in enumerate(case.operands)]


def exact(case: Case) -> list[np.ndarray]:
    """Small integers, of which every sum is exact in their dtype; where nothing is added up, one after the other.

    Of what is contracted in a product so few are not zero that all partial sums are exact in the operands' dtype,
    whoever adds them up in whatever order and dtype: no more than the largest integer that it holds exactly.
    """
    if case.contract.name not in SHARDED:
        return operands(case, Data("distinct" if is_moved(case.structure) else "exact", 0))
    along: tuple[int | None, ...] = CONTRACTED.get(case.contract.name, (-1, None))
    sums = sum(axis is not None for axis in along)  # one product after the other
    most = math.floor(exact_limit(case.operands[0].numpy_dtype) ** (1 / sums) + 1e-9)
    found = []
    for i, axis in enumerate(along):
        dtype = case.operands[i].numpy_dtype
        units = np.random.default_rng(i).choice(np.array([-1, 1]), case.global_shape(i)).astype(dtype)
        found.append(units if axis is None else thinned(units, axis, most))
    return found


def thinned(array: np.ndarray, axis: int, most: int) -> np.ndarray:
    """A matrix with all but at most so many elements zero along an axis, at other places in each line."""
    every = math.ceil(array.shape[axis] / most)
    rows, columns = array.shape
    places = np.arange(rows)[:, None] + np.arange(columns)
    return np.where(places % every == 0, array, np.zeros((), array.dtype))


def expected(case: Case, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What every device should hold, by the oracle."""
    return oracle_blocks(case, [case.blocks(i, array) for i, array in enumerate(arrays)])


def wrong(case: Case, results: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> Wrong:
    """The elements that are not what they should be; of another shape or dtype, all."""
    count, elements, first = 0, 0, ""
    for result, blocks in zip(results, right, strict=True):
        held = all_blocks(case, result)
        elements += blocks.size
        if held.shape != blocks.shape or held.dtype != blocks.dtype:
            lead = len(case.mesh.sizes)
            told = [f"{array.dtype} blocks of shape {array.shape[lead:]}" for array in (held, blocks)]
            count, first = count + blocks.size, first or f"{told[0]}: expected {told[1]}"
            continue
        off = ~((held == blocks) | (np.isnan(held) & np.isnan(blocks)))
        if off.any() and not first:
            at = tuple(int(i) for i in np.argwhere(off)[0])
            place = ", ".join(f"{name}={i}" for name, i in zip(case.mesh.axis_names, at, strict=False))
            index = ", ".join(map(str, at[len(case.mesh.sizes) :]))
            first = f"the first: element [{index}] on device ({place}) is {held[at]}, expected {blocks[at]}"
        count += int(off.sum())
    return Wrong(count, elements, first)
