"""Every operation whose contract names its implementations, against every law, on every engine."""

from properties.implementations import OPERATIONS
from properties.law_tests import law_tests

globals().update(law_tests(OPERATIONS, derived=True))
