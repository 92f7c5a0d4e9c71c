"""Every law, on every engine, for the implementations of operations whose contracts name them, sums of products."""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "operation"], derived=True))
