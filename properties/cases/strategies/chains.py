"""Chains of transformations to put around a call."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from hypothesis import strategies as st

from shardproof.properties.cases.chain import MOST_LINKS, Chain, in_order


@dataclass(frozen=True)
class Chains:
    """Which chains to draw.

    Arguments:
        links: the links to draw from, the simplest first.
        only: the one chain that is drawn, if that is settled.
    """

    links: Chain = ()
    only: Chain | None = None

    def without(self, unfit: Collection[str]) -> "Chains":
        """The same without some of the links."""
        only = None if self.only is None else tuple(name for name in self.only if name not in unfit)
        return replace(self, links=tuple(name for name in self.links if name not in unfit), only=only)


PLAIN = Chains()
"""No chain at all."""


@lru_cache
def chains(of: Chains) -> st.SearchStrategy[Chain]:
    """No chain, or one of at most three links. Shrinks to none, then to one link, the simplest.

    Of `vmap`, `scan` and `checkpoint` draws `("vmap",)` and `("scan", "checkpoint")`.
    """
    if of.only is not None:
        return st.just(of.only)
    if not of.links:
        return st.just(())
    some = st.lists(st.sampled_from(of.links), min_size=1, max_size=MOST_LINKS)
    return st.one_of(st.just(()), some.map(in_order))
