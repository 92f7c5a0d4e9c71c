"""The three modes of sharding: automatic axes, explicit ones, and `shard_map`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.properties.laws.sharding_types import check_type
from shardproof.properties.laws.typed_calls import OPERATIONS, calls
from shardproof.properties.runner.excused_types import excused

TYPED = max(10, settings().max_examples // 4)
"""Calls of each operation: they are traced, and nothing is compiled."""


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=TYPED)
@given(data=st.data())
def test_a_result_on_explicit_axes_is_typed(operation: str, data: st.DataObject) -> None:
    """Its type is the one that follows from those of the operands, and there is none where none follows."""
    check_type(data.draw(calls(operation), label="call"), excused=excused)
