"""Every implementation of every collective matrix product, against every law, on every engine."""

from shardproof.properties.programs.implementations import PRODUCTS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests(PRODUCTS, derived=True))
