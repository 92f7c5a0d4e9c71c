"""How often a loop of a compiled program runs, read from its condition: XLA:TPU does not write it down."""

from shardproof.properties.communication.hlo import known_trips
from shardproof.properties.communication.text import Computation, HloError, Instruction, Module, bare

COPIES = ("copy", "bitcast")

STEPS_BACK = 100
"""How many instructions a value is followed through to the constant that it is."""


def trips(module: Module, inside: Computation, loop: Instruction) -> int:
    """How often a `while` runs its body: what is written down, or what a counter that is compared with a constant does.

    Arguments:
        module: the whole text.
        inside: the computation that the loop stands in.
        loop: the `while`.

    Raises:
        HloError: if neither says it.
    """
    known = known_trips(loop)
    if known is not None:
        return known
    condition, body = (module.computations[loop.called(name)] for name in ("condition", "body"))
    root = condition.root
    untold = HloError(f"how often the loop {loop.name} runs is not told: {root.line}")
    if root.opcode != "compare" or root.attributes.get("direction") != "LT":
        raise untold
    counter, limit = (condition.instructions[bare(name)] for name in root.operands)
    before = inside.instructions[bare(loop.operands[0])]
    after = body.root
    if counter.opcode != "get-tuple-element" or before.opcode != "tuple" or after.opcode != "tuple":
        raise untold
    index = int(counter.attributes["index"])
    first = _constant(inside, before.operands[index], None)
    last = _constant(condition, limit.name, (inside, before))
    step = _step(body, body.instructions[bare(after.operands[index])], (inside, before))
    if first is None or last is None or not step or step < 0:
        raise untold
    return max(0, -(-(last - first) // step))


Around = tuple[Computation, Instruction]
"""The computation that a loop stands in, and the tuple that it begins with."""


def _constant(computation: Computation, name: str, around: Around | None) -> int | None:
    """The number that a value is; what a loop carries unchanged is taken from before it."""
    for _ in range(STEPS_BACK):
        found = computation.instructions.get(bare(name))
        if found is None:
            return None
        if found.opcode == "constant":
            return int(found.operands[0]) if found.operands and found.operands[0].lstrip("-").isdigit() else None
        if found.opcode == "get-tuple-element" and around is not None:
            computation, start = around
            name, around = start.operands[int(found.attributes["index"])], None
        elif found.opcode in COPIES:
            name = found.operands[0]
        else:
            return None
    return None


def _source(computation: Computation, name: str) -> Instruction:
    """What a value is a copy of."""
    found = computation.instructions[bare(name)]
    while found.opcode in COPIES:
        found = computation.instructions[bare(found.operands[0])]
    return found


def _step(body: Computation, following: Instruction, around: Around) -> int | None:
    """What an iteration adds to the counter."""
    if following.opcode != "add":
        return None
    steps = [_constant(body, name, around) for name in following.operands]
    counters = [_source(body, name).opcode == "get-tuple-element" for name in following.operands]
    for step, other in ((steps[1], counters[0]), (steps[0], counters[1])):
        if step is not None and other:
            return step
    return None
