"""The layouts that results of single operations must be typed with on explicit axes, where there is no doubt."""

from shardproof.properties.conformance.operations import OPERATIONS
from shardproof.properties.conformance.program import Program, Spec


def _merged(entries: list[list[str] | str | None]) -> list[str] | str | None:
    return next((entry for entry in entries if entry is not None), None)


def expected(program: Program) -> Spec | None:
    """The layout of the result of a program of one operation; None where nothing is known of it."""
    if len(program.steps) != 1 or program.derivative or program.axes != "explicit":
        return None
    (step,) = program.steps
    if len(step.results) != 1 or program.batch or any(one.reduced for one in program.inputs):
        return None
    if step.params.get("to") is not None:
        return step.params["to"]
    layouts = {one.name: one.spec for one in program.inputs}
    rank = len(step.results[0].shape)
    specs = [layouts[name] for name in step.operands]
    keeps = OPERATIONS[step.op].keeps
    if keeps == "all":  # each dimension as in whichever operand shards it
        return [_merged([spec[i] for spec in specs if len(spec) == rank]) for i in range(rank)]
    if keeps == "order":
        return [specs[0][i] for i in step.params["order"]]
    if keeps == "dims":
        return [entry for i, entry in enumerate(specs[0]) if i not in step.params["dims"]]
    if keeps == "product":
        (contracted, others), (batch, its) = step.params["contracted"], step.params["batch"]
        left, right = specs
        free = [entry for i, entry in enumerate(left) if i not in (*contracted, *batch)]
        more = [entry for i, entry in enumerate(right) if i not in (*others, *its)]
        return [*(_merged([left[i], right[j]]) for i, j in zip(batch, its, strict=True)), *free, *more]
    return None


def plain(spec: object) -> list[tuple[str, ...]]:
    """A layout in one way: the axes of each dimension, to the last that is sharded."""
    entries = [() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in spec]  # type: ignore[attr-defined] # a PartitionSpec, too, is a sequence
    while entries and not entries[-1]:
        entries.pop()
    return entries
