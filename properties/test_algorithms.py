"""Every hand-written algorithm, against every law, on every engine."""

from properties.implementations import ALGORITHMS
from properties.law_tests import law_tests

globals().update(law_tests(ALGORITHMS, derived=True))
