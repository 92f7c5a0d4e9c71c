"""Which form to use: by timelines, with the plain form where nothing is gained; and how near published figures are."""

from dataclasses import replace

import pytest

import shardproof
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts.products import SHARDED
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.choosing import Choice, choice, choose, forms
from shardproof.properties.performance.commands import agreement
from shardproof.properties.performance.commands.agreement import Pair, summary
from shardproof.properties.performance.compiled import known_of, recorded
from shardproof.properties.performance.modelled import Place, Work
from shardproof.properties.performance.shaped import KNOWN, laid_out_for, shaped
from shardproof.properties.performance.timeline import flops_in
from shardproof.properties.performance.tpu_compiler import Topology
from shardproof.properties.programs.implementations import IMPLEMENTATIONS


def test_the_plain_form_is_best_where_nothing_is_gained() -> None:
    """A product that waits for little is not cut; one whose operand takes as long to gather as to multiply is."""
    small = shardproof.choose("all_gather_matmul_lhs", ((32, 256), (256, 512)), "v5e")
    assert small.plain
    assert small.best.name == "naive"
    assert "v5e: naive, the plain form\n" in str(small)
    large = choose("all_gather_matmul_lhs", ((4096, 8192), (8192, 8192)), "v5e")
    assert not large.plain
    assert large.best.name == large.rows[0].implementation.name != "naive"
    assert f"v5e: {large.best.name}\n" in str(large)
    assert str(large).count("us exposed") + str(large).count("ms exposed") + str(large).count("0 exposed") >= 5


def test_what_is_chosen_is_the_fastest() -> None:
    """All forms are there, in the order of their times."""
    for mesh in (MeshCase(("tp",), (4,)), MeshCase(("dp", "tp"), (2, 2))):
        found = choose("matmul_reduce_scatter", ((512, 8192), (8192, 2048)), mesh=mesh)
        times = [row.total for row in found.rows]
        assert times == sorted(times)
        names = {row.implementation.name for row in found.rows} | {one.name for one, _ in found.unsupported}
        assert len(names) == 4


def test_a_form_that_rounds_more_often_says_so() -> None:
    """One may be the fastest because its sums travel in 16 bits."""
    chosen = choose("matmul_reduce_scatter", ((512, 2048), (2048, 512)), "v5e")
    said = {row.implementation.name: row.narrow for row in chosen.rows}
    assert {name for name, narrow in said.items() if narrow} == {
        "alternating_matmul_reduce_scatter",
        "paired_matmul_reduce_scatter",
    }
    assert str(chosen).count("rounds sums of 16-bit floats at every hop") == 2


def test_what_the_compiler_makes_of_it_decides() -> None:
    """Not the timelines, which have `joined` first; XLA's own is faster than any form on tpu7x, which is said."""
    whole = ((4096, 8192), (8192, 16384))
    found = choose("all_gather_matmul_rhs", whole, "tpu7x")
    assert found.compiled[0].topology == "tpu7x:2x2x1"
    assert found.left_to_compiler
    assert found.best.name in list(found.totals)[1:]
    assert f"tpu7x: XLA's own, of global arrays under jit; of these forms {found.best.name}\n" in str(found)
    assert "    XLA's own: 1.55 ms; forward 5.99, " in str(found)
    slower = choose("all_gather_matmul_lhs", whole, "v5e")
    assert not slower.left_to_compiler
    other = choose("all_gather_matmul_rhs", whole, replace(CHIPS["tpu7x"], link=1 + CHIPS["tpu7x"].link))
    assert (other.compiled, other.totals, other.best) == ((), {}, other.timed)


def test_both_ways_of_a_gradient_decide() -> None:
    """Or neither, where one of them is not recorded, which is said."""
    shapes = ((4096, 8192), (8192, 8192))
    found = choose("all_gather_matmul_lhs_contracting", shapes, "v5e", gradient=True)
    forward, backward = (known.forms for known in found.compiled)
    both = {name: forward[name].seconds + backward[name].seconds for name in forward}
    assert min(forward, key=lambda name: forward[name].seconds) != found.best.name == min(both, key=both.__getitem__)
    assert "naive: 3.29 ms; forward 1.76, 100% exposed; backward 1.40, 50% exposed" in str(found)
    wide = choose("all_gather_matmul_lhs", ((8192, 8192), (8192, 16384)), "v5p", gradient=True)
    assert wide.compiled == ()
    assert "  as XLA:TPU schedules it: backward is not recorded" in str(wide)


