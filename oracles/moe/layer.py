"""A mixture of experts over sharded tokens and experts: that of all tokens and all experts, token by token.

Operands are blocks `tokens [*mesh.sizes, T, D]`, `router [*mesh.sizes, D, E]` and the experts' weights
`[*mesh.sizes, E / p, …]`. The result of a token is the sum of the outputs of experts that keep it, each by its gate; a
dropped choice adds nothing, and nothing is renormalised. Derivatives are exact, in `wide` floats, for fixed choices,
and their transpose is taken over all blocks of all devices: each has its own cotangent (see `oracles.transposes`), each
participant's router that of its own tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands
from shardproof.oracles.dtypes import is_float, wide, widen
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import Dispatch, dispatch
from shardproof.oracles.moe.experts import EXPERTS, Expert
from shardproof.oracles.moe.routing import Routing, gates_tangent, logits_cotangent, route
from shardproof.oracles.ragged import process_groups


@dataclass(frozen=True)
class Settings:
    """The keyword arguments of a layer."""

    top_k: int  # how many experts a token chooses
    capacity: int | None = None  # the most pairs that an expert keeps, of all participants; None: all
    policy: str = "probability"  # who is kept
    over: str = "chosen"  # of which logits the gates are the softmax: those that are `"chosen"`, or `"all"`
    capacity_per_sender: int | None = None  # the most pairs that a participant sends to an expert; None: all


class MoeLayer:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` (or three arrays, of a gated MLP) to `[T_Y, F]`.

    The `options` of all methods are the fields of `Settings`.
    """

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """Every token's sum of gates times outputs, over the experts that keep it."""
        settings = Settings(**options)
        results = self.blank(operands[0], operands[-1].shape[-1])
        for part in self.parts(operands, mesh, axes):
            routing = self.routing(part, settings)
            for pair in self.dispatch(routing, part, settings).kept:
                x, weights = part.token(pair.token), part.expert(pair.expert)
                part.at(results, pair.token)[...] += routing.gates[pair.token, pair.choice] * part.does.value(
                    x, weights
                )
        return [results.reshape(*mesh.sizes, *results.shape[1:])]

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks]:
        """The product rule of each kept choice: its gate moves, and so does its expert's output."""
        settings = Settings(**options)
        results = self.blank(operands[0], operands[-1].shape[-1])
        for part, along in zip(self.parts(operands, mesh, axes), self.parts(tangents, mesh, axes), strict=True):
            routing = self.routing(part, settings)
            moved = self.moved_gates(part, along, routing, settings.over)
            for pair in self.dispatch(routing, part, settings).kept:
                x, weights = part.token(pair.token), part.expert(pair.expert)
                dx, dweights = along.token(pair.token), along.expert(pair.expert)
                part.at(results, pair.token)[...] += moved[pair.token, pair.choice] * part.does.value(x, weights)
                pushed = part.does.pushforward(x, weights, dx, dweights)
                part.at(results, pair.token)[...] += routing.gates[pair.token, pair.choice] * pushed
        return [results.reshape(*mesh.sizes, *results.shape[1:])]

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, **options: Any
    ) -> list[Blocks]:
        """Through each kept choice's expert, to the token and the weights, and through its gate, to the router.

        A gate's cotangent is the inner product of the token's with the expert's output; that of a dropped choice is 0.
        """
        settings = Settings(**options)
        gradients = [np.zeros((mesh.size, *x.shape[len(mesh.sizes) :]), wide(x.dtype)) for x in operands]
        (ct,) = (c.reshape(mesh.size, *c.shape[len(mesh.sizes) :]) for c in widen(cotangents))
        for part in self.parts(operands, mesh, axes):
            routing = self.routing(part, settings)
            of_gates = np.zeros_like(routing.gates)
            for pair in self.dispatch(routing, part, settings).kept:
                x, weights, own = part.token(pair.token), part.expert(pair.expert), part.at(ct, pair.token)
                of_gates[pair.token, pair.choice] = own @ part.does.value(x, weights)
                of_x, of_weights = part.does.pullback(x, weights, routing.gates[pair.token, pair.choice] * own)
                part.at(gradients[0], pair.token)[...] += of_x
                for gradient, one in zip(gradients[2:], of_weights, strict=True):
                    part.at(gradient, pair.expert)[...] += one
            for t, logits in enumerate(part.logits):
                of_logits = logits_cotangent(logits, of_gates[t], routing.experts[t], settings.over)
                part.at(gradients[0], t)[...] += part.router(t) @ of_logits
                gradients[1][part.holder(t)] += np.outer(part.token(t), of_logits)
        return [g.reshape(x.shape) for g, x in zip(gradients, operands, strict=True)]

    def routing(self, part: "Part", settings: Settings) -> Routing:
        """The choices of all tokens."""
        return route(part.logits, settings.top_k, over=settings.over)

    def dispatch(self, routing: Routing, part: "Part", settings: Settings) -> Dispatch:
        """The kept and dropped pairs."""
        return dispatch(
            routing,
            len(part.participants),
            part.experts,
            capacity=settings.capacity,
            policy=settings.policy,
            capacity_per_sender=settings.capacity_per_sender,
        )

    def moved_gates(self, part: "Part", along: "Part", routing: Routing, over: str) -> np.ndarray:
        """The tangents of all gates `[T, k]`: of logits `x R` they are `dx R + x dR`."""
        moved, logits = np.zeros_like(routing.gates), part.logits
        for t in range(part.tokens):
            tangent = along.token(t) @ part.router(t) + part.token(t) @ along.router(t)
            moved[t] = gates_tangent(logits[t], tangent, routing.experts[t], over)
        return moved

    def parts(self, operands: Operands, mesh: MeshCase, axes: Axes) -> Iterator["Part"]:
        """The operands of every process group."""
        lead = len(mesh.sizes)
        whole = [x.reshape(mesh.size, *x.shape[lead:]) for x in widen(operands)]
        tokens, router, *weights = whole
        p, held = mesh.axis_size(axes), weights[0].shape[1]
        if len(weights) not in EXPERTS or any(w.shape[1] != held for w in weights):
            raise ValueError(f"experts: blocks {[w.shape[1:] for w in weights]}: expected one array, or three, of each")
        if router.shape[1:] != (tokens.shape[-1], held * p):
            raise ValueError(
                f"router: {list(router.shape[1:])}: expected {[tokens.shape[-1], held * p]}, a column for each of the "
                f"{held} experts of {p} participants, on the mesh {mesh}"
            )
        matrices = [w.shape[2:] for w in weights]
        inner = [(tokens.shape[-1], matrices[0][1])] * (2 if len(weights) == 3 else 1)
        if matrices[: len(inner)] != inner or any(m[0] != inner[0][1] for m in matrices[2:]):
            raise ValueError(
                f"experts: matrices {matrices}: expected {inner} for {tokens.shape[-1]} features of tokens"
            )
        if not all(is_float(x.dtype) for x in operands):
            raise ValueError(f"operands: {[str(x.dtype) for x in operands]}: expected floating-point numbers")
        for participants in process_groups(mesh, axes):
            yield Part(participants, tokens, router, weights)

    def blank(self, tokens: Blocks, features: int) -> np.ndarray:
        """Zeros `[devices, T, F]`."""
        lead = tokens.shape[:-2]
        return np.zeros((int(np.prod(lead)), tokens.shape[-2], features), wide(tokens.dtype))


