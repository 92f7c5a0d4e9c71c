"""Every implementation of every collective matrix product, against every law, on every engine."""

from properties.implementations import PRODUCTS
from properties.law_tests import law_tests

globals().update(law_tests(PRODUCTS, derived=True))
