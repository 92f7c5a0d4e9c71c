"""Devices that disagree about their next collective, as the simulate engine reports them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import CollectiveMismatch, UnequalReplicas, simulate

MESH = AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto, AxisType.Auto))
X = np.arange(16, dtype=np.float32).reshape(8, 2)
BOTH = ("dp", "tp")


def run(body: Callable[..., Any], **options: Any) -> Any:
    """The body's result on eight devices, one row each."""
    mapped = {"in_specs": P(BOTH), "out_specs": P(BOTH)} | options
    return simulate(jax.shard_map(body, mesh=MESH, **mapped), X)


def line_of(function: Callable[..., Any], text: str) -> int:
    """The number of the first line of a function's source that contains `text`."""
    lines = Path(__file__).read_text().splitlines()
    start = function.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[start - 1 :], start=start) if text in line)


def permute_under_cond(x: Any) -> Any:
    """A permute that half of its participants skip."""

    def send(x: Any) -> Any:
        return lax.ppermute(x, "tp", [(0, 1)])

    return lax.cond(lax.axis_index("tp") < 2, send, lambda x: x, x)


def test_a_branch_without_the_collective() -> None:
    """A permute that only some participants reach names both devices and both places."""
    with pytest.raises(CollectiveMismatch) as error:
        run(permute_under_cond)
    here, cond = line_of(permute_under_cond, "lax.ppermute"), line_of(permute_under_cond, "lax.cond")
    text = str(error.value)
    assert text.startswith("ppermute over ('tp',) on the mesh (dp=2, tp=4): devices of one group disagree")
    assert re.search(rf"device \(dp=0, tp=0\) is at ppermute \(.*test_simulate_divergence.py:{here}\b", text)
    assert re.search(
        rf"device \(dp=0, tp=2\) reaches the end of branch 0 of the cond \(.*:{cond}\b.*\) without one$", text
    )


def same_collective_twice(x: Any) -> Any:
    """The same all-gather on both ways, which are different all-gathers."""

    def first(x: Any) -> Any:
        return lax.all_gather(x, BOTH).sum(0)

    def second(x: Any) -> Any:
        return lax.all_gather(x, BOTH).sum(0) * 2

    return lax.cond(lax.axis_index("dp") == 0, first, second, x)


def test_the_same_collective_in_both_branches() -> None:
    """Equal collectives in two branches are two collectives: each device waits at its own."""
    with pytest.raises(CollectiveMismatch) as error:
        run(same_collective_twice)
    places = [line_of(same_collective_twice, "sum(0)"), line_of(same_collective_twice, "* 2")]
    text = str(error.value)
    assert re.search(rf"device \(dp=1, tp=0\) is at all_gather \(.*:{places[1]}\b", text)
    assert re.search(rf"device \(dp=0, tp=0\) is at all_gather \(.*:{places[0]}\b.*\), in branch", text)


def test_a_loop_that_some_leave_early() -> None:
    """A collective in a loop whose length differs within its group is reported when the first device has left."""

    def body(x: Any) -> Any:
        start = lax.pcast(jnp.int32(0), BOTH, to="varying")
        step = lambda c: (c[0] + 1, lax.all_gather(c[1], "tp").sum(0))  # noqa: E731
        return lax.while_loop(lambda c: c[0] <= lax.axis_index("tp"), step, (start, x))[1]

    with pytest.raises(CollectiveMismatch, match=r"device \(dp=0, tp=1\) is at all_gather .*tp=0\) .*the loop"):
        run(body)


def test_mapped_loops_inside_of_one_that_some_left() -> None:
    """A mapped loop runs for as long as one of its batch must: also where only some devices came that far."""

    def doubled_until(limit: Any) -> Callable[[Any], Any]:
        return lambda x: lax.while_loop(lambda y: y < limit, lambda y: 2 * y + 1, x)

    def rounds(x: Any) -> Any:
        own = lax.axis_index(BOTH).astype(x.dtype)
        return lax.while_loop(lambda y: y < 20 * own, lambda y: doubled_until(7 * own)(y) + 1, x)

    def alone(x: float, own: int) -> float:
        while x < 20 * own:
            while x < 7 * own:
                x = 2 * x + 1
            x += 1
        return x

    expected = [[alone(float(x), own) for x in row] for own, row in enumerate(X)]
    np.testing.assert_array_equal(run(jax.vmap(jax.vmap(rounds))), expected)


def test_a_predicate_with_a_collective() -> None:
    """The loop's own predicate may hold the collective."""

    def body(x: Any) -> Any:
        limit = lax.axis_index("dp").astype(x.dtype)
        keep = lambda c: lax.pmax(c[0] - limit, "tp") < 3  # noqa: E731
        start = lax.pcast(jnp.float32(0), ("dp", "tp"), to="varying")
        return lax.while_loop(keep, lambda c: (c[0] + 1, c[1] + 1), (start, x))[1]

    assert (run(body) - X).tolist() == [[3, 3]] * 4 + [[4, 4]] * 4


def test_groups_that_agree() -> None:
    """A group that agrees within itself is no deadlock, whether given by axis or by axis_index_groups."""

    def by_axis(x: Any) -> Any:
        return lax.cond(lax.axis_index("dp") == 0, lambda x: lax.ppermute(x, "tp", [(0, 1), (1, 0)]), lambda x: x, x)

    def by_groups(x: Any) -> Any:
        gather = lambda x: lax.all_gather(x, "tp", axis_index_groups=[[0, 1], [2, 3]]).sum(0)  # noqa: E731
        return lax.cond(lax.axis_index("tp") < 2, gather, lambda x: x, x)

    expected = np.concatenate([X[[1, 0]], 0 * X[:2], X[4:]])
    assert run(by_axis).tolist() == expected.tolist()
    pairs = X.reshape(2, 4, 2).copy()
    pairs[:, :2] = pairs[:, :2].sum(1, keepdims=True)
    assert run(by_groups).tolist() == pairs.reshape(8, 2).tolist()


def test_groups_that_do_not() -> None:
    """A group of axis_index_groups that a predicate splits is a deadlock."""

    def body(x: Any) -> Any:
        gather = lambda x: lax.all_gather(x, "tp", axis_index_groups=[[0, 2], [1, 3]]).sum(0)  # noqa: E731
        return lax.cond(lax.axis_index("tp") < 2, gather, lambda x: x, x)

    with pytest.raises(CollectiveMismatch, match=r"device \(dp=0, tp=0\) is at .* device \(dp=0, tp=2\) reaches"):
        run(body)


def test_a_collective_after_the_branches_meet() -> None:
    """Behind a cond all devices are together again."""

    def body(x: Any) -> Any:
        x = lax.cond(lax.axis_index("tp") < 2, lambda x: x * 2, lambda x: x, x)
        return lax.psum(x, BOTH)

    assert run(body, out_specs=P()).tolist() == [[56 + 20, 64 + 24]]


def test_a_type_that_lies() -> None:
    """A result that is typed invariant and differs between devices is refused, with the devices' names."""

    def body(x: Any) -> Any:
        return lax.pmax(x, "tp", axis_index_groups=[[0, 1], [2, 3]])

    with pytest.raises(UnequalReplicas, match=r"\(dp=0, tp=2\) does not hold what \(dp=0, tp=0\) holds, made by "):
        run(body, out_specs=P("dp"))


def test_unchecked_types() -> None:
    """Without check_vma the first replica is believed."""
    assert run(lambda x: x, out_specs=P(), check_vma=False).tolist() == X[:1].tolist()
