"""Reports: on how many structures the laws of each implementation, and of each contract, held."""

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.programs.examples import example
from shardproof.properties.report.report import COLUMNS, by_contract, by_implementation
from shardproof.properties.runner.tally import Tally


def held(implementation: str, law: str, engine: str, structures: int) -> Tally:
    """A law that held on some structures, with six data sets each."""
    tally = Tally("broadcast", implementation, law, engine)
    for _ in range(structures):
        tally.count(example("broadcast", MeshCase(("dp",), (2,)), "dp"), 6)
    return tally


def test_the_report_says_how_many_structures() -> None:
    """The median and the least number of structures of the laws that held, on each engine, in both tables."""
    tallies = [
        held("one", "value", "simulate", 3),
        held("one", "type", "simulate", 7),
        held("one", "error", "simulate", 8),
        held("one", "value", "xla", 1),
        held("other", "value", "simulate", 4),
    ]
    not_applicable = held("other", "gradient", "simulate", 0)
    not_applicable.skip("gradient (simulate): does not apply")
    tallies.append(not_applicable)
    interpreted, compiled = COLUMNS.index("interpreted"), COLUMNS.index("compiled")
    assert [(row[interpreted], row[compiled]) for row in by_implementation(tallies)] == [
        ("7 (3)", "1 (1)"),
        ("4 (4)", "-"),
    ]
    assert [(row[interpreted], row[compiled]) for row in by_contract(tallies)] == [("6 (3)", "1 (1)")]
    assert [row[COLUMNS.index("laws")] for row in by_implementation(tallies)] == ["3", "2"]
