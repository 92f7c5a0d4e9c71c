"""Which laws there are, and the cases that each draws."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.agreement import check_agreement, differentiable
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.laws.drawing import (
    Cases,
    always,
    as_drawn,
    forbidden,
    forbids,
    has_gradient,
    leaving,
    unrelated,
)
from shardproof.properties.laws.error import check_error
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.type import check_type
from shardproof.properties.laws.value import check_value
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import TRANSFORMATIONS

Check = Callable[[Implementation, Case, Engine], int]
Script = Literal["values", "gradient", "type", "error", "communication"]


@dataclass(frozen=True)
class Law:
    """One thing that must hold, the cases that it is checked on, and its share of the examples.

    Arguments:
        name: what the report calls it.
        sentence: what holds.
        check: raises if it does not hold; returns how many data sets were checked.
        script: what a script shows: `values`, or gradients where a derivative is what is wrong, a `gradient`, a `type`,
            an `error`, what is sent.
        title: what it is called where it is broken, if that is not its name.
        adapt: makes the contract's cases say what it asks.
        asks: whether it has anything to ask of an implementation.
        arounds: the transformations it draws.
        floating: whether it needs gradients.
        share: its examples, as a multiple of the profile's `max_examples`; dear laws get fewer.
        engines: the engines that can check it.
        large: whether it draws meshes that only the simulator can serve.
        interpreted: whether it cannot be checked without the interpreter.
        derives: whether it differentiates, or may.
        alone: what checks it by the interpreter alone, where that is less than `check`.
    """

    name: str
    sentence: str
    check: Check
    script: Script = "values"
    title: str = ""
    adapt: Callable[[Cases, Implementation], Cases] = as_drawn
    asks: Callable[[Implementation], bool] = always
    arounds: tuple[str, ...] = ("jit",)
    floating: bool = False
    share: float = 1.0
    engines: tuple[str, ...] = ("simulate", "xla")
    large: bool = False
    interpreted: bool = False
    derives: bool = False
    alone: Check | None = None

    @property
    def partial(self) -> bool:
        """Whether it draws only a part of what the law of values draws: a function may support none of that part."""
        return self.floating or self.large

    @property
    def between_engines(self) -> bool:
        """Whether it compares engines with one another, so that what is wrong is not known from an oracle."""
        return self.alone is not None

    def titled(self, case: Case, *, of_derivative: bool) -> str:
        """Its name where it is broken: `value under vmap`, `gradient at scale`."""
        part = "gradient" if of_derivative or self.floating else "value"
        return self.title.format(part=part, around=case.around) or self.name

    def cases(
        self, implementation: Implementation, scope: Scope, excluded: Callable[[Case], None] = lambda case: None
    ) -> Cases:
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
        return unrelated(self.adapt(cases, implementation))


def check_scale(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The laws of values and of gradients, where there is one; returns the data sets checked.

    Raises:
        Broken: if one does not hold.
    """
    checked = check_value(implementation, case, engine)
    contract = CONTRACTS[case.contract]
    floating = all(is_float(case.operands[i].numpy_dtype) for i in contract.moving(case))
    if floating and contract.differentiable(case):
        checked += check_gradient(implementation, case, engine)
    return checked


def check_interpreted(implementation: Implementation, case: Case, engine: Engine) -> int:
    """What the law of agreement compares, held against the oracle; returns the data sets checked.

    Raises:
        Broken: if a law does not hold.
    """
    checked = check_value(implementation, case, engine)
    if differentiable(case):
        with suppress(NotImplementedError):  # as the law of agreement does
            checked += check_gradient(implementation, case, engine)
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
            asks=has_gradient,
            floating=True,
            share=0.6,
            script="gradient",
            derives=True,
        ),
        Law(
            "type",
            "A result typed invariant is equal everywhere, and `out_specs` is accepted just when the type allows it.",
            check_type,
            share=0.6,
            script="type",
            adapt=leaving,
        ),
        Law(
            "error",
            "What the contract forbids raises before anything runs, and says which argument, value and mesh.",
            check_error,
            share=0.3,
            engines=("simulate",),  # what must be refused is refused while tracing, before any engine
            script="error",
            adapt=forbidden,
            asks=forbids,
        ),
        Law(
            "transformation",
            "No transformation around a collective changes its values.",
            check_value,
            arounds=(*AROUND, "partial_manual", "no_vma"),  # twice as often: they change what the others only wrap
            share=1.1,
            title="value under {around}",
        ),
        Law(
            "transformed gradient",
            "No transformation around a collective changes its gradients.",
            check_gradient,
            asks=has_gradient,
            arounds=DIFFERENTIABLE,
            floating=True,
            share=0.4,
            script="gradient",
            title="gradient under {around}",
            derives=True,
        ),
        Law(
            "communication",
            "Collectives and bytes are those of the formula, in no more steps, and never below the lower bound.",
            check_communication,
            share=0.8,
            script="communication",
            derives=True,
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
            derives=True,
            alone=check_interpreted,
        ),
        # most have fewer than 300 devices: what is gathered grows with the square of their number
        Law(
            "scale",
            "Values and gradients that are right on eight devices are right on thousands.",
            check_scale,
            share=0.4,
            engines=("simulate",),
            large=True,
            interpreted=True,
            title="{part} at scale",
            derives=True,
        ),
    )
}
