"""Algorithm and bus bandwidth, as nccl-tests defines them.

The algorithm bandwidth is the size S of a collective over its time: the bytes of the full vector, the gathered, or the
one that is reduced, scattered, exchanged or sent. The bus bandwidth is what a device must send at least over the same
time, so that it can be held against what a link has, whatever the collective and the number of devices
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Where nccl-tests has a table of factors, 2(n-1)/n
of an all-reduce and so on, here they follow from the oracle's lower bounds. A product is measured by what is gathered
or added up in it.
"""

from dataclasses import dataclass
from fractions import Fraction

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
