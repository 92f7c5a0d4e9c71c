"""The suite checks every law of every implementation, in one test of each contract."""

import importlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from shardproof.properties import contracts, suite
from shardproof.properties.contracts import CONTRACTS, Contract
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import implementation_of
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.report.checking import chosen_laws
from shardproof.properties.runner.contract_tests import of_contract
from shardproof.properties.runner.judging import applicable_laws

Test = Callable[..., None]
IMPLEMENTED = tuple(dict.fromkeys(one.contract.name for one in IMPLEMENTATIONS))


@pytest.fixture(scope="module")
def tests() -> dict[str, list[Test]]:
    """The tests of the suite by their names."""
    found: defaultdict[str, list[Test]] = defaultdict(list)
    for path in sorted(Path(suite.__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"{suite.__name__}.{path.stem}")
        for name, value in vars(module).items():
            if name.startswith("test_") and callable(value):
                found[name].append(value)
    return found


@pytest.mark.parametrize("contract", IMPLEMENTED)
def test_a_contract_is_one_test(tests: dict[str, list[Test]], contract: str) -> None:
    """Just one test has its name; it verifies once, and runs for every implementation on every engine."""
    (test,) = tests[f"test_{contract}"]
    (mark,) = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    names, pairs = mark.args
    assert names == ("implementation", "engine")
    own = [one for one in IMPLEMENTATIONS if one.contract.name == contract]
    assert [pair.values for pair in pairs] == [(one, engine) for one in own for engine in ENGINES]
    assert [pair.id for pair in pairs] == [f"{one.name}-{engine}" for one in own for engine in ENGINES]
    assert [[(m.name, m.args) for m in pair.marks if m.name != "smoke"] for pair in pairs] == [
        [("engine", (e,))] for _ in own for e in ENGINES
    ]
    assert sum(m.name == "smoke" for pair in pairs for m in pair.marks) == len(ENGINES)  # of one implementation
    verified: list[str] = []
    test(verify=lambda: verified.append(contract))
    assert verified == [contract]


def test_every_implemented_contract_is_known() -> None:
    """A name of no contract is verified by no test."""
    assert {*IMPLEMENTED} <= CONTRACTS.keys()
    assert {contract for contract, one in CONTRACTS.items() if one.implementations} <= {*IMPLEMENTED}


def test_every_contract_is_found_by_its_name() -> None:
    """Contracts of a module's `CONTRACTS` are found by their names, of which there are no two, and nothing else is."""
    found: list[Contract] = []
    for path in sorted(Path(contracts.__file__).parent.glob("[!_]*.py")):
        found += getattr(importlib.import_module(f"{contracts.__name__}.{path.stem}"), "CONTRACTS", ())
    assert [*CONTRACTS] == [one.name for one in found]
    assert [*CONTRACTS.values()] == found
    assert "features" not in CONTRACTS


def test_every_law_is_asked() -> None:
    """All are unless others are chosen; each is of an implementation, and every one has some on every engine."""
    assert chosen_laws(None) == [*LAWS.values()]
    engines = {engine: [applicable_laws(one, engine) for one in IMPLEMENTATIONS] for engine in ENGINES}
    assert all(all(laws) for laws in engines.values())
    names = {law.name for some in engines.values() for laws in some for law in laws}
    assert names == {*LAWS}


def test_a_contract_without_implementations_is_no_test() -> None:
    """It would run for none, and pass."""
    with pytest.raises(ValueError, match=r"^contract='all_gathers': expected one with implementations$"):
        of_contract("all_gathers")


def test_no_planted_bug_needs_a_compiler() -> None:
    """Every one breaks a law that the interpreter is asked, for which eight times as many structures are drawn."""
    assert [m.name for m in MUTANTS.values() if not LAWS[m.law].applies_to(implementation_of(m), "simulate")] == []
