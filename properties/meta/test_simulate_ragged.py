"""`ragged_all_to_all` in the simulate engine, which XLA's CPU backend cannot run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import RaggedMetadata, simulate


def exchange(p: int, **options: Any) -> Any:
    """`ragged_all_to_all` over p devices, on global arrays whose first dimension they share out."""
    mesh = AbstractMesh((p,), ("x",), axis_types=(AxisType.Auto,))

    def body(*args: Any) -> Any:
        return lax.ragged_all_to_all(*args, axis_name="x", **options)

    return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))


def arrays(*rows: Any) -> list[np.ndarray]:
    """operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, of all devices one after the other."""
    return [np.array(row, np.float32 if i < 2 else np.int32) for i, row in enumerate(rows)]


# Device 0 sends 1 row to itself and 2 rows to device 1, which sends 1 row to each.
OPERAND, OUTPUT = [1, 2, 2, 3, 4, 0], [0] * 8
STARTS, SENT, TARGETS, RECEIVED = [0, 1, 0, 1], [1, 2, 1, 1], [0, 0, 1, 2], [1, 1, 2, 1]


def test_example() -> None:
    """The rows arrive where their senders say, and all others keep the output."""
    result = simulate(exchange(2), *arrays(OPERAND, [9] * 8, STARTS, SENT, TARGETS, RECEIVED))
    assert result.tolist() == [1, 3, 9, 9, 2, 2, 4, 9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"RECEIVED": [1, 1, 1, 1]},
            r"device \(x=0\) sends 2 rows to device \(x=1\), which expects 1 \(send_sizes and",
        ),
        ({"STARTS": [0, 2, 0, 1]}, r"device \(x=0\) sends rows \[2, 4\) to device \(x=1\): its operand has 3 rows"),
        ({"TARGETS": [0, 0, 4, 2]}, r"device \(x=1\) writes rows \[4, 5\) of device \(x=0\), whose output has 4 rows"),
        ({"TARGETS": [0, 0, 1, 1]}, r"devices \(x=0\) and \(x=1\) both write row 1 of device \(x=1\)"),
        (
            {"SENT": [1, -1, 1, 1], "RECEIVED": [1, 1, -1, 1]},
            r"device \(x=0\) sends -1 rows to device \(x=1\): expected",
        ),
    ],
)
def test_contradictions(change: dict[str, list[int]], message: str) -> None:
    """Metadata that contradicts itself is an error that names the devices and the numbers."""
    lists = {"STARTS": STARTS, "SENT": SENT, "TARGETS": TARGETS, "RECEIVED": RECEIVED} | change
    with pytest.raises(RaggedMetadata, match=message):
        simulate(exchange(2), *arrays(OPERAND, OUTPUT, *lists.values()))


def test_under_a_branch() -> None:
    """Devices that are not there send nothing, and their metadata is not looked at."""
    mesh = AbstractMesh((2, 2), ("y", "x"), axis_types=(AxisType.Auto,) * 2)

    def body(*args: Any) -> Any:
        bad = jnp.where(lax.axis_index("y") == 1, 99, 0)
        send = lambda *args: lax.ragged_all_to_all(*args, axis_name="x")  # noqa: E731
        operand, output, starts, *rest = args
        return lax.cond(lax.axis_index("y") == 0, send, lambda *a: a[1], operand, output, starts + bad, *rest)

    args = [np.concatenate([a, a]) for a in arrays(OPERAND, [9] * 8, STARTS, SENT, TARGETS, RECEIVED)]
    result = simulate(jax.shard_map(body, mesh=mesh, in_specs=P(("y", "x")), out_specs=P(("y", "x"))), *args)
    assert result.tolist() == [1, 3, 9, 9, 2, 2, 4, 9] + [9] * 8
