"""The ratios that are asserted of the forms of one contract, measured in one run, never of seconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.performance.chips import Chip
from shardproof.properties.performance.measured.work import BUILT_IN_FORM, MODEL, NAIVE, UNSHARDED, Row, by_speed


@dataclass(frozen=True)
class Ratio:
    """One row takes at most so many times what another takes."""

    form: str  # the one
    over: str  # the other
    most: float  # how many times
    reason: str  # why, as a clause that follows a colon

    def broken(self, rows: Mapping[str, Row]) -> str:
        """What is said if it does not hold; empty if it does."""
        one, other = rows[self.form], rows[self.over]
        found = one.seconds / other.seconds
        times = f"{1e6 * one.seconds:.4g} us over {1e6 * other.seconds:.4g} us, medians of one run"
        told = f"{one.contract}: {self.form} takes {found:.2f} times what {self.over} takes ({times})"
        return "" if found <= self.most else f"{told}: expected at most {self.most:.2f}: {self.reason}"


ON_TOP = 0.25
"""What an overlapped form may take above its floor, in local products: by the compiler's own estimates the best ones
take up to 0.15 (slices, sums, copies); the rest is for launches and for what a modelled run leaves out."""

NOTHING_TO_HIDE = 1.1
"""Up to so many local products, the naive form waits so little that hiding it may cost as much."""

RING = "ring"
MORE_STEPS = 2.0
"""What p - 1 transfers that wait for one another may take more than the built-in collective over the same links."""

HALF_HIDDEN = ("matmul_all_reduce",)
"""Products whose second half, the gather of finished sums, has no product left to hide behind."""


def broken(rows: Mapping[str, Row], mesh: MeshCase, chip: Chip | None, *, hides: bool = True) -> list[str]:
    """What does not hold of the rows of a contract, in sentences.

    Arguments:
        rows: by form.
        mesh: what they ran on.
        chip: the published chip that its devices are; None: only what needs no figures of it is asserted.
        hides: whether these forms of a product claim to hide what they send; others are not held to a ratio.
    """
    found = [
        f"{row.contract}: {form}: {row.wrong.count:,} of {row.wrong.elements:,} elements wrong; {row.wrong.first}"
        for form, row in rows.items()
        if row.wrong.count
    ]
    found += [told for ratio in ratios(rows, mesh, chip) if hides and (told := ratio.broken(rows))]
    return found + [told for row in rows.values() if (told := too_fast(row, mesh, chip))]


def ratios(rows: Mapping[str, Row], mesh: MeshCase, chip: Chip | None) -> list[Ratio]:
    """The ratios that are asserted of these rows."""
    if NAIVE in rows:
        return product_ratios(rows, mesh, chip)
    ways = 2 if mesh.shape[MODEL] > 2 and (chip is None or chip.dimensions) else 1
    most = MORE_STEPS * ways
    reason = f"it sends as many bytes, over one of the {ways} ways that the built-in one may use, in more steps"
    return [Ratio(RING, BUILT_IN_FORM, most, reason)] if {RING, BUILT_IN_FORM} <= set(rows) else []


def product_ratios(rows: Mapping[str, Row], mesh: MeshCase, chip: Chip | None) -> list[Ratio]:
    """The fastest overlapped form against the naive one and against the product of one device alone."""
    forms = by_speed(rows)
    if not forms:
        return []
    best, local = forms[0], rows[UNSHARDED].seconds
    waits = rows[NAIVE].seconds / local
    allowed = max(1.0, NOTHING_TO_HIDE / waits)
    reason = f"the naive form takes {waits:.2f} local products, of which it waits for all that it sends"
    found = [Ratio(best, NAIVE, allowed, reason)]
    if chip is not None and rows[best].contract not in HALF_HIDDEN:
        floor = least(rows[best], local, mesh, chip)
        reason = f"published links of {chip.name} and the product allow {floor:.2f}, and {ON_TOP} is left for the rest"
        found.append(Ratio(best, UNSHARDED, floor + ON_TOP, reason))
    return found


def least(row: Row, local: float, mesh: MeshCase, chip: Chip) -> float:
    """The floor, in local products: that, or all transfers and the p-th of a product that none is beside."""
    assert row.traffic is not None
    products = 2 if row.contract == "transformer_block" else 1
    sent = float(row.traffic.bus) / bandwidth(mesh, chip)
    return max(1.0, sent / local + 1 / (products * mesh.shape[MODEL]))


def bandwidth(mesh: MeshCase, chip: Chip) -> float:
    """The bytes a second of a device's links along the model axis; where a chip is two devices, half of them."""
    return chip.bandwidth(mesh, (MODEL,)) / (2 if chip.name == "tpu7x" else 1)


def too_fast(row: Row, mesh: MeshCase, chip: Chip | None) -> str:
    """What is said of a bus bandwidth that no links have: what was timed was not over, or was not done.

    A switch that adds up by itself needs fewer bytes for sums; of those nothing is said.
    """
    sums = row.contract in ("all_reduce", "matmul_all_reduce")
    if chip is None or row.traffic is None or (sums and not chip.dimensions):
        return ""
    most = bandwidth(mesh, chip)
    if row.bus <= 1.05 * most:
        return ""
    return (
        f"{row.contract}: {row.form} has a bus bandwidth of {row.bus / 1e9:.3g} GB/s: expected at most "
        f"{most / 1e9:.3g} GB/s, which the links of {chip.name} along {MODEL} have: what was timed was not over"
    )
