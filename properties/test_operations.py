"""Every operation whose contract names its implementations, against every law, on every engine."""

from shardproof.properties.implementations import OPERATIONS
from shardproof.properties.law_tests import law_tests

globals().update(law_tests(OPERATIONS, derived=True))
