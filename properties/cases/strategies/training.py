"""Steps of training."""

from hypothesis import strategies as st

from shardproof.properties.cases.strategies.axes import axis_tuples
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.meshes import meshes
from shardproof.properties.cases.training import NARROW, Trial


@st.composite
def trials(
    draw: st.DrawFn, *, max_devices: int, available: int, masked: bool, sharded: bool, max_steps: int = 10
) -> Trial:
    """Steps of training, one in four of them a single one in 16 bits; shrinks to one device and one step in float64.

    Two disjoint axis tuples are drawn, in any order, and sizes that they divide where they must.

    Arguments:
        max_devices: of the largest mesh.
        available: devices to draw from.
        masked: whether the step takes its examples in microbatches, of which some do not count.
        sharded: whether sizes must be multiples of the participants.
        max_steps: the most steps that are taken, as many as are taken in float64.

    Example:
        Trial(mesh={'dp': 2, 'tp': 2}, data=('dp',), model=('tp',), sizes=(4, 4), examples=8, microbatches=2)
    """
    mesh = draw(meshes(max_devices=max_devices, available=available), label="mesh")
    data = draw(axis_tuples(mesh), label="data")
    others = [name for name in mesh.axis_names if name not in data]
    model = tuple(draw(st.permutations(others), label="model")[: draw(st.integers(0, len(others)))])
    both = mesh.axis_size(data) * mesh.axis_size(model)
    unit = both if sharded else 1
    depth = draw(st.integers(1, 2), label="depth")
    sizes = tuple(unit * draw(st.integers(1, 2 if unit > 1 else 5)) for _ in range(depth + 1))
    # of one microbatch, "reduced once" says nothing
    microbatches = draw(sampled((2, 3, 2, 3, 1)), label="microbatches") if masked else 1
    examples = both * microbatches * draw(st.integers(1, 2), label="examples")
    seed = draw(st.integers(0, 999), label="seed")
    trial = Trial(mesh, data, model, sizes, examples, microbatches, max_steps, seed)
    dtype = draw(sampled(("float64", "float64", *NARROW)), label="dtype")
    single = Trial(mesh, data, model, (sizes[0], sizes[-1]), examples, microbatches, 1, seed, dtype)
    return single if dtype in NARROW and single.exact_in(dtype, mean=not masked) else trial
