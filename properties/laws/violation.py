"""What a law raises when it does not hold."""

from dataclasses import dataclass

import numpy as np

from properties.cases import Case
from properties.data import Data


class Gap(Exception):
    """An implementation says, or JAX says of it, that it does not serve a case: reported, but not as wrong."""


@dataclass(frozen=True)
class Difference:
    """Blocks that differ from the oracle's.

    Arguments:
        what: what the blocks are: a result, a tangent, a gradient.
        expected: the oracle's blocks `[*mesh.sizes, *block]`.
        actual: the implementation's.
        wrong: elementwise, where they differ.
    """

    what: str
    expected: np.ndarray
    actual: np.ndarray
    wrong: np.ndarray


class LawViolation(AssertionError):
    """An implementation breaks a law on a case."""

    def __init__(
        self,
        implementation: str,
        law: str,
        case: Case,
        finding: str,
        *,
        data: Data | None = None,
        difference: Difference | None = None,
    ) -> None:
        self.implementation = implementation
        self.law = law
        self.case = case
        self.finding = finding
        self.data = data
        self.difference = difference
        super().__init__(self.headline)

    @property
    def headline(self) -> str:
        """Implementation, law, mesh, axis, and what is wrong, in one line."""
        return f"{self.implementation}: {self.law}: mesh {self.case.mesh}, axis {self.case.axis_name!r}: {self.finding}"

    def __str__(self) -> str:
        lines = [self.headline, f"  case: {self.case}"]
        if self.data is not None:
            lines.append(f"  data: {self.data.kind}, seed {self.data.seed}")
        if self.difference is not None:
            where = tuple(int(i) for i in np.argwhere(self.difference.wrong)[0])
            lines.append(
                f"  first difference: {self.difference.what}[{', '.join(map(str, where))}] is "
                f"{self.difference.actual[where]}, expected {self.difference.expected[where]}"
            )
        return "\n".join(lines)
