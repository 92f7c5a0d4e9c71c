"""The law of values: the implementation's blocks equal the oracle's, on every device."""

from properties.cases import Case
from properties.contracts import CONTRACTS
from properties.engines import Engine
from properties.implementations import Implementation
from properties.laws.comparison import compare
from properties.laws.numbers import bound_of_sum, is_exact, is_moved, magnitude, operands
from properties.laws.running import all_blocks, is_batched, oracle_blocks, ready


def check_value(implementation: Implementation, case: Case, engine: Engine, *, law: str = "value") -> int:
    """Every block of every data set equals the oracle's; returns how many data sets were checked.

    Raises:
        LawViolation: if one does not.
        Gap: if the implementation does not serve the case.
    """
    terms, batched = CONTRACTS[case.contract].terms(case), is_batched(case)
    program = ready("value", implementation, case, engine)
    for data in case.data:
        arrays = operands(case, data)
        blocks = [case.blocks(i, array, batched=batched) for i, array in enumerate(arrays)]
        expected = oracle_blocks(case, blocks)
        exact = is_moved(case) or is_exact(case, arrays, terms)
        bounds = None if exact else oracle_blocks(case, [magnitude(b) for b in blocks])
        for i, result in enumerate(program.prepared(arrays)):
            compare(
                implementation,
                law,
                case,
                data,
                "result" if not case.tree else f"result leaf {i}",
                expected=expected[i],
                actual=all_blocks(case, result),
                bound=None if bounds is None else bound_of_sum(case, bounds[i], terms, expected[i].dtype),
            )
    return len(case.data)
