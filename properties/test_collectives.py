"""Every implementation of every collective, against every law."""

from properties.implementations import IMPLEMENTATIONS
from properties.law_tests import law_test

test_value = law_test("value", IMPLEMENTATIONS)
test_gradient = law_test("gradient", IMPLEMENTATIONS)
test_type = law_test("type", IMPLEMENTATIONS)
test_error = law_test("error", IMPLEMENTATIONS)
test_transformation = law_test("transformation", IMPLEMENTATIONS)
test_transformed_gradient = law_test("transformed gradient", IMPLEMENTATIONS)
test_eager = law_test("eager", IMPLEMENTATIONS)
