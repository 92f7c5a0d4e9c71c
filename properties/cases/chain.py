"""The chain of transformations around a call: which links there are, and what each does to operands and results.

What a link does to a function is said in `shardproof.properties.programs.transformations`. A chain is a tuple of their
names, outermost first; the empty one is plain `jit`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

BATCH = 2
"""How many inputs a link that batches (`vmap`, `scan`, …) carries, along a leading dimension."""

MOST_LINKS, MOST_BATCHED = 3, 2
"""How long a chain may be, and how many of its links may batch."""

Chain = tuple[str, ...]

NESTED = "nested"
"""The link that divides the axes between two `shard_map`s, one inside the other."""

OUTSIDE = "vmap_outside"
"""The link that is a `vmap` of the whole `shard_map`."""

SPREAD = "vmap_spread"
"""The link that is such a `vmap`, its batch sharded over an axis of the mesh (`spmd_axis_name`)."""

DIVERGENT = "divergent_cond"
"""The link that calls in one of two branches, in the other one on devices that no collective connects with them."""


@dataclass(frozen=True)
class Link:
    """What a transformation does to operands and results, whatever it is put around.

    Arguments:
        name: what cases and messages call it.
        maps: which operands get a leading batch dimension; if any does, the results do as well.
        keeps: which of the batch's results are kept; the others are zeros.
        whole: whether it is about the whole program and not about the call, so that it is outermost, and there once.
        differentiable: whether reverse mode goes through it.
        derives: whether it differentiates by itself, so that the call must be differentiable.
        of_derivative: whether it is about how derivatives are taken, so that values know nothing of it.
        checked: whether `shard_map` checks the types (`check_vma`).
        compiled: whether the program is put under `jit`.
        of_shard_map: whether it is about the types in `shard_map`, its axes, or what is inside of it.
        leaves_an_axis: whether it needs an axis of the mesh which a collective does not name.
    """

    name: str
    maps: Literal["none", "all", "first", "others"] = "none"
    keeps: tuple[bool, ...] = (True,) * BATCH
    whole: bool = False
    differentiable: bool = True
    derives: bool = False
    of_derivative: bool = False
    checked: bool = True
    compiled: bool = True
    of_shard_map: bool = False
    leaves_an_axis: bool = False

    @property
    def batched(self) -> bool:
        """Whether results carry a batch dimension more."""
        return self.maps != "none"

    def maps_operand(self, index: int) -> bool:
        """Whether operand `index` carries a batch dimension more."""
        return self.maps == "all" or self.maps == ("others" if index else "first")


LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("eager", whole=True, compiled=False),
        Link("partial_manual", whole=True, of_shard_map=True, leaves_an_axis=True),
        # of its gradient JAX makes a program that it cannot lower (see the known defects)
        Link(NESTED, whole=True, differentiable=False, of_shard_map=True),
        Link(OUTSIDE, maps="all", whole=True, of_shard_map=True),
        # with checked types, JAX loses the axis in every loop, branch and remat (see the known defects)
        Link(
            SPREAD, maps="all", whole=True, checked=False, differentiable=False, of_shard_map=True, leaves_an_axis=True
        ),
        # with unchecked types, the transpose of psum is psum: gradients are known to be wrong (see the known defects)
        Link("no_vma", whole=True, checked=False, differentiable=False, of_shard_map=True),
        Link("vjp_inside", whole=True, derives=True, of_shard_map=True),
        Link("linearize", whole=True, of_derivative=True),
        Link("jacobian", whole=True, of_derivative=True),
        Link("inner_jit"),
        Link("checkpoint"),
        Link("vmap", maps="all"),
        Link("vmap_last", maps="all"),
        Link("vmap_named", maps="all"),
        Link("vmap_first", maps="first"),
        Link("vmap_others", maps="others"),
        Link("twice", maps="all"),
        Link("switch"),
        Link(DIVERGENT, of_shard_map=True, leaves_an_axis=True),
        Link("scan", maps="all"),
        Link("while_loop", maps="all", differentiable=False),
        Link("cond", maps="all", keeps=(True, False)),
    )
}
"""All links: first those about the whole program, in the order in which a chain has them, then from simple to less."""


UNCHECKED = tuple(name for name, link in LINKS.items() if not link.checked)
"""The links that leave out the types in `shard_map`."""


def links(chain: Chain) -> tuple[Link, ...]:
    """The links that a chain names."""
    return tuple(LINKS[name] for name in chain)


def in_order(names: Iterable[str]) -> Chain:
    """A chain of these links: those about the whole program outermost and once, and no more that batch than may."""
    some = list(names)
    whole = [name for name, link in LINKS.items() if link.whole and name in some]
    chain: list[str] = []
    for name in (*whole, *(name for name in some if not LINKS[name].whole)):
        if not LINKS[name].batched or sum(link.batched for link in links(tuple(chain))) < MOST_BATCHED:
            chain.append(name)
    return tuple(chain[:MOST_LINKS])


def leaves_an_axis(chain: Chain) -> bool:
    """Whether a link needs an axis of the mesh which a collective does not name."""
    return any(link.leaves_an_axis for link in links(chain))


def goes_around(outer: str, inner: str) -> bool:
    """Whether a chain may have one link around another."""
    return in_order((outer, inner)) == (outer, inner)


def check_chain(chain: Sequence[str]) -> None:
    """A chain is one that can be drawn.

    Raises:
        ValueError: if it is not.
    """
    for name in chain:
        if name not in LINKS:
            raise ValueError(f"chain={tuple(chain)}: {name!r}: expected some of {', '.join(LINKS)}")
    if tuple(chain) != in_order(chain):
        raise ValueError(
            f"chain={tuple(chain)}: expected at most {MOST_LINKS} links, {MOST_BATCHED} of which batch, and each that "
            "is about the whole program once, outermost"
        )


def in_words(chain: Chain) -> str:
    """A chain as a person reads it: `vmap of scan`, `partial_manual and vmap of scan`; of none `jit`."""
    whole = [name for name in chain if LINKS[name].whole]
    rest = " of ".join(name for name in chain if name not in whole)
    return " and ".join(filter(None, (*whole, rest))) or "jit"
