"""The contracts of global_norm and rms_norm, which are no sums of products."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import norms as implementations
from shardproof.oracles import norms
from shardproof.properties.cases import Case
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Smooth, Violation
from shardproof.properties.contracts.operation import WIDER, Described, Drawn, changed, operation, rewritten
from shardproof.properties.strategies.shapes import LONG

Blocks = Sequence[np.ndarray]

FEATURES = frozenset({"explained_errors", "replicated_operands", "x64"})
KINDS = ("exact", "real", "distinct", "scaled", "nan")

FEW = 16
"""Roundings beside those of sums: of squares, products, quotients, and of a root that is off by some units."""

FACTORS = {"global_norm": 2, "rms_norm": 4}
"""How many factors a term has, so that none of them overflows on scaled data."""

LOUD = 64
"""What 16-bit floats are multiplied by now and then: their squares overflow, and their norm does not."""

EPSILONS = (1e-6, 1e-5, 1e-3, 0.5)


def _sides(draw: st.DrawFn, scope: Scope) -> tuple[int, int]:
    small = st.integers(1, 2 if scope.large else 4)
    sides = draw(st.tuples(small, small), label="sides")
    if not scope.large and draw(st.integers(0, 9), label="long") == 9:
        size = draw(st.sampled_from(LONG), label="long side")
        sides = (size, sides[1]) if draw(st.booleans(), label="which") else (sides[0], size)
    return sides


def _matrix(draw: st.DrawFn, members: int, scope: Scope) -> Drawn:
    return [Described(_sides(draw, scope))], {}


def _tokens(draw: st.DrawFn, members: int, scope: Scope) -> Drawn:
    tokens, features = _sides(draw, scope)
    epsilon = draw(st.sampled_from(EPSILONS), label="epsilon")
    return [Described((tokens, features)), Described((features,))], {"epsilon": epsilon}


def _without_zeros(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """At zero a norm has no derivative, and implementations choose one."""
    return [np.where(array == 0, np.ones((), array.dtype), array) for array in arrays]


def _loud(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    (x,) = _without_zeros(case, arrays)
    small = x.dtype == np.float16 and x.size < 2000 and np.abs(x).max(initial=0) < 16
    return [x * np.float16(LOUD) if small and x.size % 2 else x]


def _wider(dtype: np.dtype) -> np.dtype:
    return np.dtype(WIDER.get(dtype.name, dtype))


def _magnitudes(blocks: Blocks) -> list[np.ndarray]:
    return [np.abs(block) for block in blocks]


def _norm_pushed(case: Case, xs: Blocks, tangents: Blocks) -> list[np.ndarray]:
    return norms.global_norm.pushforward(_magnitudes(xs), _magnitudes(tangents), case.mesh, case.axes)


def _norm_pulled(case: Case, xs: Blocks, cotangents: Blocks) -> list[np.ndarray]:
    return norms.global_norm.pullback(_magnitudes(xs), _magnitudes(cotangents), case.mesh, case.axes)


def _normalised(case: Case, xs: Blocks) -> list[np.ndarray]:
    return norms.rms_norm.value(_magnitudes(xs), case.mesh, case.axes, **case.keywords)


def _pushed(case: Case, xs: Blocks, tangents: Blocks) -> list[np.ndarray]:
    """Both terms of the quotient rule, added: x in the numerator and in the root."""
    (x, scale), (dx, dscale) = _magnitudes(xs), _magnitudes(tangents)
    by_scale = _normalised(case, [x, dscale])[0]
    return [by_scale + _twice(case, x, norms.per_feature(scale, x, case.mesh), dx)]


def _pulled(case: Case, xs: Blocks, cotangents: Blocks) -> list[np.ndarray]:
    (x, scale), (ct,) = _magnitudes(xs), _magnitudes(cotangents)
    _, of_scale = norms.rms_norm.pullback([x, scale], [ct], case.mesh, case.axes, **case.keywords)
    weighed = ct * norms.per_feature(scale, x, case.mesh)
    return [_twice(case, x, np.ones(()), weighed), of_scale]


def _twice(case: Case, x: np.ndarray, factor: np.ndarray, along: np.ndarray) -> np.ndarray:
    """`factor (d / r + x mean(x d) / r^3)`, r the root mean square of x."""
    oracle, mesh, axes = norms.rms_norm, case.mesh, case.axes
    root = oracle.root(x, mesh, axes, case.keywords["epsilon"])
    return np.asarray(factor * (along / root + x * oracle.mean(x * along, mesh, axes) / root**3))


def _other_rank(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 1, block=(case.operands[1].block[0] + 1,)))


def _negative(case: Case) -> st.SearchStrategy[Case]:
    return st.just(rewritten(case, epsilon=-1.0))


def _is_float(value: Any) -> bool:
    return type(value) is float


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "global_norm",
        norms.global_norm,
        _matrix,
        operands=("x",),
        invariant=True,
        kinds=KINDS,
        features=FEATURES,
        adapt=_loud,
        terms=lambda case: int(np.prod(case.operands[0].block)) * case.members,
        degree=FACTORS["global_norm"],
        accumulator=_wider,
        smooth=Smooth(
            lambda case, xs: norms.global_norm.value(xs, case.mesh, case.axes),
            _norm_pushed,
            _norm_pulled,
            lambda case: int(np.prod(case.operands[0].block)) * case.members + FEW,
        ),
        implementations={
            "squares": Claim(implementations.global_norm, FEATURES),
            "gathered": Claim(implementations.gathered_global_norm, FEATURES),
        },
    ),
    operation(
        "rms_norm",
        norms.rms_norm,
        _tokens,
        operands=("x", "scale"),
        parameters=("epsilon",),
        options={"epsilon": Option(_is_float, lambda case, value: value >= 0)},
        kinds=KINDS,
        features=FEATURES,
        violations=(Violation("scale", _other_rank),),
        terms=lambda case: sum(case.operands[0].block) * case.members,
        adapt=_without_zeros,
        degree=FACTORS["rms_norm"],
        accumulator=_wider,
        smooth=Smooth(
            _normalised,
            _pushed,
            _pulled,
            lambda case: sum(case.operands[0].block) * case.members + FEW,
        ),
        implementations={
            "squares": Claim(implementations.rms_norm, FEATURES),
            "gathered": Claim(implementations.gathered_rms_norm, FEATURES),
        },
    ),
)
