"""Which laws there are, and the cases that each draws."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from shardproof.oracles.dtypes import is_float
from shardproof.properties.budgets import structures
from shardproof.properties.cases import Case
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.collectives import placements
from shardproof.properties.engines import Engine
from shardproof.properties.implementations import Implementation
from shardproof.properties.laws import (
    check_agreement,
    check_communication,
    check_error,
    check_gradient,
    check_type,
    check_value,
)
from shardproof.properties.transformations import TRANSFORMATIONS

Check = Callable[[Implementation, Case, Engine], int]


@dataclass(frozen=True)
class Law:
    """One thing that must hold, the cases that it is checked on, and its share of the examples.

    Arguments:
        name: what the report calls it.
        sentence: what holds.
        check: raises if it does not hold; returns how many data sets were checked.
        arounds: the transformations it draws.
        floating: whether it needs gradients.
        share: its examples, as a multiple of the profile's `max_examples`; dear laws get fewer.
        engines: the engines that can check it.
        large: whether it draws meshes that only the simulator can serve.
        interpreted: whether it cannot be checked without the interpreter.
    """

    name: str
    sentence: str
    check: Check
    arounds: tuple[str, ...] = ("jit",)
    floating: bool = False
    share: float = 1.0
    engines: tuple[str, ...] = ("simulate", "xla")
    large: bool = False
    interpreted: bool = False

    @property
    def partial(self) -> bool:
        """Whether it draws only a part of what the law of values draws: a function may support none of that part."""
        return self.floating or self.large

    def examples(self, profile: settings, engine: str, form: str = "user") -> int:
        """How many structures a profile grants it on an engine, for an implementation of that form."""
        return structures(profile.max_examples, self.name, self.share, form, engine)

    def cases(
        self, implementation: Implementation, scope: Scope, excluded: Callable[[Case], None] = lambda case: None
    ) -> st.SearchStrategy[Case]:
        """The cases that this law draws for an implementation; those that it does not serve go to `excluded`."""
        scope = dataclasses.replace(
            scope,
            arounds=self.arounds,
            floating=self.floating,
            features=implementation.features,
            large=scope.large if self.large else 0,
        )
        cases = CONTRACTS[implementation.contract].cases(scope)
        serves = implementation.serves
        if serves is not None:

            def kept(case: Case) -> bool:
                if not serves(case):
                    excluded(case)
                return serves(case)

            cases = cases.filter(kept)
        if self.name == "type":
            cases = cases.flatmap(placed)
        elif self.name == "error":
            cases = forbidden(cases, implementation)
        return unrelated(cases)


def unrelated(cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """The same cases, such that Hypothesis does not make new ones out of parts of earlier ones.

    Its mutations repeat what two parts of a draw have in common: of sixty cases a third were copies.
    It makes none inside of a collection of unique elements, even of a single one, and bugs are
    caught after half as many cases.
    """
    single = st.lists(cases, min_size=1, max_size=1, unique_by=lambda case: case.structure)
    return single.map(lambda drawn: drawn[0])


@st.composite
def placed(draw: st.DrawFn, case: Case) -> Case:
    """The case with a drawn way for its result to leave `shard_map`; shrinks to replicated."""
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    rank = CONTRACTS[case.contract].oracle(case, zeros)[0].ndim - len(case.mesh.sizes)
    return dataclasses.replace(case, out=draw(placements(case.mesh, rank)))


@st.composite
def forbidden(draw: st.DrawFn, cases: st.SearchStrategy[Case], implementation: Implementation) -> Case:
    """A case made wrong in one argument, named in `forbidden`."""
    explained = "explained_errors" in implementation.features
    case = draw(cases)
    options = [
        (violation.argument, strategy)
        for violation in CONTRACTS[implementation.contract].violations
        if (explained or violation.everyone)
        and (violation.argument != "axis_index_groups" or "groups" in implementation.features)
        and not (strategy := violation.cases(case)).is_empty
    ]
    argument, wrong = draw(st.sampled_from(options))
    return dataclasses.replace(draw(wrong), forbidden=argument)


def _transformed_value(implementation: Implementation, case: Case, engine: Engine) -> int:
    return check_value(implementation, case, engine, law=f"value under {case.around}")


def _transformed_gradient(implementation: Implementation, case: Case, engine: Engine) -> int:
    return check_gradient(implementation, case, engine, law=f"gradient under {case.around}")


def _scaled(implementation: Implementation, case: Case, engine: Engine) -> int:
    checked = check_value(implementation, case, engine, law="value at scale")
    contract = CONTRACTS[case.contract]
    floating = all(is_float(case.operands[i].numpy_dtype) for i in contract.moving(case))
    if floating and contract.differentiable(case):
        checked += check_gradient(implementation, case, engine, law="gradient at scale")
    return checked


AROUND = tuple(name for name in TRANSFORMATIONS if name not in ("jit", "eager"))
DIFFERENTIABLE = tuple(
    t.name for t in TRANSFORMATIONS.values() if t.differentiable and t.name not in ("jit", "eager", "partial_manual")
)

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("value", "Every device holds the block that the oracle says.", check_value, share=2.4),
        Law(
            "gradient",
            "Forward mode is the oracle's map, reverse mode its transpose, and the two are adjoint.",
            check_gradient,
            floating=True,
            share=0.6,
        ),
        Law(
            "type",
            "A result typed invariant is equal everywhere, and `out_specs` is accepted just when the type allows it.",
            check_type,
            share=0.6,
        ),
        Law(
            "error",
            "What the contract forbids raises before anything runs, and says which argument, value and mesh.",
            check_error,
            share=0.3,
            engines=("simulate",),  # what must be refused is refused while tracing, before any engine
        ),
        Law(
            "transformation",
            "No transformation around a collective changes its values.",
            _transformed_value,
            arounds=(*AROUND, "partial_manual", "no_vma"),  # twice as often: they change what the others only wrap
            share=1.1,
        ),
        Law(
            "transformed gradient",
            "No transformation around a collective changes its gradients.",
            _transformed_gradient,
            arounds=DIFFERENTIABLE,
            floating=True,
            share=0.4,
        ),
        Law(
            "communication",
            "Collectives and bytes are those of the formula, in no more steps, and never below the lower bound.",
            check_communication,
            share=0.8,
        ),
        # without jit every primitive is dispatched by itself, a hundred times as slow
        Law(
            "eager",
            "Without `jit` the values are those with it.",
            check_value,
            arounds=("eager",),
            share=0.1,
            engines=("xla",),
        ),
        Law(
            "agreement",
            "The interpreter and XLA agree on every program, forward and backward.",
            check_agreement,
            arounds=("jit", *(name for name in AROUND if name != "partial_manual")),
            share=6.5,
            engines=("xla",),
            interpreted=True,
        ),
        # most have fewer than 300 devices: what is gathered grows with the square of their number
        Law(
            "scale",
            "Values and gradients that are right on eight devices are right on thousands.",
            _scaled,
            share=0.4,
            engines=("simulate",),
            large=True,
            interpreted=True,
        ),
    )
}
