"""Running a case: programs made ready once per structure, and their results as blocks."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import jax
import numpy as np

from oracles.layout import shard
from properties.cases import BATCH, Case, Placement
from properties.contracts import CONTRACTS
from properties.engines import Engine, Prepared
from properties.engines.simulate import UnknownPrimitive
from properties.implementations import Implementation
from properties.laws.violation import Gap, LawViolation
from properties.programs import Program, Seen, derivatives, forward
from properties.transformations import TRANSFORMATIONS

KEPT = 32
"""How many structures stay compiled: Hypothesis tries one again and again while it shrinks."""

NOT_SERVED = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
    "Reverse-mode differentiation does not work for lax.while_loop",
)
"""What JAX says of functions that are right and not differentiable in one of the modes."""

_ready: OrderedDict[tuple[object, ...], "Ready"] = OrderedDict()


@dataclass(frozen=True)
class Ready:
    """A structure made ready: what runs it, and what was seen of it."""

    prepared: Prepared
    seen: Seen
    placements: tuple[Placement, ...] = ()


def gap_of(error: Exception) -> Gap | None:
    """The gap that an exception of an implementation declares, if it is one."""
    if isinstance(error, LawViolation):  # its text is a report, which takes a while to write and declares nothing
        return None
    if isinstance(error, NotImplementedError | UnknownPrimitive) or any(text in str(error) for text in NOT_SERVED):
        return Gap(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return None


@contextmanager
def gaps() -> Iterator[None]:
    """Turns the exceptions that declare a gap into one."""
    try:
        yield
    except Exception as error:
        gap = gap_of(error)
        if gap is None:
            raise
        raise gap from error


def trace(program: Program, case: Case, engine: Engine) -> None:
    """Traces a program under an abstract mesh: what it must refuse is refused here, before anything runs."""
    mesh = engine.abstract_mesh(case.mesh)
    sharding = jax.sharding.NamedSharding
    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding(mesh, a.partition_spec)) for a in program.arguments
    ]
    jax.eval_shape(program.build(mesh), *avals)


def ready(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    """The structure of `case` made ready as `kind`: `value`, `placed`, `gradient` or `reverse gradient`.

    Raises:
        Gap: if the implementation does not serve the case.
    """
    key = (kind, implementation, case.structure, engine.name)
    if key in _ready:
        _ready.move_to_end(key)
        return _ready[key]
    with gaps():
        made = _make(kind, implementation, case, engine)
    _ready[key] = made
    if len(_ready) > KEPT:
        _ready.popitem(last=False)
    return made


def _make(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Ready:
    seen = Seen()
    if kind == "value":
        return Ready(engine.prepare(forward(case, implementation, seen), case.mesh), seen)
    if kind == "placed":
        return Ready(engine.prepare(forward(case, implementation, seen, out="placed"), case.mesh), seen)
    trace(forward(case, implementation, seen), case, engine)
    program, placements = derivatives(case, implementation, seen, forward_mode=kind == "gradient")
    return Ready(engine.prepare(program, case.mesh), seen, tuple(placements))


def is_batched(case: Case) -> bool:
    """Whether the case's transformation carries a batch."""
    return TRANSFORMATIONS[case.around].batched


def oracle_blocks(case: Case, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The oracle's results `[*mesh.sizes, (batch,) *block]`, given the operands' blocks."""
    return over_batch(case, operands, lambda blocks: CONTRACTS[case.contract].oracle(case, blocks))


def over_batch(case: Case, operands: Sequence[np.ndarray], function: object) -> list[np.ndarray]:
    """`function` (lists of blocks to lists of blocks) on each input of the batch, or on the only one."""
    assert callable(function)
    if not is_batched(case):
        return list(function(list(operands)))
    lead = len(case.mesh.sizes)
    per_input = [function([np.take(b, i, axis=lead) for b in operands]) for i in range(BATCH)]
    expected = TRANSFORMATIONS[case.around].expected
    return [expected(results, lead) for results in zip(*per_input, strict=True)]


def all_blocks(case: Case, stacked: np.ndarray) -> np.ndarray:
    """A stacked result as blocks of the whole mesh; axes that are not manual hold replicas of one value."""
    if not case.manual:
        return stacked
    missing = tuple(i for i, name in enumerate(case.mesh.axis_names) if name not in case.manual)
    spread = np.expand_dims(stacked, missing)
    return np.broadcast_to(spread, (*case.mesh.sizes, *spread.shape[len(case.mesh.sizes) :]))


def placed_blocks(case: Case, array: np.ndarray, placement: Placement) -> np.ndarray:
    """A global array that leaves by type, as blocks `[*mesh.sizes, *block]`."""
    held = shard(array, case.mesh, placement.partition())
    rank = len(case.mesh.sizes)
    return held.reshape(*case.mesh.sizes, *held.shape[rank + len(placement.stacked) :])
