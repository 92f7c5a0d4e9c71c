"""A mixture of experts over sharded tokens and experts: that of all tokens and all experts, token by token.

The result of a token is the sum of the outputs of experts that keep it, each by its gate; a dropped choice adds nothing
and nothing is renormalised. Derivatives are exact, in `wide` floats, for fixed choices. Each participant's router has
the cotangent of its own tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.moe.dropping import Dispatch, dispatch
from shardproof.oracles.moe.experts import EXPERTS, Expert
from shardproof.oracles.moe.routing import Routing, gates_tangent, logits_cotangent, route
from shardproof.oracles.whole import Arrays, OfParticipants


@dataclass(frozen=True)
class Settings:
    """The keyword arguments of a layer."""

    top_k: int  # how many experts a token chooses
    capacity: int | None = None  # the most pairs that an expert keeps, of all participants; None: all
    policy: str = "probability"  # who is kept
    over: str = "chosen"  # of which logits the gates are the softmax: those that are `"chosen"`, or `"all"`
    capacity_per_sender: int | None = None  # the most pairs that a participant sends to an expert; None: all


class MoeLayer(OfParticipants):
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` (or three arrays, of a gated MLP) to `[T_Y, F]`.

    The `options` of all methods are the fields of `Settings`.
    """

    sharded, scattered = (-2, None, -3, -3, -3), -2

    def result(self, *wholes: np.ndarray, **options: Any) -> np.ndarray:
        """Every token's sum of gates times outputs, over the experts that keep it."""
        settings, results = Settings(**options), blank(wholes)
        for part, y in zip(parts(wholes), results[0], strict=True):
            routing = part.routing(settings)
            for pair in part.dispatch(routing, settings).kept:
                output = part.does.value(part.tokens[pair.token], part.expert(pair.expert))
                y[pair.token] += routing.gates[pair.token, pair.choice] * output
        return results

    def tangent(self, wholes: Arrays, tangents: Arrays, **options: Any) -> np.ndarray:
        """The product rule of each kept choice: its gate moves, and so does its expert's output."""
        settings, results = Settings(**options), blank(wholes)
        for part, along, y in zip(parts(wholes), parts(tangents), results[0], strict=True):
            routing = part.routing(settings)
            moved = part.moved_gates(along, routing, settings.over)
            for pair in part.dispatch(routing, settings).kept:
                x, weights = part.tokens[pair.token], part.expert(pair.expert)
                y[pair.token] += moved[pair.token, pair.choice] * part.does.value(x, weights)
                pushed = part.does.pushforward(x, weights, along.tokens[pair.token], along.expert(pair.expert))
                y[pair.token] += routing.gates[pair.token, pair.choice] * pushed
        return results

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, **options: Any) -> list[np.ndarray]:
        """Through each kept choice's expert, to the token and the weights, and through its gate, to the router.

        A gate's cotangent is the inner product of the token's with the expert's output; that of a dropped choice is 0.
        """
        settings, found = Settings(**options), [np.zeros_like(x) for x in wholes]
        for part, of, ct in zip(parts(wholes), parts(found), cotangent[0], strict=True):
            routing = part.routing(settings)
            of_gates = np.zeros_like(routing.gates)
            for pair in part.dispatch(routing, settings).kept:
                x, weights, own = part.tokens[pair.token], part.expert(pair.expert), ct[pair.token]
                of_gates[pair.token, pair.choice] = own @ part.does.value(x, weights)
                of_x, of_weights = part.does.pullback(x, weights, routing.gates[pair.token, pair.choice] * own)
                of.tokens[pair.token] += of_x
                for gradient, one in zip(of.weights, of_weights, strict=True):
                    gradient[pair.expert] += one
            for t, logits in enumerate(part.logits):
                of_logits = logits_cotangent(logits, of_gates[t], routing.experts[t], settings.over)
                of.tokens[t] += part.router(t) @ of_logits
                of.router(t)[...] += np.outer(part.tokens[t], of_logits)
        return found


@dataclass(frozen=True)
class Part:
    """The operands of one process group; tokens and experts are those of all participants, in logical order."""

    tokens: np.ndarray  # `[p T, D]`
    routers: np.ndarray  # `[p, D, E]`, of each participant
    weights: Sequence[np.ndarray]  # `[E, …]` each

    @property
    def does(self) -> Expert:
        """The kind of expert."""
        return EXPERTS[len(self.weights)]

    @property
    def logits(self) -> np.ndarray:
        """The logits of all tokens `[p T, E]`, each by its own participant's router."""
        each = [x @ self.router(t) for t, x in enumerate(self.tokens)]
        return np.array(each, self.tokens.dtype).reshape(-1, self.routers.shape[-1])

    def router(self, token: int) -> np.ndarray:
        """The router of a token's participant `[D, E]`."""
        return np.asarray(self.routers[token * len(self.routers) // len(self.tokens)])

    def expert(self, expert: int) -> list[np.ndarray]:
        """An expert's weights."""
        return [w[expert] for w in self.weights]

    def routing(self, settings: Settings) -> Routing:
        """The choices of all tokens."""
        return route(self.logits, settings.top_k, over=settings.over)

    def dispatch(self, routing: Routing, settings: Settings) -> Dispatch:
        """The kept and dropped pairs."""
        limits = {"capacity": settings.capacity, "capacity_per_sender": settings.capacity_per_sender}
        return dispatch(routing, len(self.routers), len(self.weights[0]), policy=settings.policy, **limits)

    def moved_gates(self, along: "Part", routing: Routing, over: str) -> np.ndarray:
        """The tangents of all gates `[p T, k]`: of logits `x R` they are `dx R + x dR`."""
        moved = np.zeros_like(routing.gates)
        for t, logits in enumerate(self.logits):
            tangent = along.tokens[t] @ self.router(t) + self.tokens[t] @ along.router(t)
            moved[t] = gates_tangent(logits, tangent, routing.experts[t], over)
        return moved


def parts(wholes: Arrays) -> Iterator[Part]:
    """The operands of every process group."""
    tokens, router, *weights = wholes
    experts, features = weights[0].shape[2], tokens.shape[-1]
    if len(weights) not in EXPERTS or any(w.shape[2] != experts for w in weights):
        raise ValueError(f"experts: arrays {[w.shape[2:] for w in weights]}: expected one array, or three, of each")
    if router.shape[2:] != (features, experts):
        wanted = f"{[features, experts]}, a column for each of the {experts} experts of {len(router)} participants"
        raise ValueError(f"router: {list(router.shape[2:])}: expected {wanted}")
    matrices = [w.shape[3:] for w in weights]
    inner = [(features, matrices[0][1])] * (2 if len(weights) == 3 else 1)
    if matrices[: len(inner)] != inner or any(m[0] != inner[0][1] for m in matrices[2:]):
        raise ValueError(f"experts: matrices {matrices}: expected {inner} for {features} features of tokens")
    if not all(is_float(x.dtype) for x in wholes):
        raise ValueError(f"operands: {[str(x.dtype) for x in wholes]}: expected floating-point numbers")
    for group in range(tokens.shape[1]):
        yield Part(tokens[0, group], router[:, group], [w[0, group] for w in weights])


def blank(wholes: Arrays) -> np.ndarray:
    """Zeros for the results of all tokens: `[1, others, p T, F]`."""
    return np.zeros_like(wholes[0], shape=(*wholes[0].shape[:-1], wholes[-1].shape[-1]))


moe_layer = MoeLayer()
