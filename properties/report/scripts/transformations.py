"""The transformations around a call, in plain JAX, as they stand in a script."""

from collections.abc import Sequence

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import DIVERGENT, FED, LINKS, Chain
from shardproof.properties.cases.manual import dividing_axis
from shardproof.properties.programs.feeding import fed_operands
from shardproof.properties.report.scripts.modes import BESIDE_ZEROS, ONE_AT_A_TIME

ZEROS = '''def zeros(aval):
    """Zeros of this shape, dtype and type: a loop keeps the varying axes that it starts with."""
    axes = tuple(aval.manual_axis_type.varying)
    value = jnp.zeros(aval.shape, aval.dtype)
    return lax.pcast(value, axes, to="varying") if axes else value


def result_types(f, *blocks):
    """What `f` returns, found by tracing it."""
    return list(jax.make_jaxpr(f)(*blocks).out_avals)'''

WHILE = '''def in_a_while_loop(f):
    """Calls `f` on each input of the batch, in a while loop."""

    def loop(*batch):
        held = [jnp.broadcast_to(zeros(t), (len(batch[0]), *t.shape)) for t in result_types(f, *[x[0] for x in batch])]

        def step(state):
            i, held = state
            ys = jax.tree.leaves(f(*[lax.dynamic_index_in_dim(x, i, keepdims=False) for x in batch]))
            return i + 1, [lax.dynamic_update_index_in_dim(h, y, i, 0) for h, y in zip(held, ys, strict=True)]

        return lax.while_loop(lambda state: state[0] < len(batch[0]), step, (jnp.int32(0), held))[1]

    return loop'''

COND = '''def under_cond(f):
    """Calls `f` on the first input of the batch only; the other result is zeros."""

    def choose(*batch):
        types = result_types(f, *[x[0] for x in batch])

        def step(carry, inputs):
            flag, xs = inputs
            return carry, lax.cond(
                flag, lambda xs: jax.tree.leaves(f(*xs)), lambda xs: [zeros(t) for t in types], xs
            )

        return lax.scan(step, 0, (jnp.array([True, False]), batch))[1]

    return choose'''

SCAN = '''def in_a_scan(f):
    """Calls `f` on each input of the batch, in a scan."""
    return lambda *batch: lax.scan(lambda carry, xs: (carry, f(*xs)), 0, batch)[1]'''

VMAP_LAST = '''def over_the_last(f):
    """Calls `f` on a batch that is the last dimension."""

    def mapped(*batch):
        last = [jnp.moveaxis(x, 0, -1) for x in batch]
        return jax.tree.map(lambda y: jnp.moveaxis(y, -1, 0), jax.vmap(f, in_axes=-1, out_axes=-1)(*last))

    return mapped'''

FIRST = '''def over_the_first(f):
    """Calls `f` on a batch of its first operand; the others are the same for all of it."""
    return lambda x, *others: jax.vmap(f, in_axes=(0, *[None] * len(others)))(x, *others)'''

OTHERS = '''def over_the_others(f):
    """Calls `f` on a batch of all operands but the first, which is the same for all of it."""
    return lambda x, *others: jax.vmap(f, in_axes=(None, *[0] * len(others)))(x, *others)'''

TWICE = '''def twice(f):
    """Calls `f` on one input of the batch, then on the other."""

    def one_by_one(*batch):
        results = [f(*[x[i] for x in batch]) for i in range(len(batch[0]))]
        return jax.tree.map(lambda *ys: jnp.stack(ys), *results)

    return one_by_one'''

SWITCH = '''def under_switch(f):
    """Calls `f` in the second of three branches; the others are zeros."""

    def choose(*blocks):
        types = result_types(f, *blocks)
        index = lax.optimization_barrier(jnp.int32(1))  # which a compiler does not know
        nothing = lambda *blocks: [zeros(t) for t in types]
        return lax.switch(index, [nothing, lambda *blocks: jax.tree.leaves(f(*blocks)), nothing], *blocks)

    return choose'''

IN_TURN = '''def in_turn(f):
    """Calls `f` on one input of the batch, then on one chosen between the other and what the first call gave."""

    def fed(results, x):  # by a result that varies no further, which would change the operand's type
        varying = lambda x: jax.typeof(x).manual_axis_type.varying
        fitting = [y for y in results if varying(y) <= varying(x) and y.dtype == x.dtype and y.size]
        itself = lax.optimization_barrier(jnp.bool_(True))  # which a compiler does not know
        return jnp.where(itself, x, fitting[0].ravel()[0]) if fitting else x

    def one_by_one(*batch):
        first = f(*[x[0] for x in batch])
        second = f(*[fed(jax.tree.leaves(first), x[1]) for x in batch])
        return jax.tree.map(lambda *ys: jnp.stack(ys), first, second)

    return one_by_one'''

