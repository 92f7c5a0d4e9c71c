"""Every built-in collective, against every law, on every engine."""

from properties.implementations import BUILT_IN
from properties.law_tests import law_tests

globals().update(law_tests(BUILT_IN))
