"""Collective matrix products as XLA:TPU schedules them, beside the one product that a device would do alone.

Every form gets the same product to do on a device, `[m, k] x [k, n]`: that of a matrix product whose rows are sharded
over the data axis and whose columns (or contracted rows) over the model axis. The model axis is laid over rings of
neighbouring chips, the data axis over what is left.
"""

from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.scheduled import Schedule, schedule
from shardproof.properties.performance.tpu_compiler import Request, Topology, TpuCompiler
from shardproof.properties.performance.tpu_compiler.process import BACKWARD, COMPILER, FORWARD
from shardproof.properties.programs.examples import product_case, whole_sides

MODEL = "model"
ELEMENT = 2
"""Bytes of a bfloat16."""


@dataclass(frozen=True)
class Place:
    """Where products run.

    Arguments:
        topology: the chips.
        model: the size of the model axis.
    """

    topology: Topology
    model: int

    @property
    def devices(self) -> int:
        """How many there are: a chip of TPU7x is two."""
        return self.topology.chips * (2 if self.topology.generation == "tpu7x" else 1)

    def mesh(self, model: int) -> MeshCase:
        """All devices, `model` of them along the model axis."""
        return MeshCase(("data", MODEL), (self.devices // model, model))


def sides(contract: str, shape: str | tuple[int, int, int], data: int, p: int) -> tuple[int, int, int]:
    """Rows, contracted size and columns on one device before anything is gathered, as `product_case` takes them.

    Arguments:
        contract: which product.
        shape: those of the whole product, or a name of `SHAPES`.
        data: over how many devices its rows are sharded besides.
        p: the size of the model axis.

    Raises:
        ValueError: if one of them is not whole.
    """
    rows, contracted, columns = whole_sides(contract, shape)
    cut = {
        "all_gather_matmul_lhs_contracting": (data, p, p),
        "all_gather_matmul_lhs": (data * p, 1, p),
        "all_gather_matmul_rhs": (data * p, p, 1),
        "matmul_reduce_scatter": (data * p, p, 1),
        "matmul_all_reduce": (data, p, 1),
        "transformer_block": (data, p, p),
    }[contract]
    if any(size % by for size, by in zip((rows, contracted, columns), cut, strict=True)):
        raise ValueError(f"shape={shape}: expected sizes that {cut} divide")
    return rows // cut[0], contracted // cut[1], columns // cut[2]


def alone(contract: str, m_k_n: tuple[int, int, int], p: int) -> tuple[int, int, int]:
    """The same for the product that a device does in all, nothing of which is gathered or added up."""
    m, k, n = m_k_n
    return {
        "all_gather_matmul_lhs_contracting": (m, k * p, n),
        "all_gather_matmul_lhs": (m * p, k, n),
        "all_gather_matmul_rhs": (m, k * p, n),
        "matmul_reduce_scatter": (m * p, k, n),
        "matmul_all_reduce": (m, k, n),
        "transformer_block": (m, k * p, n),
    }[contract]


def transfers(contract: str, way: str, m_k_n: tuple[int, int, int], p: int) -> Fraction:
    """The bytes that each device must pass on in all, in bfloat16: p-1 blocks of what is gathered, or of a sum.

    Backward a gather is followed by the sums of the operand that was gathered, a reduce-scatter by a gather, and an
    all-reduce by nothing; a transformer block gathers its input and the cotangent, and scatters sums.
    """
    m, k, n = m_k_n
    blocks: dict[str, Fraction | int] = {
        "all_gather_matmul_lhs_contracting": m * k,
        "all_gather_matmul_lhs": m * k,
        "all_gather_matmul_rhs": k * n,
        "matmul_reduce_scatter": m * n,
        "matmul_all_reduce": Fraction(2 * m * n, p),
        "transformer_block": 2 * m * k,
    }
    times = {
        "matmul_reduce_scatter": Fraction(1),
        "matmul_all_reduce": Fraction(0),
        "transformer_block": Fraction(3, 2),
    }
    again = times.get(contract, Fraction(2)) if way == BACKWARD else Fraction(1)
    return ELEMENT * (p - 1) * again * blocks[contract]


@dataclass(frozen=True)
class Modelled:
    """One program on one topology.

    Arguments:
        schedule: when it computes and waits.
        temporary_bytes: what it holds at most beside its arguments and results.
        argument_bytes: its arguments.
    """

    schedule: Schedule
    temporary_bytes: int
    argument_bytes: int


def modelled(compiler: TpuCompiler, place: Place, case: Case, implementation: str, way: str = FORWARD) -> Modelled:
    """Compiles an implementation of a case, and walks through what comes out.

    Raises:
        NotCompiled: if it cannot be compiled.
        HloError: if what comes out cannot be read.
    """
    compiled = compiler.compile(Request(str(place.topology), case, implementation, way))
    found = schedule(compiled.text, place.topology, compiled.chips)
    return Modelled(found, compiled.temporary_bytes, compiled.argument_bytes)


@dataclass(frozen=True)
class Work:
    """A product at a place, of one of `products.SHAPES`.

    Arguments:
        contract: which product.
        shape: a name of `SHAPES`.
        place: the chips, and how many share it.
        way: forward, or backward alone.
        dimension: the one that is scattered, where one is.
    """

    contract: str
    shape: str
    place: Place
    way: str = FORWARD
    dimension: int = 0

    @property
    def sides(self) -> tuple[int, int, int]:
        """Those of a device.

        Raises:
            ValueError: if the model axis does not divide the devices, or what is sharded the sizes.
        """
        if self.place.devices % self.place.model:
            devices, topology = self.place.devices, self.place.topology
            raise ValueError(
                f"model={self.place.model}: expected a size that divides the {devices} devices of {topology}"
            )
        return sides(self.contract, self.shape, self.place.devices // self.place.model, self.place.model)

    def case(self) -> Case:
        """The case of a form that communicates."""
        mesh = self.place.mesh(self.place.model)
        return product_case(self.contract, mesh, MODEL, self.sides, dtype="bfloat16", dimension=self.dimension)

    def case_alone(self) -> Case:
        """The case of the local product, over a model axis of one device."""
        whole = alone(self.contract, self.sides, self.place.model)
        mesh = self.place.mesh(1)
        return product_case(self.contract, mesh, MODEL, whole, dtype="bfloat16", dimension=self.dimension)

    def unsharded(self, compiler: TpuCompiler) -> Modelled:
        """The local product alone."""
        return modelled(compiler, self.place, self.case_alone(), f"{self.contract}[naive]", self.way)

    def of(self, compiler: TpuCompiler, implementation: str) -> Modelled:
        """A form of it, by the name of `Implementation.name`, a user's function, or what XLA makes of the product."""
        named = ":" in implementation or implementation == COMPILER
        name = implementation if named else f"{self.contract}[{implementation}]"
        return modelled(compiler, self.place, self.case(), name, self.way)

    def floor(self, unsharded: Fraction) -> Fraction:
        """The least time over that of the local product: that, or all transfers both ways round, and one block's part.

        The first product or the last one of p has no transfer beside it, or the first transfer no product.
        """
        p, link = self.place.model, chip(self.place.topology.generation).link
        cores = self.place.devices // self.place.topology.chips
        sent = transfers(self.contract, self.way, self.sides, p) * cores / (2 * link)
        products = 2 if self.way == BACKWARD or self.contract == "transformer_block" else 1
        return max(Fraction(1), sent / unsharded + Fraction(1, products * p))
