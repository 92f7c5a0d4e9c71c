"""The transformations around a call, in plain JAX, as they stand in a script."""

from collections.abc import Sequence

ZEROS = '''def zeros(aval):
    """Zeros of this shape, dtype and type: a loop keeps the varying axes that it starts with."""
    axes = tuple(aval.manual_axis_type.varying)
    value = jnp.zeros(aval.shape, aval.dtype)
    return lax.pcast(value, axes, to="varying") if axes else value


def result_types(*blocks):
    """What `call` returns, found by tracing it."""
    return list(jax.make_jaxpr(call)(*blocks).out_avals)'''

WHILE = '''def around(*batch):
    """Calls the implementation on each input of the batch, in a while loop."""
    held = [jnp.broadcast_to(zeros(t), (len(batch[0]), *t.shape)) for t in result_types(*[x[0] for x in batch])]

    def step(state):
        i, held = state
        ys = jax.tree.leaves(call(*[lax.dynamic_index_in_dim(x, i, keepdims=False) for x in batch]))
        return i + 1, [lax.dynamic_update_index_in_dim(h, y, i, 0) for h, y in zip(held, ys, strict=True)]

    return lax.while_loop(lambda state: state[0] < len(batch[0]), step, (jnp.int32(0), held))[1]'''

COND = '''def around(*batch):
    """Calls the implementation on the first input of the batch only; the other result is zeros."""
    types = result_types(*[x[0] for x in batch])

    def step(carry, inputs):
        flag, xs = inputs
        return carry, lax.cond(
            flag, lambda xs: jax.tree.leaves(call(*xs)), lambda xs: [zeros(t) for t in types], xs
        )

    return lax.scan(step, 0, (jnp.array([True, False]), batch))[1]'''

SCAN = '''def around(*batch):
    """Calls the implementation on each input of the batch, in a scan."""
    return lax.scan(lambda carry, xs: (carry, call(*xs)), 0, batch)[1]'''

VMAP_LAST = '''def around(*batch):
    """Calls the implementation on a batch that is the last dimension."""
    last = [jnp.moveaxis(x, 0, -1) for x in batch]
    return jax.tree.map(lambda y: jnp.moveaxis(y, -1, 0), jax.vmap(call, in_axes=-1, out_axes=-1)(*last))'''

DEFINITIONS: dict[str, Sequence[str]] = {
    "while_loop": (ZEROS, WHILE),
    "cond": (ZEROS, COND),
    "scan": (SCAN,),
    "vmap_last": (VMAP_LAST,),
}
CALLS = {"inner_jit": "jax.jit(call)", "checkpoint": "jax.checkpoint(call)", "vmap": "jax.vmap(call)"}
LISTS = ("while_loop", "cond")
"""Those whose result is a list of arrays, whatever `call` returns."""


def definitions(around: str) -> list[str]:
    """The functions that a script needs for a transformation."""
    return [line for text in DEFINITIONS.get(around, ()) for line in (*text.split("\n"), "", "")]


def called(around: str) -> str:
    """The expression that is called with the blocks."""
    return "around" if around in DEFINITIONS else CALLS.get(around, "call")
