"""Chains of transformations to put around a call."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from shardproof.properties.cases.chain import MOST_LINKS, Chain, in_order
from shardproof.properties.cases.strategies.making import Composite, sampled

TWELFTHS, SIXTHS = 12, 6


@dataclass(frozen=True)
class Chains:
    """Which chains to draw.

    Arguments:
        links: the links to draw from, the simplest first; one that stands twice is drawn twice as often.
        bare: of how many cases in twelve there is none.
        most: how many are drawn at most.
        always: links that every chain has besides.
        only: the one chain that is drawn, if that is settled.
    """

    links: Chain = ()
    bare: int = 0
    most: int = MOST_LINKS
    always: Chain = ()
    only: Chain | None = None

    def without(self, unfit: Collection[str]) -> "Chains":
        """The same without some of the links."""
        only = None if self.only is None else tuple(name for name in self.only if name not in unfit)
        left = tuple(name for name in self.links if name not in unfit)
        return dataclasses.replace(self, links=left, only=only)

    def allows(self, chain: Chain) -> bool:
        """Whether such a chain may be drawn."""
        if self.only is not None:
            return chain == self.only
        drawn = [name for name in chain if name not in self.always]
        enough = bool(drawn) or bool(self.bare) or bool(self.always) or not self.links
        return set(drawn) <= set(self.links) and set(self.always) <= set(chain) and len(drawn) <= self.most and enough


PLAIN = Chains()
"""No chain at all."""


@Composite
def chains(draw: st.DrawFn, of: Chains) -> Chain:
    """Chains of at most three links; of those that have any about half have two or more, some the same one twice.

    Every place in a chain is filled or left out by itself, so that a link that is not needed goes, wherever it stands;
    but for the second, which in one of six is as the first, if that is filled.
    Shrinks to none, then to one link, the simplest. Of `vmap`, `scan` and `checkpoint` draws `("vmap",)` and
    `("scan", "checkpoint")`.
    """
    if of.only is not None:
        return of.only
    if not of.links:
        return in_order(of.always)
    if of.bare and draw(st.integers(0, TWELFTHS - 1), label="transformed") < of.bare:
        return in_order(of.always)
    places = (*(None,) * len(of.links), *of.links)
    drawn = [draw(sampled(places), label="link") for _ in range(of.most)]
    if of.most > 1 and draw(st.integers(0, SIXTHS - 1), label="the first one twice") == SIXTHS - 1:
        drawn[1] = drawn[0] or drawn[1]
    return filled(of, drawn)


def filled(of: Chains, places: Sequence[str | None]) -> Chain:
    """The chain of the links that some of its places are filled with, each with every link as often, or left out."""
    return in_order((*of.always, *([name for name in places if name is not None] or of.links[:1])))
