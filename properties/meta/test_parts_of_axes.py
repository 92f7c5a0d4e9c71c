"""Replica groups over a part of a mesh axis, as the compiler writes them where it exchanges along a part alone."""

import pytest

from shardproof.properties.communication.groups import replica_groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("mesh['dp'=4,'fsdp'=2] {'dp':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['dp'=4,'fsdp'=2] {'dp':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(4)2,'a':(1)2}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ],
)
def test_a_part_of_an_axis(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """`(m)k` is the part of size k behind the first m: the rest of the axis tells groups apart."""
    assert replica_groups(text) == groups
