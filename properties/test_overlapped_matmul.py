"""Every collective matrix product that overlaps communication with arithmetic, against every law.

The forms of one contract are one pair of loops (`impl.collective_matmul.gathered`, `.reduced`) under different
products, and what XLA makes of a case costs it a second. So the interpreter checks every law on all of them;
XLA must agree with it, forward and backward, on forms that have every loop, and is held to every law by itself on four.
Without `jit` none is checked: each scans along a ring, which is then compiled anew for every call.
"""

from properties.implementations import OVERLAPPED, PASSED
from properties.law_tests import law_test
from properties.verification import LAWS

ON_XLA = [
    i
    for i in OVERLAPPED
    if i.name
    in (
        "bidirectional_all_gather_matmul_lhs",
        "shorter_way_matmul_reduce_scatter",
        "tiled_matmul_all_reduce",
        "overlapped_transformer_block",
    )
]
AGREED = [i for i in OVERLAPPED if i in ON_XLA or i.contract not in PASSED or "joined" in i.name or "way" in i.name]
"""Half blocks are joined and whole ones go either way; rings within rings are those of the block."""

TESTS = [
    law_test(law.name, engine, OVERLAPPED if engine == "simulate" else AGREED if law.name == "agreement" else ON_XLA)
    for law in LAWS.values()
    for engine in law.engines
    if law.name != "eager"
]
globals().update({test.__name__: test for test in TESTS})
