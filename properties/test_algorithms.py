"""Every hand-written algorithm, against every law, on every engine."""

from properties.implementations import ALGORITHMS
from properties.law_tests import law_test

EAGER = [i for i in ALGORITHMS if i.name in ("recursive_doubling_all_reduce", "tree_broadcast")]
"""The others scan along a ring, which without `jit` is compiled anew for every call and takes a minute."""

test_value_simulate = law_test("value", "simulate", ALGORITHMS)
test_value_xla = law_test("value", "xla", ALGORITHMS)
test_gradient_simulate = law_test("gradient", "simulate", ALGORITHMS)
test_gradient_xla = law_test("gradient", "xla", ALGORITHMS)
test_type_simulate = law_test("type", "simulate", ALGORITHMS)
test_type_xla = law_test("type", "xla", ALGORITHMS)
test_error_simulate = law_test("error", "simulate", ALGORITHMS)
test_transformation_simulate = law_test("transformation", "simulate", ALGORITHMS)
test_transformation_xla = law_test("transformation", "xla", ALGORITHMS)
test_transformed_gradient_simulate = law_test("transformed gradient", "simulate", ALGORITHMS)
test_transformed_gradient_xla = law_test("transformed gradient", "xla", ALGORITHMS)
test_eager_xla = law_test("eager", "xla", EAGER)
test_agreement_xla = law_test("agreement", "xla", ALGORITHMS)
test_scale_simulate = law_test("scale", "simulate", ALGORITHMS)
