"""What relations draw: the structures of a contract's own cases, on which they put operands of their own."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies import meshes
from shardproof.properties.cases.strategies.axes import in_some_order
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.drawing import beside
from shardproof.properties.laws.relations.call import Call, Place
from shardproof.properties.laws.relations.operands import FAR, Kind, experts_for, routers, tokens_for
from shardproof.properties.programs.implementations import Implementation

OPTIONAL = frozenset({"first_senders", "gates_of_all", "sender_capacity"})
"""The features that are options of a layer; others are of its operands, which relations have their own of."""

MOST_TOKENS, MOST_EXPERTS = 64, 24
"""Of all participants."""


@dataclass(frozen=True)
class Setting:
    """A structure, and a seed of operands.

    Arguments:
        place: where the layer runs.
        tokens: those of each shard.
        held: the experts of each participant.
        features: those of a token that its logits depend on.
        outputs: the features of a result.
        options: the keyword arguments.
        seed: of all numbers.
    """

    place: Place
    tokens: int
    held: int
    features: int
    outputs: int
    options: dict[str, Any]
    seed: int

    @property
    def count(self) -> int:
        """The tokens of all shards."""
        return self.tokens * self.place.shards

    @property
    def experts(self) -> int:
        """Those of all participants."""
        return self.held * self.place.participants

    @property
    def senders_matter(self) -> bool:
        """Whether something is dropped by who holds a token: of each sender's own, or the last sender's first."""
        of_first = self.options["policy"] == "sender" and self.options["capacity"] is not None
        return of_first or self.options.get("capacity_per_sender") is not None

    @property
    def limited(self) -> bool:
        """Whether something may be dropped."""
        return (self.options["capacity"], self.options.get("capacity_per_sender")) != (None, None)

    @property
    def share(self) -> int:
        """How many pairs of a token and its choice an expert has, if all have as many."""
        return math.ceil(self.count * self.options["top_k"] / self.experts)

    def having(self, **options: Any) -> "Setting":
        """With other values of some options that the layer has."""
        known = {name: value for name, value in options.items() if name in self.options}
        return dataclasses.replace(self, options={**self.options, **known})

    def unlimited(self) -> "Setting":
        """With room for all."""
        return self.having(capacity=None, capacity_per_sender=None)

    def rng(self) -> np.random.Generator:
        """What all numbers come from."""
        return np.random.default_rng(self.seed)

    def call(self, kind: Kind, rng: np.random.Generator | None = None, *, avoided: Sequence[int] = ()) -> Call:
        """A call of it, in which no token chooses the experts that are `avoided`."""
        rng = self.rng() if rng is None else rng
        router = routers(rng, self.features, self.experts, tied=kind.tied)
        router[0, [*avoided]] = -FAR
        top_k, over = self.options["top_k"], self.options.get("over", "chosen")
        tokens = tokens_for(rng, router, self.count, kind, top_k=top_k, over=over)
        experts = experts_for(rng, self.features, self.experts, self.outputs, kind)
        return Call(self.place, self.options, tokens, router, experts)


def _small(case: Case) -> bool:
    return 0 < case.operands[0].block[0] * Place.of(case).shards <= MOST_TOKENS


def asked(implementation: Implementation, scope: Scope) -> Scope:
    """What the cases of a relation may use."""
    features = implementation.features & OPTIONAL
    return dataclasses.replace(
        scope, features=features, large=0, whole=implementation.whole, layouts=implementation.layouts
    )


@st.composite
def settings(draw: Any, implementation: Implementation, scope: Scope) -> Setting:
    """Settings of an implementation: meshes, axis tuples, sizes and options are those of its contract's cases.

    Shrinks as these do: to one device, one token and one expert.
    """
    case = draw(CONTRACTS[implementation.contract].cases(asked(implementation, scope)).filter(_small))
    setting = Setting(
        Place.of(case),
        tokens=case.operands[0].block[0],
        held=case.operands[2].block[0],
        features=max(2, case.operands[0].block[-1]),
        outputs=case.operands[2].block[-1],
        options=case.keywords,
        seed=draw(st.integers(0, 2**16), label="seed"),
    )
    return draw(roomy(setting)) if setting.limited else setting


@st.composite
def roomy(draw: Any, setting: Setting) -> Setting:
    """The setting with a capacity that its even share makes interesting, if it has one."""
    if setting.options["capacity"] is None:
        return setting
    share = setting.share
    capacity = st.sampled_from((1, share, max(1, share // 2), share + 1, max(1, share - 1), setting.count, 0))
    return setting.having(capacity=draw(capacity, label="capacity"))


@st.composite
def kinds(draw: Any, *, repeated: bool = False, tied: bool = False) -> Kind:
    """Kinds of operands; several tokens, or experts, may have the same logits where that is asked for.

    Shrinks to random experts, and different logits.
    """
    return Kind(
        repeated=repeated and draw(st.booleans(), label="repeated tokens"),
        tied=tied and draw(st.integers(0, 3), label="tied experts") == 3,
        telling=draw(st.booleans(), label="telling experts"),
    )


@st.composite
def other_places(draw: Any, implementation: Implementation, scope: Scope) -> Place:
    """Places of an implementation: those of its contract's cases. Shrinks to one device."""
    return Place.of(draw(CONTRACTS[implementation.contract].cases(asked(implementation, scope))))


@st.composite
def places_alike(draw: Any, place: Place, scope: Scope) -> Place:
    """Places of as many participants, over all axes of a mesh, or all but one of two devices. For layers of blocks."""
    p, pool = place.participants, scope.available
    mesh = draw(meshes(min_devices=p, max_devices=p, available=pool, explicit=scope.explicit))
    axes = tuple(draw(in_some_order(mesh.axis_names)))
    if 2 * p <= scope.max_devices and draw(st.booleans(), label="an axis beside"):
        mesh = beside(mesh, (), axes)
    return Place(mesh, axes if len(axes) > 1 else as_axes(axes)[0])
