"""What is asserted of measured times: ratios of two rows of one run, never seconds, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardproof.properties.performance.measured.row import Row


@dataclass(frozen=True)
class Ratio:
    """One row takes at most so many times what another takes.

    Arguments:
        form: the one.
        over: the other.
        most: how many times.
        reason: why, as a clause that follows a colon.
    """

    form: str
    over: str
    most: float
    reason: str

    def broken(self, rows: Mapping[str, Row]) -> str:
        """What is said if it does not hold; empty if it does."""
        one, other = rows[self.form], rows[self.over]
        found = one.seconds / other.seconds
        if found <= self.most:
            return ""
        return (
            f"{one.contract}: {self.form} takes {found:.2f} times what {self.over} takes "
            f"({1e6 * one.seconds:.4g} us over {1e6 * other.seconds:.4g} us, medians of one run): "
            f"expected at most {self.most:.2f}: {self.reason}"
        )


def wrong_elements(rows: Mapping[str, Row]) -> list[str]:
    """What is said of rows whose results are wrong."""
    return [
        f"{row.contract}: {form}: {row.wrong.count:,} of {row.wrong.elements:,} elements wrong; {row.wrong.first}"
        for form, row in rows.items()
        if row.wrong.count
    ]
