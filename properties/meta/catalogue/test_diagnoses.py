"""The rate at which a planted bug gets a sentence of its own, on a case as it is caught."""

import pytest
from shardproof.properties.benchmark.diagnoses import UNEXPLAINED

from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import hunt
from shardproof.properties.report.failures.text import diagnosed

EVERY = 20
"""Of so many planted bugs of values and gradients, one is looked at."""

LEAST = 1 / 4
"""The least part of them that is explained, though none of them explains itself."""

DRAWN = sorted(m.name for m in MUTANTS.values() if m.runs == "drawn" and m.law in ("value", "gradient"))


@pytest.mark.lengthy
def test_most_planted_bugs_are_explained() -> None:
    """By a hypothesis, by one change, or by the line that rounds: not as other values, or as another formula."""
    said = {}
    for name in DRAWN[::EVERY]:
        violation = hunt(MUTANTS[name], seed=1, shrink=False).violation
        if violation is not None and violation.difference is not None:
            said[name] = "\n".join(diagnosed(violation))
    explained = [name for name, text in said.items() if not text.startswith(UNEXPLAINED)]
    assert len(explained) >= LEAST * len(said), {name: text for name, text in said.items() if name not in explained}
