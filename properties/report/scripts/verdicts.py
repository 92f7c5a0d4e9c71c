"""The part of a script that is specific to types and errors: what must be equal, accepted, refused."""

from shardproof.oracles.layout import unshard
from shardproof.properties.cases.data import Data
from shardproof.properties.engines.batches import oracle_blocks
from shardproof.properties.laws.type import declared_varying
from shardproof.properties.precision.expected import Reference
from shardproof.properties.programs.violation import RAISED
from shardproof.properties.report.scripts.checks import EXIT, assign, compared, differs, operands, results
from shardproof.properties.report.scripts.expectations import result_values
from shardproof.properties.report.scripts.literals import dtype_text, spec_text
from shardproof.properties.report.scripts.parts import Script


def types(script: Script, data: Data) -> list[str]:
    """The result's type is what it should be: sound, declared, and decisive for `out_specs`."""
    case, violation = script.case, script.violation
    if case.out is not None and (violation.kind in ("out_specs", *RAISED) or violation.broken.of == "array"):
        return _placed(script, data)
    right = result_values(violation.implementation, case, data)
    lines = [*script.local([script.lead] * len(right.right), spy=True), *operands(script, right.operands)]
    lines += ["varying = []", script.shard_map([script.stacked])]
    lines += [f"result = {script.jitted('program')}({', '.join(script.names)})", "wrong = False"]
    declared = declared_varying(violation.implementation, case)
    if declared is not None and violation.kind == "type":
        wanted = [f"{{{', '.join(repr(n) for n in sorted(a))}}}" if a else "set()" for a in declared]
        return [
            *lines,
            f"for is_varying, expected in zip(varying, [{', '.join(wanted)}], strict=True):",
            "    if is_varying != expected:",
            '        print(f"typed varying over {sorted(is_varying)}, expected {sorted(expected)}")',
            "        wrong = True",
            EXIT,
        ]
    return [
        *lines,
        "for blocks, axes in zip(map(np.asarray, jax.tree.leaves(result)), varying, strict=True):",
        "    first = blocks[tuple(slice(None) if name in axes else slice(1) for name in mesh.axis_names)]",
        "    same = (blocks == first) | ((blocks != blocks) & (first != first))",
        "    if not same.all():  # typed invariant along an axis, so the blocks along it must be equal",
        '        print(f"typed varying over {sorted(axes)} only, but the blocks are\\n{blocks}")',
        "        wrong = True",
        EXIT,
    ]


def _placed(script: Script, data: Data) -> list[str]:
    """`out_specs` is accepted just when it names every axis that the result varies over, and puts it together right."""
    case = script.case
    out = case.out
    assert out is not None
    right = result_values(script.violation.implementation, case, Data("exact", data.seed))
    lead = len(case.mesh.sizes)
    axes = [placed.stacked for placed in out]
    lines = [*script.local(axes, spy=True), *differs(), *operands(script, right.operands), "varying = []"]
    lines += [script.shard_map([placed.partition() for placed in out]), "try:"]
    lines += [f"    jax.eval_shape(program, {', '.join(script.names)})", "    accepted = True"]
    lines += ["except ValueError as error:", '    if "out_specs" not in str(error):', "        raise"]
    named = ", ".join(str(set(placed.axes) or "set()") for placed in out)
    lines += ["    accepted = False", f"sound = all(map(set.issubset, varying, [{named}]))"]
    lines += ["wrong = accepted != sound", "if wrong:"]
    lines.append(
        "    print(f\"out_specs is {'accepted' if accepted else 'refused'} for results varying over {varying}\")"
    )
    if right.exact:
        blocks = oracle_blocks(case, [case.blocks(i, a) for i, a in enumerate(right.operands)])
        shaped = [
            (e.reshape(*case.mesh.sizes, *(1 for _ in placed.stacked), *e.shape[lead:]), placed.partition())
            for e, placed in zip(blocks, out, strict=True)
        ]
        try:
            whole = [Reference(e := unshard(b, case.mesh, spec), e.dtype, None) for b, spec in shaped]
        except ValueError:  # blocks that differ cannot leave as one: it must be refused
            return [*lines, EXIT]
        names = results(script, len(whole))
        comparison = compared(names, whole)
        run = f"{names[0].partition('[')[0]} = {script.jitted('program')}({', '.join(script.names)})"
        lines += ["if accepted:", *(f"    {line}" for line in (run, *comparison))]
    return [*lines, EXIT]


def error(script: Script) -> list[str]:
    """A forbidden argument raises while tracing, with a message that says what was wrong."""
    case, violation = script.case, script.violation
    arrays = []
    for operand in case.operands:
        shape = operand.placement.global_shape(operand.block, case.mesh)
        spec = spec_text(operand.placement.partition())
        sharding = f"NamedSharding(mesh, {spec})"
        arrays.append(f"jax.ShapeDtypeStruct({shape}, {dtype_text(operand.numpy_dtype)}, sharding={sharding})")
    lines = [*script.local([script.lead] * len(case.operands))]
    lines += [line for name, array in zip(script.names, arrays, strict=True) for line in assign(name, array)]
    lines += [script.shard_map([script.stacked]), "try:"]
    lines += [f"    jax.eval_shape(program, {', '.join(script.names)})", "except Exception as error:"]
    if "explained_errors" not in violation.implementation.features:
        lines += ['    print(f"raises, as it should: {type(error).__name__}: {error}")', "    sys.exit(0)"]
    else:
        given = {"axis_name": case.axis_name, **case.keywords}
        value = repr(given[case.forbidden]) if case.forbidden in given else ""
        mesh = "(" + ", ".join(f"{name}={size}" for name, size in case.mesh.shape.items()) + ")"
        wanted = (f"{case.forbidden}=", value, mesh)
        lines += [
            '    message = str(error).replace("(", "[").replace(")", "]").replace(",]", "]")',
            f"    wanted = {tuple(w.replace('(', '[').replace(')', ']').replace(',]', ']') for w in wanted if w)!r}",
            "    missing = [part for part in wanted if part not in message]",
            '    print(f"{type(error).__name__}: {error}")',
            "    if missing:",
            '        print(f"the message lacks {missing}")',
            "    sys.exit(1 if missing else 0)",
        ]
    accepted = violation.finding if violation.kind == "accepted" else f"the wrong {case.forbidden} is accepted"
    return [*lines, f"print({accepted!r})", "sys.exit(1)"]
