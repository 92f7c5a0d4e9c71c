"""The law of values: the implementation's blocks equal the oracle's, on every device."""

from shardproof.properties.cases import Case
from shardproof.properties.engines import Engine
from shardproof.properties.implementations import Implementation
from shardproof.properties.laws.comparison import compare
from shardproof.properties.laws.numbers import checked_sets, operands, references
from shardproof.properties.laws.running import all_blocks, ready


def check_value(implementation: Implementation, case: Case, engine: Engine, *, law: str = "value") -> int:
    """Every block of every data set equals the oracle's; returns how many data sets were checked.

    Raises:
        LawViolation: if one does not.
        WrongResult: if the result has another tree than it should.
        NotRun: if no data set tells right from wrong.
    """
    program = ready("value", implementation, case, engine)
    told = []
    for data in case.data:
        arrays = operands(case, data)
        right = references(case, arrays, implementation.features)
        told.append(any(reference.tells for reference in right))
        for i, result in enumerate(program.prepared(arrays)):
            compare(
                implementation,
                law,
                case,
                data,
                "result" if not case.tree else f"result leaf {i}",
                expected=right[i].rounded,
                actual=all_blocks(case, result),
                bound=right[i].bound,
                exact=right[i].exact,
            )
    return checked_sets(told, case)
