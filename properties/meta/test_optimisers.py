"""Optimisers in every dtype, and what is planted in them."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.impl import optimisers
from shardproof.properties.laws.optimisers import Updates, check_updates
from shardproof.properties.laws.training import OPTIMISERS
from shardproof.properties.laws.violation import Broken
from shardproof.properties.mutants.optimisers import RIGHT, WRONG

DTYPES = ("float64", "float32", "bfloat16", "float16")


@pytest.mark.parametrize("name", OPTIMISERS)
@settings(max_examples=max(2, settings().max_examples // 50))
@given(data=st.data())
def test_updates(name: str, data: st.DataObject) -> None:
    """In every dtype updates are those of the definition, to the accumulator's rounding, and parameters round once."""
    steps, seed = data.draw(st.integers(1, 12), label="steps"), data.draw(st.integers(0, 999), label="seed")
    for dtype in DTYPES:
        check_updates(Updates(dtype, steps=steps, seed=seed), OPTIMISERS[name])


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, (*_, dtypes) in WRONG.items() for dtype in dtypes])
def test_planted(name: str, dtype: str) -> None:
    """A wrong optimiser is reported for its values, in the dtypes in which it is wrong."""
    of, make, _ = WRONG[name]
    with pytest.raises(Broken, match=r"step \d+: (update|parameter) \d is off by"):
        check_updates(Updates(dtype, steps=10), (make, OPTIMISERS[of][1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_odd(name: str, dtype: str) -> None:
    """A right one is not."""
    of, make = RIGHT[name]
    check_updates(Updates(dtype, steps=10), (make, OPTIMISERS[of][1]))


@pytest.mark.parametrize("momentum", [1.0, -0.1])
def test_fractions(momentum: float) -> None:
    """What is no fraction is refused by its name."""
    with pytest.raises(ValueError, match=r"^sgd: momentum=.*: expected a number in \[0, 1\)"):
        partial(optimisers.sgd, 0.1)(momentum=momentum)
