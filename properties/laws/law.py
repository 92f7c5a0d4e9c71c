"""Which laws there are, and the cases that each draws."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import FED, LINKS, in_words
from shardproof.properties.cases.strategies import PLAIN, Chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.agreement import check_agreement
from shardproof.properties.laws.both_ways import check_eager, check_interpreted, check_scale
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.laws.drawing import (
    Cases,
    always,
    as_drawn,
    fitted,
    forbidden,
    forbids,
    has_gradient,
    leaving,
    on_some_data,
    typed,
    without_mutation,
)
from shardproof.properties.laws.error import check_error
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.overlap import check_overlap, claims_overlap
from shardproof.properties.laws.type import check_type
from shardproof.properties.laws.value import check_value
from shardproof.properties.programs.implementations import Implementation

OF_SHARD_MAP = tuple(name for name, link in LINKS.items() if link.of_shard_map)
"""Links that mean nothing to a function of global arrays."""

Check = Callable[[Implementation, Case, Engine], int]


@dataclass(frozen=True)
class Law:
    """One thing that must hold, the cases that it is checked on, and its share of the examples.

    Arguments:
        name: what the report calls it.
        sentence: what holds.
        check: raises if it does not hold; returns how many data sets were checked.
        stands_alone: whether its scripts need no shardproof: they compare values or gradients with those of an oracle.
        title: what it is called where it is broken, if that is not its name.
        adapt: makes the contract's cases say what it asks.
        asks: whether it has anything to ask of an implementation.
        chains: the transformations it draws around the call.
        floating: whether it needs gradients.
        share: its examples, as a multiple of the profile's `max_examples`; costly laws get fewer.
        engines: the engines that can check it.
        large: whether it draws meshes that only the simulator can serve.
        interpreted: whether it cannot be checked without the interpreter.
        derives: whether it differentiates, or may.
        repeats: whether wrong values already imply that it fails, so that it is left out then.
        alone: what checks it by the interpreter alone, where that is less than `check`.
    """

    name: str
    sentence: str
    check: Check
    stands_alone: bool = False
    title: str = ""
    adapt: Callable[[Cases, Implementation], Cases] = as_drawn
    asks: Callable[[Implementation], bool] = always
    chains: Chains = PLAIN
    floating: bool = False
    share: float = 1.0
    engines: tuple[str, ...] = ("simulate", "xla")
    large: bool = False
    interpreted: bool = False
    derives: bool = False
    repeats: bool = False
    alone: Check | None = None

    @property
    def partial(self) -> bool:
        """Whether it draws only a part of what the law of values draws: a function may support none of that part."""
        return self.floating or self.large

    @property
    def between_engines(self) -> bool:
        """Whether it compares engines with one another, so that what is wrong is not known from an oracle."""
        return self.alone is not None

    def engines_for(self, implementation: Implementation) -> tuple[str, ...]:
        """The engines that can check it of an implementation; none, if it has nothing to ask.

        What a compiler sends for a function of global arrays, the interpreter does not see.
        """
        if not self.asks(implementation):
            return ()
        expected = implementation.communication is not None
        hidden = self.name == "communication" and implementation.whole and not expected
        return tuple(engine for engine in self.engines if not (hidden and engine == "simulate"))

    def titled(self, case: Case, *, of_derivative: bool) -> str:
        """Its name where it is broken: `value under vmap of scan`, `gradient at scale`."""
        part = "gradient" if of_derivative or self.floating else "value"
        under = f" under {in_words(case.chain)}" if case.chain else ""
        return (self.title.format(part=part) or self.name) + under

    def cases(
        self, implementation: Implementation, scope: Scope, excluded: Callable[[Case], None] = lambda case: None
    ) -> Cases:
        """The cases that this law draws for an implementation; those that it does not serve go to `excluded`."""
        scope = dataclasses.replace(
            scope,
            chains=self.chains.without(OF_SHARD_MAP) if implementation.whole else self.chains,
            floating=self.floating,
            features=implementation.features,
            explicit=scope.explicit and not implementation.whole,
            large=scope.large if self.large else 0,
            whole=implementation.whole,
            layouts=implementation.layouts,
        )
        cases = CONTRACTS[implementation.contract].cases(scope).map(fitted)
        serves = implementation.serves
        if serves is not None:

            def kept(case: Case) -> bool:
                wanted = serves(case)
                if not wanted:
                    excluded(case)
                return wanted

            cases = cases.filter(kept)
        return without_mutation(self.adapt(cases, implementation))


SIMPLEST_FIRST = sorted(LINKS, key=lambda name: LINKS[name].whole)
AROUND = tuple(name for name in SIMPLEST_FIRST if LINKS[name].compiled)
COMPILED = tuple(name for name in AROUND if not LINKS[name].of_derivative)
DIFFERENTIABLE = tuple(name for name in AROUND if LINKS[name].differentiable)

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law(
            "value",
            "Every device holds the block that the oracle says.",
            check_value,
            stands_alone=True,
            chains=Chains(COMPILED, bare=3),
            share=2.4,
        ),
        Law(
            "gradient",
            "Forward mode is the oracle's map, reverse mode its transpose, and where sums are exact they are adjoint.",
            check_gradient,
            asks=has_gradient,
            chains=Chains(DIFFERENTIABLE, bare=4),
            floating=True,
            share=0.6,
            stands_alone=True,
            adapt=on_some_data,
            derives=True,
        ),
        Law(
            "type",
            "A result typed invariant is equal everywhere, and `out_specs` is accepted just when the type allows it.",
            check_type,
            share=0.6,
            adapt=leaving,
            asks=typed,
        ),
        Law(
            "error",
            "What the contract forbids raises before anything runs, and says which argument, value and mesh.",
            check_error,
            share=0.3,
            engines=("simulate",),  # what must be refused is refused while tracing, before any engine
            adapt=forbidden,
            asks=forbids,
        ),
        Law(
            "transformation",
            "No chain of transformations around a call changes its values.",
            check_value,
            stands_alone=True,
            chains=Chains((*COMPILED, FED, "partial_manual", "no_vma", "vjp_inside")),  # twice: they call it otherwise
            share=0.8,
            title="{part}",
        ),
        Law(
            "transformed gradient",
            "No chain of transformations around a call changes its gradients.",
            check_gradient,
            asks=has_gradient,
            chains=Chains((*DIFFERENTIABLE, FED, "jacobian", "apart", "apart")),  # of several, or of one alone
            floating=True,
            share=0.35,
            stands_alone=True,
            title="{part}",
            adapt=on_some_data,
            derives=True,
        ),
        Law(
            "communication",
            "Collectives and bytes are those that are stated, in no more steps, and never below the lower bound.",
            check_communication,
            share=0.8,
            derives=True,
        ),
        Law(
            "overlap",
            "What is sent while nothing is computed is no more than is claimed, of the gradient as well.",
            check_overlap,
            asks=claims_overlap,
            engines=("simulate",),  # it is about what was traced: nothing is run
            share=0.4,
            derives=True,
        ),
        # without jit every primitive is compiled by itself, and again in every run: a hundred times as slow
        Law(
            "eager",
            "Values and gradients are right without `jit`.",
            check_eager,
            stands_alone=True,
            chains=Chains(AROUND, bare=3, most=1, always=("eager",)),
            share=1.0,
            title="{part}",
            repeats=True,
            derives=True,
            engines=("xla",),
        ),
        Law(
            "agreement",
            "The interpreter and XLA agree on every program, and on its gradients wherever these are exact.",
            check_agreement,
            chains=Chains(COMPILED, bare=1),
            share=6.5,
            engines=("xla",),
            interpreted=True,
            derives=True,
            repeats=True,
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
