"""Every hand-written algorithm, against every law, on every engine."""

from properties.implementations import ALGORITHMS
from properties.law_tests import law_test, law_tests

EAGER = [i for i in ALGORITHMS if i.name in ("recursive_doubling_all_reduce", "tree_broadcast")]
"""The others scan along a ring, which without `jit` is compiled anew for every call and takes a minute."""

globals().update(law_tests(ALGORITHMS, derived=True) | {"test_eager_xla": law_test("eager", "xla", EAGER)})