FEEDING = '''def fed(f, places):
    """Calls `f`, and again on what that gave: `places` says which operand is which of its results."""

    def again(*blocks):
        results = jax.tree.leaves(f(*blocks))
        varying = lambda x: jax.typeof(x).manual_axis_type.varying

        def like(x, y):  # as the operand, which a result may vary less than
            axes = tuple(varying(x) - varying(y))
            return lax.pcast(y, axes, to="varying") if axes else y

        return f(*[like(x, results[places[i]]) if i in places else x for i, x in enumerate(blocks)])

    return again'''

CAST = '''def as_varying_as(index, blocks):
    """The blocks, cast to vary wherever the index does."""
    axes = set(jax.typeof(index).manual_axis_type.varying)
    missing = [tuple(axes - set(jax.typeof(x).manual_axis_type.varying)) for x in blocks]
    return [lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(blocks, missing, strict=True)]'''

BRANCHES_APART = '''def in_branches(f, axis, number):
    """Calls `f` in every branch of a switch: devices along the axis take the next one each."""

    def branch(i):  # they differ, or a compiler makes one of all
        return lambda *blocks: jax.tree.leaves(f(*(blocks if i == 0 else map(lax.optimization_barrier, blocks))))

    def choose(*blocks):
        index = lax.axis_index(axis)
        return lax.switch(index % number, [branch(i) for i in range(number)], *as_varying_as(index, blocks))

    return choose'''

STEPS_APART = '''def for_one_step_or_two(f, axis):
    """Calls `f` in every step of a while loop, of which devices along the axis make one or two by turns."""

    def loop(*blocks):
        steps = 1 + lax.axis_index(axis) % 2
        blocks = as_varying_as(steps, blocks)
        held = [zeros(t) for t in result_types(f, *blocks)]
        step = lambda state: (state[0] + 1, state[1], jax.tree.leaves(f(*state[1])))
        return lax.while_loop(lambda state: state[0] < steps, step, (jnp.int32(0), blocks, held))[2]

    return loop'''

DEFINITIONS: dict[str, Sequence[str]] = {
    "while_loop": (ZEROS, WHILE),
    "cond": (ZEROS, COND),
    "scan": (SCAN,),
    "switch": (ZEROS, SWITCH),
    "divergent_cond": (CAST, BRANCHES_APART),
    "divergent_switch": (CAST, BRANCHES_APART),
    "divergent_while": (ZEROS, CAST, STEPS_APART),
    "twice": (TWICE,),
    "in_turn": (IN_TURN,),
    FED: (FEEDING,),
    "vmap_first": (FIRST,),
    "vmap_others": (OTHERS,),
    "vmap_last": (VMAP_LAST,),
    "jacobian": (BESIDE_ZEROS,),
    "apart": (ONE_AT_A_TIME,),
}
APART = {
    "divergent_cond": "in_branches({}, {!r}, 2)",
    "divergent_switch": "in_branches({}, {!r}, 3)",
    "divergent_while": "for_one_step_or_two({}, {!r})",
}
CALLS = {
    "inner_jit": "jax.jit",
    "checkpoint": "jax.checkpoint",
    "vmap": "jax.vmap",
    "vmap_last": "over_the_last",
    "vmap_first": "over_the_first",
    "vmap_others": "over_the_others",
    "twice": "twice",
    "in_turn": "in_turn",
    "switch": "under_switch",
    "scan": "in_a_scan",
    "while_loop": "in_a_while_loop",
    "cond": "under_cond",
}
LISTS = ("while_loop", "cond", "switch", *DIVERGENT)
"""Those whose result is a list of arrays, whatever the function returns."""


def definitions(chain: Chain) -> list[str]:
    """The functions that a script needs for its transformations."""
    texts = dict.fromkeys(text for name in chain for text in DEFINITIONS.get(name, ()))
    return [line for text in texts for line in (*text.split("\n"), "", "")]


def called(case: Case) -> str:
    """The expression that is called with the blocks."""
    text = "call"
    for name in reversed(case.chain):
        if name == "vmap_named":
            text = f'jax.vmap({text}, axis_name="batch")'
        elif name in APART:
            text = APART[name].format(text, dividing_axis(case))
        elif name == FED:
            text = f"fed({text}, {dict(fed_operands(case))})"
        elif not LINKS[name].whole:
            text = f"{CALLS[name]}({text})"
    return text