def test_of_equally_fast_forms_the_simpler_one_is_named() -> None:
    """`paired` is `joined` forward, and has no forward mode."""
    contract = "all_gather_matmul_rhs"
    found = choose(contract, ((8192, 8192), (8192, 16384)), "v5p")
    names = list(found.totals)
    assert found.totals[f"joined_{contract}"] == found.totals[f"paired_{contract}"]
    assert names.index(f"joined_{contract}") < names.index(f"paired_{contract}")
    assert found.best.name == f"joined_{contract}"


def test_a_schedule_is_of_the_same_blocks_and_chips() -> None:
    """All that is recorded is found by its case, and by no other."""
    for topology, model, shape, way, contract, _ in recorded():
        place = Place(Topology.parse(topology), model)
        case = Work(contract, shape, place, way).case()
        machine = CHIPS[place.topology.generation]
        found = known_of(case, machine, way)
        assert found is not None
        assert all(recorded()[topology, model, shape, way, contract, form] == one for form, one in found.forms.items())
        assert known_of(replace(case, params=(*case.params, ("other", 1))), machine, way) is None
        assert known_of(case, replace(machine, memory=1), way) is None
        operands = (replace(case.operands[0], dtype="float32"), *case.operands[1:])
        assert known_of(replace(case, operands=operands), machine, way) is None


@pytest.mark.lengthy
@pytest.mark.parametrize("contract", SHARDED)
@pytest.mark.parametrize("name", CHIPS)
def test_no_form_is_below_the_floor(contract: str, name: str) -> None:
    """Nothing is computed faster than unsharded, nor is all sent and a p-th computed in less."""
    for shapes in (None, *(_scaled(contract, factor) for factor in (1, 8))):
        found = choose(contract, shapes, name)
        assert all(found.ratio(row) >= found.floor for row in found.rows)
        assert all(0 <= row.exposed <= min(row.total, row.communication) for row in found.rows)


def _scaled(contract: str, factor: int) -> list[tuple[int, ...]]:
    sides = {"transformer_block": ((64, 128), (128, 256), (256, 128))}.get(contract, ((64, 128), (128, 256)))
    return [tuple(factor * side for side in shape) for shape in sides]


@pytest.mark.parametrize("contract", KNOWN)
def test_every_contract_has_a_choice(contract: str) -> None:
    """Of collectives, losses and layers as well; it is printed."""
    found = choose(contract)
    assert isinstance(found, Choice)
    assert found.rows
    assert all(row.total > 0 for row in found.rows)
    assert f"{contract}(" in str(found)


def test_arrays_are_laid_out_as_each_parallelisation_wants() -> None:
    """Of two axes the first is that of examples; one alone is that of what a form shares: examples, or features."""
    forms = {one.name: one for one in IMPLEMENTATIONS if one.contract == "mlp_loss"}
    both = shaped("mlp_loss", MeshCase(("dp", "tp"), (2, 4)), ("dp", "tp"))
    assert both.roles == (("data", ("dp",)), ("model", ("tp",)))
    assert [operand.block for operand in both.operands[-2:]] == [(8192, 1024), (8192, 1024)]
    laid_out = {name: laid_out_for(both, one.layouts) for name, one in forms.items()}
    assert {case.roles for case in laid_out.values()} == {both.roles}
    assert laid_out["tensor_parallel"].operands[0].placement.spec == (("tp",), ())
    assert [o.block for o in laid_out["tensor_parallel"].operands] == [
        *((256, 4096), (1024,), (1024, 1024), (256,)),
        *((4096, 256), (4096, 256)),
    ]
    assert [o.block for o in laid_out["data_parallel"].operands][-2:] == [(1024, 1024), (1024, 1024)]
    alone = shaped("mlp_loss", MeshCase(("tp",), (4,)), "tp")
    roles = {name: laid_out_for(alone, one.layouts).roles for name, one in forms.items()}
    assert roles["tensor_parallel"] == (("data", ()), ("model", ("tp",)))
    assert roles["fsdp_2d"] == roles["data_parallel"] == (("data", ("tp",)), ("model", ()))


def test_what_depends_on_data_has_no_timeline() -> None:
    """The form is named with the loop; the others are chosen from."""
    found = choose("moe_layer")
    assert [one.name for one, _ in found.unsupported] == ["chunked"]
    assert "chunked has no timeline: the iterations of the while at " in str(found)


