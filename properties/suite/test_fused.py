"""Every law, on every engine, for losses that are made of others: a projection and its loss, a weighted mean."""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "fused"], derived=True))
