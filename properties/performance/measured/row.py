"""One measured form: how long it takes, what that is in bandwidth, and how much of what it gives is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.table import Table

from shardproof.properties.cases.case import Case
from shardproof.properties.communication.bounds import full_bytes, lower_bound
from shardproof.properties.contracts.products import SHARDED, received


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
    if case.contract in SHARDED:
        bus = received(case)
        of_one = Fraction(2 if case.contract == "matmul_all_reduce" else 1) * Fraction(p - 1, p)
        return Traffic(bus / of_one if p > 1 else Fraction(0), bus)
    size = full_bytes(case)
    return Traffic(Fraction(size), lower_bound(case.contract, p, size).bytes)


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
