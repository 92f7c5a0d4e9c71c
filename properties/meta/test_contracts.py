"""A contract that names its own implementations is known by its own files, and by no other."""

import importlib
import re
from pathlib import Path

import jax
import pytest
from hypothesis import settings
from jax import lax

from shardproof.properties import suite
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.test_rooms import ROOT, sources
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.runner.law_tests import COMPILED_ALIKE, FEW, OF_OTHERS

OWN = tuple(name for name, contract in CONTRACTS.items() if contract.implementations)
ANY_OF_THEM = "mutants/right/"
"""Where the right forms of all contracts are."""

PRIMITIVES = ("engines", "known_defects", "performance", "precision", "communication", "communication.py")
"""Folders and files about JAX's primitives, of which one may have the name of a contract."""

MADE_OF_OTHERS = ("moe", "moe.py")
"""Folders and files of what is made of such a primitive."""


SEVERAL = (("properties", "contracts"), ("properties", "mutants"))
"""Where what belongs together may be several modules, whose names begin alike."""


def own_files(name: str) -> set[str]:
    """The files that may name a contract: one of the same name in each room, and in the folder of planted bugs."""
    return {
        f"{room}/{module}.py"
        for module in own_modules(name)
        for room in ("impl", "oracles", "properties/contracts", "properties/mutants")
    }


def own_packages(name: str) -> set[str]:
    """The modules, or packages, of this project's implementations."""
    return {claim.function.__module__.split(".")[2] for claim in CONTRACTS[name].implementations.values()}


def own_modules(name: str) -> set[str]:
    """What its modules in the other rooms are called: as its implementations, or as the contract itself."""
    rooms = ROOT / "properties" / "contracts"
    return {package if (rooms / f"{package}.py").exists() else name for package in own_packages(name)}


def is_part(name: str, path: Path) -> bool:
    """Whether a file is in a package of a contract's own, or is one of several of it, or of its planted bugs."""
    if path.parts[:2] in {("impl", package) for package in own_packages(name)}:
        return True
    return any(
        path.parts[:2] == ("oracles", module) or (path.parts[:2] in SEVERAL and path.stem.startswith(f"{module}_"))
        for module in own_modules(name)
    )


def mentions(name: str, source: str) -> bool:
    """Whether a source names a contract, in code or in words; `jax.` in front of it makes it JAX's own function."""
    return re.search(rf"(?<!\bjax\.)\b{name}\b", source) is not None


def may_name(name: str, path: Path) -> bool:
    """Whether a file may name a contract: its own, that of its right forms, a test, or one about a JAX primitive."""
    if str(path) in own_files(name) or is_part(name, path) or ANY_OF_THEM in str(path) or path.stem.startswith("test_"):
        return True
    return (hasattr(lax, name) or hasattr(jax, name)) and bool({*path.parts} & {*PRIMITIVES, *MADE_OF_OTHERS})


def strangers(name: str, texts: dict[Path, str]) -> list[str]:
    """The files that name a contract and are not to know it."""
    return [str(path) for path, text in texts.items() if mentions(name, text) and not may_name(name, path)]


@pytest.mark.parametrize("name", OWN)
def test_nothing_else_knows_a_contract(name: str) -> None:
    """Its implementations, oracle, contract and planted bugs are all that a contract's name is in."""
    texts = {path: (ROOT / path).read_text("utf-8") for path in sources("impl", "oracles", "properties")}
    assert strangers(name, texts) == []
    named = [own for own in own_files(name) if own.startswith("properties")]
    assert all(mentions(name, texts[Path(own)]) for own in named)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("path", ["impl/arguments.py", "oracles/mesh.py", "properties/report/diagnosis/hypotheses.py"])
def test_a_stranger_is_found(name: str, path: str) -> None:
    """A name in another module is found, in code, in a table and in a docstring; a longer name is another one."""
    for text in (
        f'if case.contract == "{name}":',
        f"TABLE = {{'{name}': 1}}",
        f'"""Such as {name}."""',
        f"x.{name}(y)",
    ):
        assert strangers(name, {Path(path): text}) == [path]
    assert strangers(name, {Path(path): f"gathered_{name} = {name}_type"}) == []


def test_a_primitive_of_the_same_name_is_no_contract() -> None:
    """What interprets, counts or repairs JAX's own `ragged_all_to_all` names it; nothing there names a norm."""
    text = "ragged_all_to_all, rms_norm"
    for path in map(Path, ("properties/engines/simulate/collectives.py", "oracles/communication.py")):
        assert strangers("ragged_all_to_all", {path: text}) == []
        assert strangers("rms_norm", {path: text}) == [str(path)]


def test_every_contract_of_its_own_has_planted_bugs() -> None:
    """A module of planted bugs of the same name has some of every contract that names its own implementations."""
    for name in OWN:
        modules = {m.function.__module__.rpartition(".")[2] for m in MUTANTS.values() if m.contract == name}
        paths = [f"properties/mutants/{module}.py" for module in modules]
        assert all(path in own_files(name) or is_part(name, Path(path)) for path in paths)
        assert modules


def test_the_suite_checks_every_law_of_every_implementation() -> None:
    """In the interpreter; what is made of others is compiled for some laws alone, at times one of each contract."""
    found = set()
    for module in sorted(Path(suite.__file__).parent.glob("test_*.py")):
        for test in vars(importlib.import_module(f"{suite.__name__}.{module.stem}")).values():
            marks = {mark.name: mark for mark in getattr(test, "pytestmark", ())}
            if "law" in marks and "parametrize" in marks:
                found |= {
                    (*marks["law"].args, str(one))
                    for one in marks["parametrize"].args[1]
                    if isinstance(one, Implementation)
                }
    asked = {(law.name, e, str(one)) for one in IMPLEMENTATIONS for law in LAWS.values() for e in law.engines_for(one)}
    assert found <= asked
    assert {what for what in asked - found if what[1] == "simulate"} == set()
    form_of = {str(one): one.form for one in IMPLEMENTATIONS}
    for law, forms in COMPILED_ALIKE.items():
        if law != "agreement" and settings().max_examples < FEW:  # of which the profile compiles nothing
            continue
        compiled = {name for what, engine, name in found if (what, engine) == (law, "xla")}
        left_out = {name for what, engine, name in asked - found if (what, engine) == (law, "xla")}
        assert {name.partition("[")[0] for name in compiled} >= {
            one.contract for one in IMPLEMENTATIONS if law == "agreement" or one.form in forms - OF_OTHERS
        }
        if law == "agreement":
            assert {form_of[name] for name in left_out} == OF_OTHERS
