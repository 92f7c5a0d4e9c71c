"""Every built-in collective, against every law, on every engine."""

from properties.implementations import BUILT_IN
from properties.law_tests import law_test

test_value_simulate = law_test("value", "simulate", BUILT_IN)
test_value_xla = law_test("value", "xla", BUILT_IN)
test_gradient_simulate = law_test("gradient", "simulate", BUILT_IN)
test_gradient_xla = law_test("gradient", "xla", BUILT_IN)
test_type_simulate = law_test("type", "simulate", BUILT_IN)
test_type_xla = law_test("type", "xla", BUILT_IN)
test_error_simulate = law_test("error", "simulate", BUILT_IN)
test_transformation_simulate = law_test("transformation", "simulate", BUILT_IN)
test_transformation_xla = law_test("transformation", "xla", BUILT_IN)
test_transformed_gradient_simulate = law_test("transformed gradient", "simulate", BUILT_IN)
test_transformed_gradient_xla = law_test("transformed gradient", "xla", BUILT_IN)
test_eager_xla = law_test("eager", "xla", BUILT_IN)
test_agreement_xla = law_test("agreement", "xla", BUILT_IN)
test_scale_simulate = law_test("scale", "simulate", BUILT_IN)
