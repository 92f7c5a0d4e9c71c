"""The chain of transformations around a call: its links, and what each does to operands and results.

`shardproof.properties.programs.transformations` has what they do to a function. A chain is a tuple of their names,
outermost first; the empty one is plain `jit`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

from hypothesis import strategies as st

BATCH = 2
"""The number of inputs of a link that batches (`vmap`, `scan`, …), along a leading dimension."""

MOST_LINKS, MOST_BATCHED = 3, 2
"""The most links of a chain, and the most of them that batch."""

Chain = tuple[str, ...]

NESTED, OUTSIDE, SPMD, COMPOSE = "nested", "vmap_outside", "vmap_spmd", "compose"
"""The links that need more than a function around the call (see `LINKS`)."""

DIVERGENT = ("divergent_cond", "divergent_switch", "divergent_while")
"""The links for which devices that no collective connects take different branches, or different numbers of steps."""


@dataclass(frozen=True)
class Link:
    """A transformation, by what it does to operands and results."""

    name: str
    sentence: str  # what it is
    # the operands that get a leading batch dimension; if any does, the results do as well
    maps: Literal["none", "all", "first", "others"] = "none"
    keeps: tuple[bool, ...] = (True,) * BATCH  # of each of the batch, whether its results are returned, and not zeros
    whole: bool = False  # whether it is about the whole program and not the call: then it is outermost, and there once
    differentiable: bool = True  # whether reverse mode goes through it
    derives: bool = False  # whether it differentiates by itself, so that the call must be differentiable
    of_derivative: bool = False  # whether it is about how derivatives are taken alone
    checked: bool = True  # whether `shard_map` checks the types (`check_vma`)
    compiled: bool = True  # whether the program is put under `jit`
    of_shard_map: bool = False  # whether it is about the types in `shard_map`, its axes, or what is inside of it
    leaves_an_axis: bool = False  # whether it needs an axis of the mesh which a collective does not name

    @property
    def batched(self) -> bool:
        """True if results carry a batch dimension more."""
        return self.maps != "none"

    def maps_operand(self, index: int) -> bool:
        """True if operand `index` carries a batch dimension more."""
        return self.maps == "all" or self.maps == ("others" if index else "first")


_of_program = partial(Link, whole=True)
_of_shard_map = partial(_of_program, of_shard_map=True)
_of_derivative = partial(_of_program, of_derivative=True)
_batched = partial(Link, maps="all")
_divergent = partial(Link, of_shard_map=True, leaves_an_axis=True)

_LINKS = (
    _of_program("eager", "Nothing is under `jit`.", compiled=False),
    _of_shard_map(
        "partial_manual",
        "`shard_map` makes some axes manual; the compiler has the others, over which operands are sharded too.",
        leaves_an_axis=True,
    ),
    # of its gradient JAX makes a program that it cannot lower (see the known defects)
    _of_shard_map(NESTED, "A `shard_map` inside of another; the axes are divided between them.", differentiable=False),
    _of_shard_map(OUTSIDE, "`vmap` of the whole `shard_map`.", maps="all"),
    # with checked types, JAX loses the axis in every loop, branch and remat (see the known defects)
    _of_shard_map(
        SPMD,
        "`vmap_outside` with its batch sharded over an axis (`spmd_axis_name`); types are not checked.",
        maps="all",
        checked=False,
        differentiable=False,
        leaves_an_axis=True,
    ),
    # a derivative that a function gives itself may need the types: a transposed psum is no psum with them
    _of_shard_map("no_vma", "Types are not checked (`check_vma=False`).", checked=False, differentiable=False),
    _of_shard_map(
        "vjp_inside",
        "Derivatives are taken inside of `shard_map`; values are those of `jax.vjp` there.",
        derives=True,
    ),
    _of_derivative("linearize", "Derivatives are taken by `linearize` and `linear_transpose`."),
    _of_derivative("jacobian", "Derivatives are taken in several directions at once, as `jacfwd` and `jacrev` do."),
    _of_derivative(
        "grad_per_operand",
        "Gradients are taken by one operand after the other, each of a function of that operand alone.",
    ),
    Link("inner_jit", "`jit` of the call, inside of `shard_map`."),
    Link("checkpoint", "`jax.checkpoint` of the call."),
    _batched("vmap", "`vmap` of the call."),
    _batched("vmap_last", "`vmap` of the call over a last dimension."),
    _batched("vmap_named", "`vmap` of the call, with an `axis_name`."),
    Link("vmap_first", "`vmap` of the call over its first operand alone.", maps="first"),
    Link("vmap_others", "`vmap` of the call over all operands but the first.", maps="others"),
    _batched("twice", "Two calls, neither of which needs the other."),
    _batched(
        "sequential", "Two calls: an operand of the second is chosen between the next input and a result of the first."
    ),
    Link(COMPOSE, "Two calls: the results of the first are operands of the second."),
    Link("switch", "The call in one branch of a `switch`; the others give zeros."),
    _divergent(
        "divergent_cond", "The call in both branches of a `cond`, which devices along another axis take by turns."
    ),
    _divergent(
        "divergent_switch", "The call in all three branches of a `switch`, whose index differs along another axis."
    ),
    _divergent(
        "divergent_while",
        "The call in a `while_loop`, of one step or of two by turns along another axis.",
        differentiable=False,
    ),
    _batched("scan", "A call in every step of a `scan`."),
    _batched("while_loop", "A call in every step of a `while_loop`.", differentiable=False),
    _batched("cond", "A `cond` in a `scan`: the call for the first input, zeros for the second.", keeps=(True, False)),
)

LINKS: dict[str, Link] = {link.name: link for link in _LINKS}
"""All links: first those about the whole program, in the order in which a chain has them, then from simple to less."""


UNCHECKED = tuple(name for name, link in LINKS.items() if not link.checked)
"""The links that leave out the types in `shard_map`."""

DERIVING = tuple(name for name, link in LINKS.items() if link.derives)
"""The links that differentiate inside of `shard_map`."""


def in_order(names: Iterable[str]) -> Chain:
    """A chain of these links: those about the whole program outermost and once, and no more that batch than may."""
    some = list(names)
    whole = [name for name, link in LINKS.items() if link.whole and name in some]
    chain: list[str] = []
    for name in (*whole, *(name for name in some if not LINKS[name].whole)):
        if not LINKS[name].batched or sum(LINKS[one].batched for one in chain) < MOST_BATCHED:
            chain.append(name)
    return tuple(chain[:MOST_LINKS])


def leaves_an_axis(chain: Chain) -> bool:
    """True if a link needs an axis of the mesh which a collective does not name."""
    return any(LINKS[name].leaves_an_axis for name in chain)


OF_DERIVATIVES = frozenset(name for name, link in LINKS.items() if link.of_derivative)
UNDIFFERENTIABLE = frozenset(name for name, link in LINKS.items() if not link.differentiable)

NEVER_BOTH: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (UNDIFFERENTIABLE, OF_DERIVATIVES, "no derivative is taken through the other one"),
    (frozenset({NESTED, OUTSIDE}), frozenset({SPMD}), "the batch has one way into the whole `shard_map`"),
    (frozenset({SPMD}), frozenset(DIVERGENT), "either needs the axis that a collective does not name"),
    (
        frozenset({"partial_manual"}),
        frozenset({SPMD, *DIVERGENT}),
        "the compiler has that axis; XLA:CPU hangs where it has one, and devices along another are in other branches",
    ),
)
"""Links that exclude others from a chain, those others, and why."""


def is_excluded(name: str, chain: Chain) -> bool:
    """True if another link of a chain excludes one from it."""
    return any(name in others and not excluding.isdisjoint(chain) for excluding, others, _ in NEVER_BOTH)


def check_chain(chain: Sequence[str]) -> None:
    """Raises ValueError unless a chain is one that can be drawn."""
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


@dataclass(frozen=True)
class Chains:
    """The chains to draw."""

    links: Chain = ()  # the links to draw from, the simplest first
    only: Chain | None = None  # the only chain that is drawn; None: any

    def without(self, unfit: Collection[str]) -> "Chains":
        """The same without some of the links."""
        only = None if self.only is None else tuple(name for name in self.only if name not in unfit)
        return replace(self, links=tuple(name for name in self.links if name not in unfit), only=only)


PLAIN = Chains()
"""No chain at all."""


@lru_cache
def chains(of: Chains) -> st.SearchStrategy[Chain]:
    """No chain, or one of at most three links, drawn as names. Shrinks to none, then to one link, the simplest."""
    if of.only is not None:
        return st.just(of.only)
    if not of.links:
        return st.just(())
    some = st.lists(st.sampled_from(of.links), min_size=1, max_size=MOST_LINKS)
    return st.one_of(st.just(()), some.map(in_order))
