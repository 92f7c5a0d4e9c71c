"""Every collective matrix product that overlaps communication with arithmetic, against every law.

The forms of one contract are one pair of loops (`impl.collective_matmul.gathered`, `.reduced`) under different
products, and what XLA makes of a case costs it a second. So the interpreter checks every law on all of them;
XLA must agree with it on all of them, forward and backward, and is held to every law by itself on four.
Without `jit` none is checked: each scans along a ring, which is then compiled anew for every call.
"""

from properties.implementations import OVERLAPPED
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
TESTS = [
    law_test(law.name, engine, ON_XLA if engine == "xla" and law.name != "agreement" else OVERLAPPED)
    for law in LAWS.values()
    for engine in law.engines
    if law.name != "eager"
]
globals().update({test.__name__: test for test in TESTS})
