"""Attention: which work the balanced ring does, and what two forms lack."""

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from shardproof.impl.attention import balanced_ring_attention, heads_attention, ring_attention
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate import RULES
from shardproof.properties.meta import REVERSED
from shardproof.properties.meta.blockwise import simulated


def multiplied(form: Any, p: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> list[Counter[tuple[int, int]]]:
    """Of every participant, which positions of queries it multiplies with which ones of keys, and how often."""
    mesh, found = MeshCase(("sp",), (p,)), [Counter[tuple[int, int]]() for _ in range(p)]
    interpreted = RULES["dot_general"]

    def seeing(env: Any, equation: Any, lhs: np.ndarray, rhs: np.ndarray) -> Any:
        if equation.params["dimension_numbers"][0] == ((2,), (2,)):
            for here, queries, keys in zip(found, lhs[:, 0, :, 0], rhs[:, 0, :, 0], strict=True):
                here.update(itertools.product(map(int, queries), map(int, keys)))
        return interpreted(env, equation, lhs, rhs)

    monkeypatch.setitem(RULES, "dot_general", seeing)
    positions = np.arange(p * rows, dtype=np.float32).reshape(p, rows, 1, 1)
    simulated(functools.partial(form, axis_name="sp", causal=True), mesh, *[positions] * 3)
    monkeypatch.setitem(RULES, "dot_general", interpreted)
    return found


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_balanced_work_is_even(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Balanced, of halves of one position each, every participant multiplies 2 p + 1 pairs, all of them seen, once.

    Together those are all that are seen. The plain ring multiplies 4 p, of which the first participant sees 3 alone.
    """
    seen = {(query, key) for query in range(2 * p) for key in range(query + 1)}
    balanced = multiplied(balanced_ring_attention, p, 2, monkeypatch)
    own = [{pair for pair, times in here.items() if pair in seen and times == 1} for here in balanced]
    assert [len(pairs) for pairs in own] == [2 * p + 1] * p
    assert [here.total() for here in balanced] == [2 * p + 1] * p
    assert set().union(*own) == seen
    plain = multiplied(ring_attention, p, 2, monkeypatch)
    assert [here.total() for here in plain] == [4 * p] * p
    assert [len(seen & {*here}) for here in plain] == [3 + 4 * i for i in range(p)]


def test_halves_of_an_odd_number() -> None:
    """Positions that have no halves are unsupported by the balanced form, where only some keys are seen."""
    mesh, axes = REVERSED
    x = np.zeros((2, 3, 3, 1, 1), np.float32)
    text = r"balanced_ring_attention: q='float32\[3,1,1\].*': expected an even number of positions, on the mesh"
    with pytest.raises(NotImplementedError, match=text):
        simulated(functools.partial(balanced_ring_attention, axis_name=axes, causal=True), mesh, x, x, x)
    assert not simulated(functools.partial(balanced_ring_attention, axis_name=axes), mesh, x, x, x).any()


def test_heads_that_do_not_divide() -> None:
    """Heads that are not as many for each participant are unsupported by the form that exchanges them."""
    mesh, axes = REVERSED
    x = np.zeros((2, 3, 2, 4, 1), np.float32)
    text = r"heads_attention: q='float32\[2,4,1\].*': expected a number of heads that is a multiple of 6, on the mesh"
    with pytest.raises(NotImplementedError, match=text):
        simulated(functools.partial(heads_attention, axis_name=axes), mesh, x, x, x)
