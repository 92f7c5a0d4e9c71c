"""The suite asks every law of every implementation."""

import importlib
from pathlib import Path

from hypothesis import settings

from shardproof.properties import suite
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.runner.law_tests import COMPILED_ALIKE, FEW, OF_OTHERS


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