@dataclass(frozen=True)
class Part:
    """The operands of the participants of one process group, in logical order; tokens and experts by their number."""

    participants: np.ndarray  # the participants' places among all devices `[p]`
    held_tokens: np.ndarray  # `[devices, T, D]`
    routers: np.ndarray  # `[devices, D, E]`
    weights: Sequence[np.ndarray]  # `[devices, E / p, …]` each

    @property
    def tokens(self) -> int:
        """The number of tokens of all participants."""
        return len(self.participants) * self.held_tokens.shape[1]

    @property
    def experts(self) -> int:
        """The number of experts of all participants."""
        return len(self.participants) * self.weights[0].shape[1]

    @property
    def does(self) -> Expert:
        """The kind of expert."""
        return EXPERTS[len(self.weights)]

    @property
    def logits(self) -> np.ndarray:
        """The logits of all tokens `[p T, E]`, each by its own participant's router."""
        result = np.zeros((self.tokens, self.experts), self.held_tokens.dtype)
        with np.errstate(invalid="ignore"):
            for t in range(self.tokens):
                result[t] = self.token(t) @ self.router(t)
        return result

    def holder(self, token: int) -> int:
        """The device that holds a token."""
        return int(self.participants[token // self.held_tokens.shape[1]])

    def token(self, token: int) -> np.ndarray:
        """A token `[D]`."""
        return self.at(self.held_tokens, token)

    def router(self, token: int) -> np.ndarray:
        """The router of a token's participant `[D, E]`."""
        return np.asarray(self.routers[self.holder(token)])

    def expert(self, expert: int) -> list[np.ndarray]:
        """An expert's weights."""
        return [self.at(w, expert) for w in self.weights]

    def at(self, held: np.ndarray, number: int) -> np.ndarray:
        """A view of one row of `[devices, n, …]`, by its number among those of all participants."""
        participant, row = divmod(number, held.shape[1])
        return np.asarray(held[self.participants[participant], row])


moe_layer = MoeLayer()
