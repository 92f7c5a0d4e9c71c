"""Where derivatives are not known: at kinks, and, of what is not differentiated by JAX, near them."""

from collections.abc import Callable, Sequence

import numpy as np

Arrays = Sequence[np.ndarray]

SMOOTH = 0.75
"""How much of the gap between both one-sided derivatives half the step may leave: half, if a function is smooth."""

ROUGH = 1e-8
"""By how much two central differences of a smooth function may differ."""

NEARBY = 2.0**-36
"""How far from an array, relative to its elements and to 1, derivatives are taken in order to find kinks at it."""

JUMP = 1e-7
"""By how much derivatives on two sides of a smooth function may differ, relative to them and to their mean."""


def without_kinks(
    at: Callable[[Sequence[Arrays]], Sequence[Arrays]], arrays: Arrays, moving: Sequence[int]
) -> list[np.ndarray]:
    """Derivatives at some arrays, and NaN where those beside them differ: at a kink each program has its own.

    Arguments:
        at: the derivatives at each of several sets of arrays.
        arrays: where they are asked for.
        moving: which of the arrays they are derivatives by.
    """
    random = np.random.default_rng(0)
    steps = {i: NEARBY * random.standard_normal(arrays[i].shape) * np.maximum(np.abs(arrays[i]), 1) for i in moving}
    here, *sides = at([[a + sign * steps[i] if i in steps else a for i, a in enumerate(arrays)] for sign in (0, 1, -1)])
    found = []
    for middle, up, down in zip(here, *sides, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(middle)
            apart = np.maximum(np.abs(up - down), np.abs(middle - up))
            jumps = apart > JUMP * (size + (size.mean() if size.size else 0)) + JUMP**2
        found.append(np.where(jumps, np.nan, middle) if jumps.any() else middle)
    return found


ASIDE = 2.0**-20
"""How far aside differences are taken as well, of arrays of the size of 1."""

SHORT = 2.0**-21
"""The part of a step that is theirs, which crosses no kink that is as far away."""

ASIDES = 8
"""So many are taken along a line: at a tie of three, in a sort, one in three agrees by chance."""

TURN = 2.0**-10
"""By how much the derivative of a smooth function may differ there."""


def aside(x: np.ndarray, number: int) -> np.ndarray:
    """Floats, a little aside of those given, elsewhere for each number; those given for 0."""
    if number == 0:
        return x
    return x + ASIDE * np.random.default_rng(number).standard_normal(x.shape)


def differences(at: Callable[[float, int], list[np.ndarray]], step: float, asides: int = ASIDES) -> list[np.ndarray]:
    """The derivative at zero of arrays that depend on a number, by central differences of the fourth order.

    NaN unless it is smooth nearby, which shows in three ways: half the step halves the gap between the derivatives from
    both sides, central differences of different steps agree, and so do others a little aside. Along one line, what
    sorts three equal elements looks smooth.

    Arguments:
        at: the arrays at a number, of a line that is `aside` for another than 0.
        step: the largest.
        asides: at how many places aside.
    """
    middle = at(0.0, 0)
    sides = [(at(step / n, 0), at(-step / n, 0), step / n) for n in (4, 2, 1)]
    beside = [(at(step * SHORT, n), at(0.0, n)) for n in range(1, asides + 1)]
    found = []
    for i, here in enumerate(middle):
        with np.errstate(invalid="ignore", over="ignore"):
            noise = 256 * np.finfo(np.float64).eps * np.abs(here) / step + 1e-12
            near, middling, far = ((up[i] - down[i]) / (2 * h) for up, down, h in sides)
            bent = [np.abs(up[i] + down[i] - 2 * here) / h for up, down, h in sides]
            one, other = (4 * near - middling) / 3, (4 * middling - far) / 3
            rough = np.abs(one - other) > ROUGH * np.maximum(np.abs(one), 1) + noise
            allowed = TURN * np.maximum(np.abs(one), 1) + noise / SHORT
            turns = [np.abs((up[i] - there[i]) / (step * SHORT) - one) > allowed for up, there in beside]
            found.append(np.where((bent[0] > SMOOTH * bent[1] + noise) | rough | np.any(turns, axis=0), np.nan, one))
    return found
