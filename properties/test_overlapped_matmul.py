"""Every collective matrix product that overlaps communication with arithmetic, against every law, on every engine."""

from properties.implementations import OVERLAPPED
from properties.law_tests import law_test, law_tests

EAGER = [i for i in OVERLAPPED if i.name == "ring_matmul_reduce_scatter"]
"""The others scan along rings as well, and without `jit` a scan is compiled anew for every call."""

globals().update(law_tests(OVERLAPPED, derived=True) | {"test_eager_xla": law_test("eager", "xla", EAGER)})