def test_a_gradient_takes_longer() -> None:
    """It is scheduled after the function, which it repeats."""
    alone, both = (choose("all_gather_matmul_lhs", gradient=gradient) for gradient in (False, True))
    for row in alone.rows:
        with_gradient = next(other for other in both.rows if other.implementation is row.implementation)
        assert with_gradient.total > row.total


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"contract": "all_gather_matmul"}, "contract='all_gather_matmul': expected one of all_reduce"),
        ({"machine": "v5"}, "machine='v5': no such machine"),
        ({"axis_name": "dp"}, r"axis_name='dp': expected axes of the mesh \(tp=4\)"),
        (
            {"shapes": ((8, 6), (6, 4)), "contract": "all_gather_matmul_lhs_contracting"},
            "shape=8x6: expected sides that",
        ),
        ({"dtype": "int16"}, "dtype=int16: no published peak of it on v5e"),
        ({"mesh": MeshCase(("a", "b", "c"), (2, 2, 2))}, "v5e is a torus of 2 dimensions"),
    ],
)
def test_what_cannot_be_chosen_says_why(arguments: dict[str, object], reason: str) -> None:
    """The argument, its value and what was expected."""
    with pytest.raises(ValueError, match=reason):
        choose(**{"contract": "all_gather_matmul_lhs", **arguments})  # type: ignore[arg-type]


def test_shapes_are_of_whole_arrays() -> None:
    """Blocks are what the axis tuple leaves of them; the contract's own layouts."""
    case = shaped("all_gather_matmul_lhs", MeshCase(("dp", "tp"), (2, 4)), ("tp", "dp"), ((64, 16), (16, 8)))
    assert [operand.block for operand in case.operands] == [(8, 16), (16, 1)]
    assert case.operands[0].placement.spec == (("tp", "dp"), ())


PUBLISHED = (311, 244, 224)
"""Microseconds on v5e 4x2 of A[1024_X, 2048_Y] W[2048, 8192_Y] over two devices along X and four along Y: gathered and
multiplied, a collective matmul, and unsharded ("How to Scale Your Model", part 10)."""


def ratios_to_unsharded(dtype: str) -> tuple[float, float]:
    """Times of the naive form on a line of chips, as 4x2 has it, and of a ring, over that of the unsharded product.

    The published program multiplies integers of 32 bits, whose peak is not published: it follows from the third figure.
    """
    traced = forms(shaped("all_gather_matmul_lhs_contracting", MeshCase(("tp",), (4,)), "tp", dtype=dtype))
    machine = CHIPS["v5e"]
    if dtype == "int32":
        flops = flops_in(next(operations for one, operations in traced.operations if one.name == "naive"))
        machine = replace(machine, peak={**machine.peak, dtype: round(flops / (PUBLISHED[2] * 1e-6))})
    on_line, on_ring = choice(traced, replace(machine, link=machine.link // 2)), choice(traced, machine)
    naive = next(row for row in on_line.rows if row.implementation.name == "naive")
    ring = next(row for row in on_ring.rows if row.implementation.name.startswith("ring_"))
    return float(on_line.ratio(naive)), float(on_ring.ratio(ring))


def test_published_ratios_are_near_where_the_dtype_is_theirs() -> None:
    """311 : 244 : 224 follow to within a tenth at the published rate; in bfloat16 links are the limit."""
    gathered, collective, unsharded = PUBLISHED
    naive, ring = ratios_to_unsharded("int32")
    assert abs(naive - gathered / unsharded) < 0.1
    assert abs(ring - collective / unsharded) < 0.1
    assert ratios_to_unsharded("bfloat16")[0] > gathered / unsharded


def test_agreement_is_summed_up() -> None:
    """How far the two models are apart, and what it costs to choose by the one as the other has it."""
    work, other = ("all_gather_matmul_lhs", "book"), ("matmul_reduce_scatter", "book")
    found = [
        Pair(work, "naive", 2.0, 2.0, (0.5, 0.5)),
        Pair(work, "ring", 1.5, 3.0, (0.0, 0.25)),
        Pair(other, "naive", 3.0, 3.0, (0.5, 0.5)),
        Pair(other, "ring", 2.0, 2.2, (0.0, 0.1)),
    ]
    told = summary(found)
    assert told.startswith("4 programs: half of them within a factor of 1.10, all within 2.00; ")
    assert "is the compiler's in 1 of 2 products" in told
    assert told.endswith("1.22 times as long as the fastest on average, 1.50 at most")
    assert agreement.row(found[1]) == (*work, "ring", "1.50", "3.00", "0%", "25%")


def test_agreement_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is none a sentence says so."""
    monkeypatch.setattr(agreement, "missing", lambda: "there is no compiler for TPUs here")
    agreement.main([])
    assert capsys.readouterr().out == "there is no compiler for TPUs here\n"
