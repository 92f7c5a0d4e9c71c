"""Claims about communication for users' own tests."""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from shardproof.properties.communication.hlo import collectives
from shardproof.properties.engines.simulate.collectives import COLLECTIVE_KINDS, axes_of
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.engines.simulate.jaxprs import open_jaxpr, subjaxprs


def no_communication(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Asserts that a function sends nothing from device to device.

    Both the trace and the compiled program are searched: a `shard_map` has collectives in its trace, and the compiler
    adds them to a function of global arrays.

    Arguments:
        fn: any function that `jax.jit` takes, or one under `jit` with its own shardings.
        *args: its arguments, or `jax.ShapeDtypeStruct`s with shardings in their place.
        **kwargs: as `*args`.

    Raises:
        AssertionError: listing the collectives.
        ValueError: if it runs on one device, where nothing can be sent.

    Warns:
        UserWarning: for collectives over axes of one device, which send something if an axis is longer.

    Example:
        no_communication(jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("x"), out_specs=P("x")), x)
    """
    __tracebackhide__ = True
    name = getattr(fn, "__name__", repr(fn))
    in_trace = list(_traced(jax.make_jaxpr(fn)(*args, **kwargs), {}))
    function: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    program = function.lower(*args, **kwargs).compile()
    shardings = jax.tree.leaves((program.input_shardings, program.output_shardings))
    if max((one.num_devices for one in shardings), default=1) == 1:
        raise ValueError(f"{name} runs on 1 device, where nothing can be sent: expected a mesh of several")
    compiled = [
        f"{c.kind} of {c.operand_bytes:,} bytes, {c.form}, {c.name}: {_connected(c.pairs or c.groups)}"
        for c in collectives(program.as_text())
        if not c.moves_nothing
    ]
    traced = [line for line, devices in in_trace if devices > 1]
    if not traced and not compiled:
        for line, _ in in_trace:
            warnings.warn(f"{name}: {line} sends nothing over 1 device: expected an axis of several", stacklevel=2)
        return
    parts = [f"  traced: {line}" for line in traced] + [f"  compiled: {line}" for line in compiled]
    raise AssertionError("\n".join([f"{name}: expected no communication, found {len(traced or compiled)}:", *parts]))


def _connected(groups: Any) -> str:
    """The devices that a collective connects, as HLO writes them."""
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups or ()) + "}"


def _traced(jaxpr: Any, sizes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The collectives of a traced program, one line each, with the number of devices that each connects."""
    body, _ = open_jaxpr(jaxpr)
    for equation in body.eqns:
        if equation.primitive.name in COLLECTIVE_KINDS:
            axes = axes_of(equation)
            line = f"{COLLECTIVE_KINDS[equation.primitive.name]} over {', '.join(axes)}"
            line += f" ({equation.primitive.name}, {location(equation)})"
            yield line, math.prod(sizes.get(name, 1) for name in axes)
        mesh = equation.params.get("mesh") if equation.primitive.name == "shard_map" else None
        inner = sizes if mesh is None else {**sizes, **dict(mesh.shape)}
        for below in subjaxprs(equation):
            yield from _traced(below, inner)
