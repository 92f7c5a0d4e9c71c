"""The interpreter and the oracles share no code: a bug in either is reported of a right function."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax import Array, lax

from shardproof.oracles import collectives, layout
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.ragged import RaggedAllToAll
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import Scope
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.simulate import exchange
from shardproof.properties.laws.forward import check_value
from shardproof.properties.meta.drawn import one
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import PARAMETERS, example
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.runner.given import user_implementation

MESH = MeshCase(("dp", "tp"), (2, 3))
CONTRACTS_OF = (*PARAMETERS, "ragged_all_to_all")


def case_of(contract: str) -> Case:
    """A case over both axes, in another order than the mesh's, whose numbers differ from one another."""
    if contract == "ragged_all_to_all":
        sends = CONTRACTS[contract].cases(Scope())
        return one(sends, lambda case: case.participants > 1 and min(case.operands[0].block) > 1)
    return dataclasses.replace(example(contract, MESH, ("tp", "dp")), data=(Data("distinct", 1),))


def lax_form(contract: str) -> Implementation:
    """The implementation out of `jax.lax`."""
    return next(each for each in IMPLEMENTATIONS if str(each) in (f"{contract}[lax]", f"{contract}[native]"))


def by_primitive(x: Array, axis_name: Any, *, root: int) -> Array:
    """A broadcast by the primitive of that name."""
    return lax.pbroadcast(x, axis_name, root)


def by_index(x: Array, axis_name: Any, *, root: int) -> Array:
    """A broadcast by a sum to which one participant contributes."""
    return lax.psum(x * (lax.axis_index(axis_name) == root), axis_name)


INTERPRETED = {
    "all_reduce": lax_form("all_reduce"),
    "all_gather": lax_form("all_gather"),
    "reduce_scatter": lax_form("reduce_scatter"),
    "all_to_all": lax_form("all_to_all"),
    "permute": lax_form("permute"),
    "ragged_all_to_all": lax_form("ragged_all_to_all"),
    "broadcast": user_implementation("broadcast", by_primitive),
    "axis_index": user_implementation("broadcast", by_index),
}
"""A right function for each collective of the interpreter."""


def plant(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """Rolls the result of a function along its last dimension."""
    right: Callable[..., np.ndarray] = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: np.roll(right(*args, **kwargs), 1, axis=-1))


def check(implementation: Implementation) -> None:
    """The law of values on the interpreter."""
    case = case_of(implementation.contract.name)
    assert check_value(implementation, case, SimulateEngine()).checked == len(case.data)


@pytest.mark.parametrize("contract", CONTRACTS_OF)
def test_a_bug_in_an_oracle_is_reported(contract: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of the form out of `jax.lax` equal the oracle's, and do not once that is wrong."""
    check(lax_form(contract))
    oracle = contract.removesuffix("_invariant")
    plant(monkeypatch, *((RaggedAllToAll, "result") if contract.startswith("ragged") else (collectives, oracle)))
    with pytest.raises(Broken, match="wrong"):
        check(lax_form(contract))


@pytest.mark.parametrize("collective", INTERPRETED)
def test_a_bug_in_the_interpreter_is_reported(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that a wrong collective of the interpreter makes are not the oracle's."""
    check(INTERPRETED[collective])
    plant(monkeypatch, exchange, collective)
    with pytest.raises(Broken, match="wrong"):
        check(INTERPRETED[collective])


def change_participants(monkeypatch: pytest.MonkeyPatch, part: str, *, oracle: bool) -> None:
    """Numbers participants in mesh order, or reads their groups backwards, in the oracles or in the interpreter."""
    module = collectives if oracle else exchange
    if part == "groups":
        name, at = "within_groups" if oracle else "process_groups", 2
        right: Callable[..., Any] = getattr(module, name)

        def backwards(*args: Any) -> Any:
            read = args[at] and [group[::-1] for group in args[at]]
            return right(*args[:at], read, *args[at + 1 :])

        monkeypatch.setattr(module, name, backwards)
    elif oracle:
        axes_first = layout._axes_first
        monkeypatch.setattr(layout, "_axes_first", lambda mesh, axes: axes_first(mesh, mesh.in_mesh_order(axes)))
    else:
        right_order, known = exchange._participants, frozenset(MESH.axis_names)

        def in_mesh_order(mesh: Any, axes: Any) -> Any:
            own = known >= {*axes}  # the data sets are no axis of it
            return right_order(mesh, MESH.in_mesh_order(axes) if own else axes)

        monkeypatch.setattr(exchange, "_participants", in_mesh_order)


@pytest.mark.parametrize("oracle", [True, False], ids=("oracle", "interpreter"))
@pytest.mark.parametrize("part", ["numbering", "groups"])
def test_a_bug_in_who_takes_part_is_reported(part: str, oracle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers over an axis tuple in mesh order, and groups read backwards, are wrong in one of both sides."""
    case = case_of("all_gather")
    if part == "groups":
        case = case.with_params(axis_index_groups=((0, 4, 1), (5, 2, 3)))
    implementation = lax_form("all_gather")
    assert check_value(implementation, case, SimulateEngine()).checked == len(case.data)
    change_participants(monkeypatch, part, oracle=oracle)
    with pytest.raises(Broken, match="wrong"):
        check_value(implementation, case, SimulateEngine())
