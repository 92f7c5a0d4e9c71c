"""The reader of compiled text: texts saved from two versions of JAX and XLA:TPU, and the interpreter.

The texts of `saved_hlo` came from XLA:CPU under JAX 0.10.2 and 0.12.0.1 (8 devices, mesh a=2, b=4) and from
libtpu 0.0.42 for v5e and v6e; what is not read was cut out. `wrapped_by_hand` is our own, of a form that
neither of these compilers printed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.properties.communication.counted import Unknown, of_compiled, of_record
from shardproof.properties.communication.hlo import CompiledCollective, collectives
from shardproof.properties.communication.text import HloError, Shape, arrays, read, replica_groups
from shardproof.properties.engines import simulate

SAVED = Path(__file__).parent / "saved_hlo"
ALONG_B = ((0, 1, 2, 3), (4, 5, 6, 7))
ALONG_A = ((0, 4), (1, 5), (2, 6), (3, 7))
RING = ((0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4))
CPU = ("cpu_jax_0.10.2", "cpu_jax_0.12")


def saved(name: str) -> str:
    """A saved text."""
    return (SAVED / f"{name}.txt").read_text()


def found(name: str) -> list[CompiledCollective]:
    """The collectives of a saved text."""
    return collectives(saved(name))


@pytest.mark.parametrize("end", CPU)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tuple_order", [("all_reduce", 32, 1, ((0, 4, 1, 5, 2, 6, 3, 7),), 1)]),
        ("combined", [("all_reduce", 40, 2, ALONG_B, 1), ("all_reduce", 32, 1, ALONG_A, 1)]),
        ("all_to_all", [("all_to_all", 128, 1, ALONG_B, 1)]),
        ("fori", [("permute", 32, 1, RING, 3)]),
        ("scan", [("all_reduce", 16, 1, ALONG_A, 6), ("permute", 16, 1, tuple(p for p in RING if p[0] % 4 != 3), 6)]),
        ("while", [("all_reduce", 128, 1, ALONG_B, 0)]),
        ("cond", [("all_reduce", 32, 1, ALONG_B, 1), ("permute", 32, 1, ((0, 1), (4, 5)), 0)]),
    ],
)
def test_texts_of_the_cpu(end: str, name: str, expected: list[Any]) -> None:
    """Kinds, bytes, groups and trips are read from the text of either version."""
    assert [
        (c.kind, c.operand_bytes, c.operands, c.groups or c.pairs, c.times) for c in found(f"{end}_{name}")
    ] == expected


@pytest.mark.parametrize("end", CPU)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", [(128, 64), (128, 64)]),
        ("bf16_permute", [(32, 16)]),
        ("int4", [(3, 2)]),
        ("own_conversion", [(32, 32)]),
    ],
)
def test_promoted_types(end: str, name: str, expected: list[tuple[int, int]]) -> None:
    """A type that the compiler widened has both sizes, and one that the program widened has one."""
    assert [(c.operand_bytes, c.own_bytes) for c in found(f"{end}_{name}")] == expected
    counted = of_compiled(saved(f"{end}_{name}"))
    assert counted.cost.bytes.total() == sum(own for _, own in expected)
    assert bool(counted.notes) == any(wide != own for wide, own in expected)


@pytest.mark.parametrize("end", CPU)
def test_what_moves_nothing(end: str) -> None:
    """Collectives of one participant are read as moving nothing."""
    assert [c.kind for c in found(f"{end}_one_participant")] == ["all_reduce", "permute", "all_gather"]
    assert all(c.moves_nothing for c in found(f"{end}_one_participant"))
    assert not any(c.moves_nothing for c in found(f"{end}_scan"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tpu_v5e_combined", [("all_reduce", 2097152, 1, "synchronous"), ("all_reduce", 2097160, 2, "synchronous")]),
        ("tpu_v5e_all_to_all_start", [("all_to_all", 8388608, 1, "start and done")]),
        ("tpu_v5e_ragged", [("ragged_all_to_all", 4096, 1, "synchronous")]),
        ("tpu_v6e_ring", [("permute", 4194304, 1, "start and done")] * 3),
        ("tpu_v6e_fused_all_gather", [("all_gather", 8388608, 1, "fused asynchronously")]),
        (
            "tpu_v5e_reduce_scatter",
            [("all_reduce", 8650752, 1, "synchronous"), ("permute", 196608, 1, "start and done")],
        ),
        (
            "wrapped_by_hand",
            [("all_gather", 128, 1, "wrapped in async-start"), *[("permute", 128, 1, "synchronous")] * 2],
        ),
    ],
)
def test_forms(name: str, expected: list[Any]) -> None:
    """Started, wrapped and fused collectives count once, and a computation called twice counts twice."""
    assert [(c.kind, c.operand_bytes, c.operands, c.form) for c in found(name)] == expected


def test_unknown_totals() -> None:
    """Loops of unknown length and branches that differ leave the total unknown."""
    with pytest.raises(Unknown, match=r"does not say how often the loop while\.12 runs$"):
        of_compiled(saved("tpu_v5e_fori"))
    with pytest.raises(Unknown, match=r"^the branches of conditional\.1"):
        of_compiled(saved("cpu_jax_0.12_cond"))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ()),
        ("[4,2]<=[2,4]T(1,0)", ALONG_A),
        ("mesh['a'=2,'b'=4] {'a'}", ALONG_A),
        ("mesh['a'=2,'b'=4] {'b'}", ALONG_B),
        ("mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", ALONG_A),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        # `(m)k` is the part of size k behind the first m of an axis
        ("mesh['dp'=4,'fsdp'=2] {'dp':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['dp'=4,'fsdp'=2] {'dp':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(4)2,'a':(1)2}", ((0, 4, 1, 5), (2, 6, 3, 7))),
    ],
)
def test_replica_groups(text: str, groups: Any) -> None:
    """Every spelling of groups is read as the same groups."""
    assert replica_groups(text) == groups


def test_the_devices_of_a_mesh_are_behind_a_comma() -> None:
    """A mesh in another device order names the same groups."""
    text = saved("cpu_jax_0.12_scan")
    other = "replica_groups=mesh['b'=4,'a'=2], device_ids=([2,4]T(1,0)) {'a'}"
    turned = text.replace("replica_groups=mesh['a'=2,'b'=4] {'a'}", other)
    assert turned != text
    assert [c.groups for c in collectives(turned)] == [c.groups for c in collectives(text)]


@pytest.mark.parametrize("text", ["", "{0,1", "[2,4]<=[7]", "mesh['a'=2] {'c'}"])
def test_groups_that_cannot_be_read(text: str) -> None:
    """An unknown spelling of groups is refused."""
    with pytest.raises(HloError):
        replica_groups(text)


def test_types() -> None:
    """The bytes of a type are those of its elements, packed below a byte, whatever its layout."""
    assert list(arrays("(f32[2,4]{1,0:T(8,128)(2,1)S(1)}, (pred[], bf16[3]{0}), token[])"))[:3] == [
        Shape("f32", (2, 4)),
        Shape("pred", ()),
        Shape("bf16", (3,)),
    ]
    sizes = {"s4[3]{0:E(4)}": 2, "f8e4m3fn[5]": 5, "f4e2m1fn[3]": 2, "c64[2]": 16, "f32[0]": 0, "u8[<=4]": 4}
    assert {text: next(arrays(text)).bytes for text in sizes} == sizes
    for wrong in ("f32", "x32[2]", "f32[a]"):
        with pytest.raises(HloError):
            assert sum(shape.bytes for shape in arrays(wrong))


BEFORE = "  %x = f32[4]{0} parameter(0)"


@pytest.mark.parametrize(
    "line",
    [
        "ROOT %r = f32[4]{0} all-reduce(%x), to_apply=%add",
        "ROOT %r = f32[4]{0} all-reduce(%y), replica_groups={{0,1}}, to_apply=%add",
        "ROOT %r = f32[8]{0} all-gather(%x), replica_groups=some, dimensions={0}",
        "ROOT %r = f32[8]{0} all-new(%x), replica_groups={{0,1}}",
        "ROOT %r = f32[8]{0} fusion(%x), kind=kLoop, calls=%missing",
        'ROOT %r = f32[4]{0} send(%x), frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1}}"}',
    ],
)
def test_what_cannot_be_read_names_the_line(line: str) -> None:
    """A collective that cannot be read raises an error with its line."""
    with pytest.raises(HloError) as error:
        collectives(f"HloModule m\n\nENTRY %main (x: f32[4]) -> f32[4] {{\n{BEFORE}\n  {line}\n}}\n")
    assert line.removeprefix("ROOT ") in str(error.value)


def test_texts_that_are_none() -> None:
    """A text without ENTRY, one that ends too soon and a line that is no instruction are refused."""
    for text in ("", "HloModule m\n", "ENTRY %m (x: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n"):
        with pytest.raises(HloError):
            read(text)
    with pytest.raises(HloError, match="not an instruction: what is this"):
        read("ENTRY %m () -> f32[] {\n  what is this\n}\n")


def mesh() -> Any:
    """Two axes over eight devices."""
    return jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def ring(x: jax.Array) -> jax.Array:
    """A permute along b."""
    return lax.ppermute(x, "b", [(i, (i + 1) % 4) for i in range(4)])


PROGRAMS: dict[str, Callable[[jax.Array], Any]] = {
    "all_reduce_over_a_tuple": lambda x: lax.psum(x, ("b", "a")),
    "combined": lambda x: (lax.psum(x, "b"), lax.psum(x[0], "b")),
    "bfloat16": lambda x: lax.psum(x.astype(jnp.bfloat16), "b"),
    "all_to_all": lambda x: lax.all_to_all(x, "b", 0, 0, tiled=True),
    "scatter": lambda x: lax.psum_scatter(x, "b", tiled=True),
    "nested": lambda x: lax.fori_loop(0, 2, lambda i, c: lax.fori_loop(0, 3, lambda j, d: ring(d) * 2, c) + i, x),
    "scan": lambda x: lax.scan(lambda c, y: (ring(c) + y, None), x[0], x)[0],
    "equal_branches": lambda x: lax.cond(x[0, 0] > 0, lambda x: ring(x), lambda x: ring(x) * 2, x),
    "groups": lambda x: lax.all_gather(x, "b", axis_index_groups=[[0, 3], [1, 2]]),
}


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_compiler_and_the_interpreter_agree(devices: int, name: str) -> None:
    """The compiler and the interpreter count the same collectives and bytes."""
    function = jax.shard_map(PROGRAMS[name], mesh=mesh(), in_specs=P(None, "b"), out_specs=P(), check_vma=False)
    x = np.ones((8, 16), np.float32)
    text = jax.jit(function).lower(jax.device_put(x, NamedSharding(mesh(), P(None, "b")))).compile().as_text()
    compiled = of_compiled(str(text))
    interpreted = of_record(simulate.prepare(function, x, mesh=mesh()).run_recorded(x)[1])
    assert compiled.separate is not None
    assert compiled.separate.counts == interpreted.cost.counts
    assert compiled.separate.bytes == interpreted.cost.bytes


def one_after_the_other(x: Any) -> Any:
    """A half that is only sent when the other has arrived."""
    first = ring(x[:2])
    second, _ = lax.optimization_barrier((x[2:], first))
    return first, ring(second)


@pytest.mark.parametrize(
    ("function", "rounds"),
    [
        (lambda x: (ring(x[:2]), ring(x[2:])), [1, 1]),
        (lambda x: ring(ring(x)), [1, 2]),
        (one_after_the_other, [1, 2]),
        (lambda x: lax.fori_loop(0, 2, lambda _, y: ring(y), x), [1, 2]),
        (lambda x: lax.cond(lax.psum(x, ("a", "b")).sum() > 0, ring, lambda x: x, x), [1, 2]),
    ],
)
def test_rounds(function: Any, rounds: list[int]) -> None:
    """A collective is one round after the last one that it depends on."""
    shape = jax.sharding.AbstractMesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    mapped = jax.shard_map(function, mesh=shape, in_specs=P(), out_specs=P(), check_vma=False)
    record = simulate.prepare(mapped, np.ones(4, np.float32)).run_recorded(np.ones(4, np.float32))[1]
    assert sorted(c.round for c in record.collectives) == rounds
    assert record.rounds == of_record(record).rounds == rounds[-1]
