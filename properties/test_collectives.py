"""Every implementation of every collective, against every law, on every engine."""

from properties.implementations import IMPLEMENTATIONS
from properties.law_tests import law_test

test_value_simulate = law_test("value", "simulate", IMPLEMENTATIONS)
test_value_xla = law_test("value", "xla", IMPLEMENTATIONS)
test_gradient_simulate = law_test("gradient", "simulate", IMPLEMENTATIONS)
test_gradient_xla = law_test("gradient", "xla", IMPLEMENTATIONS)
test_type_simulate = law_test("type", "simulate", IMPLEMENTATIONS)
test_type_xla = law_test("type", "xla", IMPLEMENTATIONS)
test_error_simulate = law_test("error", "simulate", IMPLEMENTATIONS)
test_transformation_simulate = law_test("transformation", "simulate", IMPLEMENTATIONS)
test_transformation_xla = law_test("transformation", "xla", IMPLEMENTATIONS)
test_transformed_gradient_simulate = law_test("transformed gradient", "simulate", IMPLEMENTATIONS)
test_transformed_gradient_xla = law_test("transformed gradient", "xla", IMPLEMENTATIONS)
test_communication_simulate = law_test("communication", "simulate", IMPLEMENTATIONS)
test_communication_xla = law_test("communication", "xla", IMPLEMENTATIONS)
test_eager_xla = law_test("eager", "xla", IMPLEMENTATIONS)
test_agreement_xla = law_test("agreement", "xla", IMPLEMENTATIONS)
test_scale_simulate = law_test("scale", "simulate", IMPLEMENTATIONS)
