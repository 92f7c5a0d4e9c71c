"""Every law, on every engine, for the implementations of what is no sum of products: norms, losses."""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "nonlinear"], derived=True))
